"""All weights of a module in one buffer: one copy publishes them, one call clips them, one call steps them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


class FlatParameters:
    """Rebinds a module's parameters, then its floating-point buffers, to views of one tensor.

    `values` holds everything that is published; its first `num_parameters` are trained, and their gradients are
    views of `gradient`. `travelling` is the gradient followed by some numbers, for learners that send both at once.
    Integer buffers are constants of the module and stay where they are.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype = torch.float32, device: str = "cpu") -> None:
        module.to(device=device, dtype=dtype)
        parameters = list(module.parameters())
        buffers = [buffer for buffer in module.buffers() if buffer.is_floating_point()]
        self.num_parameters = sum(parameter.numel() for parameter in parameters)
        self.size = self.num_parameters + sum(buffer.numel() for buffer in buffers)
        self.values = torch.empty(self.size, dtype=dtype, device=device)
        self.gradient = self.travelling = torch.zeros(0)
        self._parameters = parameters
        offset = 0
        for tensor in [*parameters, *buffers]:
            view = _view_like(self.values[offset : offset + tensor.numel()], tensor)
            view.copy_(tensor.data)
            tensor.data = view
            offset += tensor.numel()

    def trainable(self, part_sizes: Sequence[int] = (), numbers: int = 0) -> list[nn.Parameter]:
        """One flat parameter for the whole module, or one per part, with gradients, for an optimizer to step.

        `numbers` is the count of extra numbers behind the gradient in `travelling`.
        """
        sizes = list(part_sizes) or [self.num_parameters]
        assert sum(sizes) == self.num_parameters, (sizes, self.num_parameters)
        self.travelling = self.values.new_zeros(self.num_parameters + numbers)
        self.gradient = self.travelling[: self.num_parameters]
        offset = 0
        for parameter in self._parameters:
            parameter.grad = _view_like(self.gradient[offset : offset + parameter.numel()], parameter)
            offset += parameter.numel()
        flat = [nn.Parameter(piece) for piece in torch.split(self.values[: self.num_parameters], sizes)]
        for parameter, piece in zip(flat, torch.split(self.gradient, sizes), strict=True):
            parameter.grad = piece
        return flat


def _view_like(piece: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A view of `piece` with the shape and the memory format of `like` (convolutions are channels-last)."""
    if like.dim() == 4 and not like.is_contiguous() and like.is_contiguous(memory_format=torch.channels_last):
        out_channels, in_channels, height, width = like.shape
        return piece.view(out_channels, height, width, in_channels).permute(0, 3, 1, 2)
    return piece.view(like.shape)
