"""Several MLPs of one shape and one input, as twin critics are: the first layers of all are one product.

    x ──one product──▶ first layers of all ─┬──▶ layers of MLP 1 ──▶ outputs 1
                                            └──▶ layers of MLP 2 ──▶ outputs 2

The other layers are multiplied one MLP after the other: on a CPU a batched product of two takes half as long again.
There a plain MLP with ReLUs is one operation (`ops/relu_mlps.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, cast

import torch
from torch import Tensor, nn

from pappus.networks.modules import Activation, is_exactly, orthogonal
from pappus.ops.relu_mlps import half_linear, relu_mlps

GAIN = math.sqrt(2)
IN_PLACE = {"relu": torch.relu_, "tanh": torch.tanh_}
"""Activations that overwrite their input: with thousands of rows a fresh array costs more than the arithmetic."""


class Member(nn.Module):
    """The layers of one MLP after its first, and the layer norms of all, if there are some."""

    def __init__(
        self, sizes: tuple[int, ...], outputs: int, activation: Activation, layer_norm: bool, last_gain: float
    ) -> None:
        super().__init__()
        self.activation = activation
        self.layers = nn.ModuleList(orthogonal(nn.Linear(*pair), GAIN) for pair in pairwise(sizes))
        self.last = orthogonal(nn.Linear(sizes[-1], outputs), last_gain)
        self.norms = nn.ModuleList(nn.LayerNorm(size) for size in sizes if layer_norm)
        self.mixed = False

    def parts(self) -> Iterable[tuple[Tensor, Tensor]]:
        """Weight and bias of every layer."""
        return ((layer.weight, layer.bias) for layer in cast(Iterable[nn.Linear], (*self.layers, self.last)))

    def activated(self, layer: int, x: Tensor) -> Tensor:
        return IN_PLACE[self.activation](self.norms[layer](x) if self.norms else x)

    def forward(self, x: Tensor) -> Tensor:
        """From the first layer's activations to the outputs."""
        for i, layer in enumerate(cast(Iterable[nn.Linear], self.layers), 1):
            half = self.mixed and x.device.type == "cpu" and is_exactly(layer, nn.Linear)
            x = self.activated(i, half_linear(x, layer.weight, layer.bias) if half else layer(x))
        output: Tensor = self.last(x)
        return output


class ManyMLPs(nn.Module):
    """`count` MLPs from `[M, D]` to float32 `[count, M, outputs]`; initialised as `MLP` is, but for the last gain."""

    def __init__(
        self, count: int, input_size: int, sizes: tuple[int, ...], outputs: int = 1, activation: Activation = "relu",
        layer_norm: bool = False, last_gain: float = 1.0,
    ) -> None:
        super().__init__()
        self.width, self.narrowest = sizes[0], min(sizes) if len(sizes) > 1 else 0
        self.mixed = False
        """Whether a CPU multiplies hidden layers in bfloat16."""
        first = [orthogonal(nn.Linear(input_size, sizes[0]), GAIN).weight.detach().T for _ in range(count)]
        self.weight = nn.Parameter(torch.cat(first, 1).contiguous())
        self.bias = nn.Parameter(torch.zeros(count * sizes[0]))
        self.members = nn.ModuleList(
            Member(sizes, outputs, activation, layer_norm, last_gain) for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        """The outputs of all."""
        members = cast(list[Member], list(self.members))
        if self._is_plain(members, x):
            return relu_mlps(x, self.weight, self.bias, [list(one.parts()) for one in members], self.mixed)
        joined = torch.addmm(self.bias, x.to(self.weight.dtype), self.weight)
        if members[0].norms:
            parts = zip(members, torch.split(joined, self.width, 1), strict=True)
            return torch.stack([one(one.activated(0, part)) for one, part in parts]).float()
        hidden = torch.split(members[0].activated(0, joined), self.width, 1)
        return torch.stack([one(part) for one, part in zip(members, hidden, strict=True)]).float()

    def first(self, x: Tensor) -> Tensor:
        """The outputs of the first alone, `[M, outputs]`."""
        one = cast(Member, self.members[0])
        weight, bias = self.weight[:, : self.width], self.bias[: self.width]
        if self._is_plain([one], x):
            return relu_mlps(x, weight, bias, [list(one.parts())], self.mixed).squeeze(0)
        hidden = torch.addmm(bias, x.to(weight.dtype), weight)
        output: Tensor = one(one.activated(0, hidden))
        return output.float()

    def _is_plain(self, members: list[Member], x: Tensor) -> bool:
        """Whether these members are what `relu_mlps` computes: in float32 on a CPU, with ReLUs, without layer norms,
        and no part of them has a forward pass of its own. An exporter must see every operation, for any number of
        rows."""
        return (
            x.dtype == self.weight.dtype == torch.float32 and x.device.type == "cpu"
            and not torch.is_autocast_enabled("cpu") and not torch.compiler.is_compiling()
            and all(one.activation == "relu" and not one.norms and is_exactly(one, Member) for one in members)
            and all(is_exactly(layer, nn.Linear) for one in members for layer in (*one.layers, one.last))
        )


def multiply_in_half(network: nn.Module) -> None:
    """Let a CPU make the products of hidden layers in bfloat16."""
    module: Any
    for module in network.modules():
        if hasattr(module, "mixed"):
            module.mixed = True
