"""Several MLPs with ReLUs on one input as one operation, forward and backward, for float32 on a CPU.

    h₀ = relu(x W₀ + b₀)        h_i = relu(h_{i−1} W_iᵀ + b_i)        y = h_{n−1} W_nᵀ + b_n

torch's own graph of the same has a node per layer, joins and splits what MLPs share, and computes what it then adds up.
With `half`, the products of hidden layers, which take most of the time, are made in bfloat16: CPUs with AVX512-BF16 or
AMX do that at least twice as fast. What is multiplied is rounded to 8 bits then. Weights, gradients, inputs, outputs
and the first and last layers stay float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import linear

Layer: TypeAlias = tuple[Tensor, Tensor]
"""Weight `[H, D]` and bias `[H]`."""
BLOCK = 512
"""Rows that pass through all layers before the next do: their activations stay in a core's cache of a megabyte."""
_relu_backward: Any = torch.ops.aten.threshold_backward.grad_input


def relu_mlps(x: Tensor, weight: Tensor, bias: Tensor, members: Sequence[Sequence[Layer]], half: bool) -> Tensor:
    """`[M, D]` → `[members, M, outputs]`. The first layers of all are `weight` `[D, members · H]` and `bias`; `members`
    are the other layers of each, of which the last has no activation."""
    assert x.dim() == 2 and weight.shape[1] % len(members) == 0, (x.shape, weight.shape, len(members))
    parameters = [weight, bias, *(tensor for layers in members for layer in layers for tensor in layer)]
    if not torch.is_grad_enabled():
        return _forward(x, _members(parameters, len(members)), half, None)
    y: Tensor = _ReluMLPs.apply(len(members), half, x, *parameters)  # type: ignore[no-untyped-call]
    return y


def half_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """One layer, whose product is made in bfloat16."""
    return linear(x.bfloat16(), weight.bfloat16()).float() + bias


class _Member(NamedTuple):
    """One MLP: its part of the first layer, and its other layers."""

    weight: Tensor
    bias: Tensor
    layers: list[Layer]


def _members(parameters: Sequence[Tensor], count: int) -> list[_Member]:
    weight, bias, *rest = parameters
    width, size = len(bias) // count, len(rest) // count
    found = []
    for i in range(count):
        part, own = slice(i * width, (i + 1) * width), rest[i * size : (i + 1) * size]
        found.append(_Member(weight[:, part], bias[part], list(zip(own[::2], own[1::2], strict=True))))
    return found


def _forward(x: Tensor, members: list[_Member], half: bool, kept: list[Tensor] | None) -> Tensor:
    """The outputs; into `kept` go, per block of rows and MLP, the inputs of the layers after the first."""
    y = x.new_empty(len(members), len(x), len(members[0].layers[-1][1]))
    factors = [_multiplied(one.layers, half) for one in members]
    for start in range(0, len(x), BLOCK):
        rows = slice(start, start + BLOCK)
        for i, (weight, bias, layers) in enumerate(members):
            h = torch.addmm(bias, x[rows], weight).relu_()
            for factor, (_, bias) in zip(factors[i][:-1], layers[:-1], strict=True):
                h = h.to(factor.dtype)
                if kept is not None:
                    kept.append(h)
                h = linear(h, factor).float().add_(bias).relu_() if half else linear(h, factor, bias).relu_()
            if kept is not None:
                kept.append(h)
            torch.addmm(layers[-1][1], h, factors[i][-1].T, out=y[i, rows])
    return y


def _multiplied(layers: list[Layer], half: bool) -> list[Tensor]:
    """The weights as they are multiplied."""
    return [weight.bfloat16() if half else weight for weight, _ in layers[:-1]] + [layers[-1][0]]


class _ReluMLPs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, count: int, half: bool, x: Tensor, *parameters: Tensor) -> Tensor:
        kept: list[Tensor] = []
        y = _forward(x, _members(parameters, count), half, kept)
        ctx.save_for_backward(x, *parameters, *kept)
        ctx.count, ctx.half, ctx.parameters = count, half, len(parameters)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, *saved = ctx.saved_tensors
        parameters, kept = saved[: ctx.parameters], iter(saved[ctx.parameters :])
        asked = ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():
            return None, None, *_differentiable(x, parameters, asked, gradient, ctx.count)
        members = _members(parameters, ctx.count)
        for_x = torch.zeros_like(x) if asked[0] else None
        found = [torch.empty_like(one) if asks else None for one, asks in zip(parameters, asked[1:], strict=True)]
        factors, size = [_multiplied(one.layers, ctx.half) for one in members], 2 * len(members[0].layers)
        for start in range(0, len(x), BLOCK):
            rows = slice(start, start + BLOCK)
            for i, one in enumerate(members):
                inputs = [next(kept) for _ in one.layers]
                results = found[2 + size * i : 2 + size * (i + 1)]
                slope = _backward(inputs, factors[i], gradient[i, rows], results, start == 0)
                part = slice(i * slope.shape[1], (i + 1) * slope.shape[1])
                if found[0] is not None:
                    _count(found[0][:, part], x[rows].T @ slope, start == 0)
                if found[1] is not None:
                    _count(found[1][part], slope.sum(0), start == 0)
                if for_x is not None:
                    for_x[rows].addmm_(slope, one.weight.T)
        return None, None, for_x, *found


def _backward(
    inputs: Sequence[Tensor], weights: Sequence[Tensor], slope: Tensor, results: Sequence[Tensor | None], first: bool
) -> Tensor:
    """Count the gradients of one MLP's layers after its first into `results`; the gradient of its first layer's sums.
    """
    for i in reversed(range(len(inputs))):
        h, weight, (for_weight, for_bias) = inputs[i], weights[i], results[2 * i : 2 * i + 2]
        if for_bias is not None:
            _count(for_bias, slope.sum(0), first)
        slope = slope.to(h.dtype)
        if for_weight is not None:
            _count(for_weight, slope.T @ h, first)
        slope = (slope @ weight).float()
        _relu_backward(slope, h.float(), 0, grad_input=slope)
    return slope


def _count(total: Tensor, part: Tensor, first: bool) -> None:
    """Add a block's part of a gradient, or begin with it."""
    if first:
        total.copy_(part)
    else:
        total += part


def _differentiable(
    x: Tensor, parameters: Sequence[Tensor], asked: Sequence[bool], gradient: Tensor, count: int
) -> list[Tensor | None]:
    """The same gradients by torch's own graph, for those who want gradients of them."""
    outputs = []
    for weight, bias, layers in _members(parameters, count):
        h = torch.addmm(bias, x, weight)
        for layer in layers:
            h = linear(h.relu(), *layer)
        outputs.append(h)
    wanted = [one for one, asks in zip([x, *parameters], asked, strict=True) if asks]
    found = iter(torch.autograd.grad(torch.stack(outputs), wanted, gradient, create_graph=True))
    return [next(found) if asks else None for asks in asked]
