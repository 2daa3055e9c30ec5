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
_relu_backward: Any = torch.ops.aten.threshold_backward.grad_input


def relu_mlps(x: Tensor, weight: Tensor, bias: Tensor, members: Sequence[Sequence[Layer]], half: bool) -> Tensor:
    """`[M, D]` → `[members, M, outputs]`. The first layers of all are `weight` `[D, members · H]` and `bias`; `members`
    are the other layers of each, of which the last has no activation."""
    assert x.dim() == 2 and weight.shape[1] % len(members) == 0, (x.shape, weight.shape, len(members))
    parameters = [weight, bias, *(tensor for layers in members for layer in layers for tensor in layer)]
    if not torch.is_grad_enabled():
        return _forward(x, parameters, len(members), half)[0]
    y: Tensor = _ReluMLPs.apply(len(members), half, x, *parameters)  # type: ignore[no-untyped-call]
    return y


def half_linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """One layer, whose product is made in bfloat16."""
    return linear(x.bfloat16(), weight.bfloat16()).float() + bias


class _Pass(NamedTuple):
    """What the layers of one MLP after its first multiply: inputs, and weights."""

    inputs: list[Tensor]
    weights: list[Tensor]


def _forward(x: Tensor, parameters: Sequence[Tensor], count: int, half: bool) -> tuple[Tensor, list[_Pass]]:
    """The outputs, and what their gradients need."""
    y, passes = x.new_empty(count, len(x), len(parameters[-1])), []
    for i, (weight, bias, layers) in enumerate(_members(parameters, count)):
        seen = _Pass([torch.addmm(bias, x, weight).relu_()], [])
        for weight, bias in layers[:-1]:
            seen.inputs[-1], factor, h = _hidden(seen.inputs[-1], weight, bias, half)
            seen.weights.append(factor)
            seen.inputs.append(h)
        weight, bias = layers[-1]
        seen.weights.append(weight)
        torch.addmm(bias, seen.inputs[-1], weight.T, out=y[i])
        passes.append(seen)
    return y, passes


def _hidden(h: Tensor, weight: Tensor, bias: Tensor, half: bool) -> tuple[Tensor, Tensor, Tensor]:
    """What a hidden layer multiplies, and its activations."""
    if not half:
        return h, weight, linear(h, weight, bias).relu_()
    h, weight = h.bfloat16(), weight.bfloat16()
    return h, weight, linear(h, weight).float().add_(bias).relu_()


def _members(parameters: Sequence[Tensor], count: int) -> list[tuple[Tensor, Tensor, list[Layer]]]:
    """Of each MLP, its part of the first layer, and its other layers."""
    weight, bias, *rest = parameters
    width, size = len(bias) // count, len(rest) // count
    found = []
    for i in range(count):
        part, own = slice(i * width, (i + 1) * width), rest[i * size : (i + 1) * size]
        found.append((weight[:, part], bias[part], list(zip(own[::2], own[1::2], strict=True))))
    return found


class _ReluMLPs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, count: int, half: bool, x: Tensor, *parameters: Tensor) -> Tensor:
        y, passes = _forward(x, parameters, count, half)
        ctx.save_for_backward(x, *parameters, *(tensor for one in passes for tensor in (*one.inputs, *one.weights)))
        ctx.count, ctx.parameters = count, len(parameters)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, *saved = ctx.saved_tensors
        parameters, kept = saved[: ctx.parameters], saved[ctx.parameters :]
        asked = ctx.needs_input_grad[2:]
        if torch.is_grad_enabled():
            return None, None, *_differentiable(x, parameters, asked, gradient, ctx.count)
        depth = len(kept) // ctx.count // 2
        found = [torch.empty_like(one) if asks else None for one, asks in zip(parameters, asked[1:], strict=True)]
        for_x = None
        for i, (weight, _, layers) in enumerate(_members(parameters, ctx.count)):
            own, size = kept[2 * depth * i : 2 * depth * (i + 1)], 2 * len(layers)
            results = found[2 + size * i : 2 + size * (i + 1)]
            slope = _backward(_Pass(own[:depth], own[depth:]), gradient[i], results)
            part = slice(i * slope.shape[1], (i + 1) * slope.shape[1])
            if found[0] is not None:
                torch.mm(x.T, slope, out=found[0][:, part])
            if found[1] is not None:
                torch.sum(slope, 0, out=found[1][part])
            if asked[0]:
                for_x = slope @ weight.T if for_x is None else for_x.addmm_(slope, weight.T)
        return None, None, for_x, *found


def _backward(seen: _Pass, slope: Tensor, results: Sequence[Tensor | None]) -> Tensor:
    """Write the gradients of one MLP's layers after its first; that of its first layer's sums."""
    for i in reversed(range(len(seen.inputs))):
        h, weight, (for_weight, for_bias) = seen.inputs[i], seen.weights[i], results[2 * i : 2 * i + 2]
        if for_bias is not None:
            torch.sum(slope, 0, out=for_bias)
        slope = slope.to(h.dtype)
        if for_weight is not None:
            for_weight.copy_(slope.T @ h)
        slope = (slope @ weight).float()
        _relu_backward(slope, h.float(), 0, grad_input=slope)
    return slope


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
