"""The layers of a plain MLP in NumPy, forth and back, for losses that are computed in torch.

    x ──layers──▶ outputs │ loss ──backward()──▶ d loss / d outputs │ ──layers──▶ `.grad` of weights and biases
          NumPy           │               torch                     │       NumPy

With torch for all of it, a batch of 64 takes 169 µs through two layers of 64 units and a head, of which this needs 48;
512 take 567 and 243 µs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from pappus.networks.arrays import ACTIVATIONS
from pappus.types import Array


def _tanh_slope(y: Array, into: Array) -> None:
    np.square(y, out=into)
    np.subtract(1.0, into, out=into)


def _relu_slope(y: Array, into: Array) -> None:
    np.greater(y, 0.0, out=into)


SLOPES: dict[str, Callable[[Array, Array], None]] = {"tanh": _tanh_slope, "relu": _relu_slope}
"""The derivative of an activation, from what it returned."""


class Scratch(NamedTuple):
    """Memory for one batch on its way forth and back: a fresh page costs more than the sum that is written to it."""

    hidden: list[Array]
    """What each hidden layer returned."""
    gradients: list[Array]
    """Of what each hidden layer returned, before its activation."""
    slope: list[Array]
    ones: Array


class ArrayMLP:
    """`mlp(x)`: hidden layers with an activation, then a linear one. All are float32 and on the CPU.

    `backward()` on something computed of the outputs adds to the `.grad` of the layers' parameters, as if torch had
    computed the outputs; `torch.autograd.grad` does not see them.
    """

    def __init__(self, layers: Sequence[nn.Linear], activation: str) -> None:
        self._layers = list(layers)
        self._activation, self._slope = ACTIVATIONS[activation], SLOPES[activation]
        self._free: defaultdict[int, list[Scratch]] = defaultdict(list)
        self._at = 0
        self._views: list[tuple[Array, Array]] = []

    def __call__(self, x: Array) -> Tensor:
        """Outputs `[N, …]` for inputs `[N, …]`."""
        views = self._current_views()
        free = self._free[len(x)]
        scratch = free.pop() if free else self._scratch(len(x))
        inputs = [x]
        for (weight, bias), y in zip(views, scratch.hidden, strict=False):
            np.matmul(inputs[-1], weight.T, out=y)
            y += bias
            self._activation(y)
            inputs.append(y)
        weight, bias = views[-1]
        outputs = torch.from_numpy(inputs[-1] @ weight.T + bias).requires_grad_()
        outputs.register_hook(partial(self._backward, inputs, scratch))  # type: ignore[no-untyped-call]
        return outputs

    def _backward(self, inputs: list[Array], scratch: Scratch, gradient: Tensor) -> None:
        upstream: Array = gradient.numpy()
        for i in reversed(range(len(inputs))):
            layer, x = self._layers[i], inputs[i]
            _grad_of(layer.weight).__iadd__(upstream.T @ x)
            _grad_of(layer.bias).__iadd__(scratch.ones @ upstream)
            if i:
                down, slope = scratch.gradients[i - 1], scratch.slope[i - 1]
                np.matmul(upstream, self._views[i][0], out=down)
                self._slope(x, slope)
                down *= slope
                upstream = down
        self._free[len(inputs[0])].append(scratch)

    def _current_views(self) -> list[tuple[Array, Array]]:
        """The parameters as arrays; somebody may have moved them to another place (`FlatParameters`)."""
        at = self._layers[0].weight.data_ptr()
        if at != self._at:
            self._at = at
            self._views = [(layer.weight.detach().numpy(), layer.bias.detach().numpy()) for layer in self._layers]
        return self._views

    def _scratch(self, rows: int) -> Scratch:
        sizes = [layer.out_features for layer in self._layers[:-1]]
        hidden, gradients, slope = ([np.empty((rows, size), np.float32) for size in sizes] for _ in range(3))
        return Scratch(hidden, gradients, slope, np.ones(rows, np.float32))


def _grad_of(parameter: Tensor) -> Array:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    gradient: Array = parameter.grad.numpy()
    return gradient
