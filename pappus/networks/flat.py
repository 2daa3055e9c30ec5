"""All weights of a module in one buffer: one copy publishes them, one call clips them, one call steps them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from pappus.layout import Layout, Part, named, size_of


class FlatParameters:
    """Rebinds a module's parameters, then its floating-point buffers, to views of one tensor.

    `values` holds everything that is published; its first `num_parameters` are trained, and their gradients are
    views of `gradient`. `travelling` is the gradient followed by some numbers, for learners that send both at once.
    Integer buffers are constants of the module and stay where they are. `layout` names what lies where.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype = torch.float32, device: str = "cpu") -> None:
        module.to(device=device, dtype=dtype)
        parameters = dict(module.named_parameters())
        buffers = {name: buffer for name, buffer in module.named_buffers() if buffer.is_floating_point()}
        tensors = {**parameters, **buffers}
        self.layout: Layout = tuple(_part(name, tensor) for name, tensor in tensors.items())
        self.num_parameters = sum(parameter.numel() for parameter in parameters.values())
        self.size = size_of(self.layout)
        self.values = torch.empty(self.size, dtype=dtype, device=device)
        self.gradient = self.travelling = torch.zeros(0)
        self._parameters = list(parameters.values())
        for tensor, own in zip(tensors.values(), named(self.values, self.layout).values(), strict=True):
            own.copy_(tensor.data)
            tensor.data = own

    def trainable(self, part_sizes: Sequence[int] = (), numbers: int = 0) -> list[nn.Parameter]:
        """One flat parameter for the whole module, or one per part, with gradients, for an optimizer to step.

        `numbers` is the count of extra numbers behind the gradient in `travelling`.
        """
        sizes = list(part_sizes) or [self.num_parameters]
        assert sum(sizes) == self.num_parameters, (sizes, self.num_parameters)
        self.travelling = self.values.new_zeros(self.num_parameters + numbers)
        self.gradient = self.travelling[: self.num_parameters]
        layout = self.layout[: len(self._parameters)]
        for parameter, own in zip(self._parameters, named(self.gradient, layout).values(), strict=True):
            parameter.grad = own
        flat = [nn.Parameter(piece) for piece in torch.split(self.values[: self.num_parameters], sizes)]
        for parameter, piece in zip(flat, torch.split(self.gradient, sizes), strict=True):
            parameter.grad = piece
        return flat


def _part(name: str, tensor: torch.Tensor) -> Part:
    """A tensor with its memory format: convolutions are channels-last."""
    last = tensor.dim() == 4 and not tensor.is_contiguous() and tensor.is_contiguous(memory_format=torch.channels_last)
    return Part(name, tuple(tensor.shape), last)
