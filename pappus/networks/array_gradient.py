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
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn

from pappus.networks.actor_critic import ActorCritic
from pappus.networks.arrays import ACTIVATIONS, array_input, flat_and_trunk, is_plain_mlp
from pappus.networks.body import Body
from pappus.networks.heads import PolicyValueHead
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
    """Hidden layers with an activation, then a linear one. All are float32 and on the CPU.

    A gradient is added to the `.grad` of weights and biases, or takes the place of what was there (`replaces`).
    """

    def __init__(self, layers: Sequence[nn.Linear], activation: str, replaces: bool = False) -> None:
        self._layers, self._replaces = list(layers), replaces
        self._activation, self._slope = ACTIVATIONS[activation], SLOPES[activation]
        self._free: defaultdict[int, list[Scratch]] = defaultdict(list)
        self._at = self._gradients_at = 0
        self._views: list[tuple[Array, Array]] = []
        self._gradients: list[tuple[Array, Array]] = []

    def forward(self, x: Array) -> tuple[Array, Callable[[Array], None]]:
        """Outputs `[N, …]` for inputs `[N, …]`, and what to call, once, with the gradient of a loss by these
        outputs."""
        views = self._current_views()
        free = self._free[len(x)]
        scratch = free.pop() if free else self._scratch(len(x))
        inputs = [x]
        for (weight, bias), y in zip(views, scratch.hidden, strict=False):
            np.dot(inputs[-1], weight.T, out=y)
            y += bias
            self._activation(y)
            inputs.append(y)
        weight, bias = views[-1]
        outputs = np.dot(inputs[-1], weight.T)
        outputs += bias
        return outputs, partial(self._backward, inputs, scratch)

    def __call__(self, x: Array) -> Tensor:
        """The same for torch: `backward()` on something computed of the outputs adds to `.grad`, as if torch had
        computed them; `torch.autograd.grad` does not see the weights."""
        outputs, back = self.forward(x)
        tensor = torch.from_numpy(outputs).requires_grad_()
        tensor.register_hook(lambda gradient: back(gradient.numpy()))  # type: ignore[no-untyped-call]
        return tensor

    def _backward(self, inputs: list[Array], scratch: Scratch, upstream: Array) -> None:
        gradients = self._current_gradients()
        for i in reversed(range(len(inputs))):
            (weight, bias), x = gradients[i], inputs[i]
            if self._replaces:
                np.dot(upstream.T, x, out=weight)
                np.dot(scratch.ones, upstream, out=bias)
            else:
                weight += np.dot(upstream.T, x)
                bias += np.dot(scratch.ones, upstream)
            if i:
                down, slope = scratch.gradients[i - 1], scratch.slope[i - 1]
                np.dot(upstream, self._views[i][0], out=down)
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

    def _current_gradients(self) -> list[tuple[Array, Array]]:
        """Those of weights and biases as arrays; somebody may have moved or dropped them."""
        first = self._layers[0].weight.grad
        if first is None or first.data_ptr() != self._gradients_at:
            self._gradients = [(_grad_of(layer.weight), _grad_of(layer.bias)) for layer in self._layers]
            self._gradients_at = cast(Tensor, self._layers[0].weight.grad).data_ptr()
        return self._gradients

    def _scratch(self, rows: int) -> Scratch:
        sizes = [layer.out_features for layer in self._layers[:-1]]
        hidden, gradients, slope = ([np.empty((rows, size), np.float32) for size in sizes] for _ in range(3))
        return Scratch(hidden, gradients, slope, np.ones(rows, np.float32))


def _grad_of(parameter: Tensor) -> Array:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    gradient: Array = parameter.grad.numpy()
    return gradient


def layers_of(network: nn.Module, replaces: bool = False) -> ArrayMLP:
    """The layers of a plain MLP whose head is a single one."""
    head = cast(Any, network).head
    last = head.linear if isinstance(head, PolicyValueHead) else head.outputs[0]
    _, trunk = flat_and_trunk(cast(Body, network))
    return ArrayMLP([*cast("list[nn.Linear]", list(trunk.layers)), last], trunk.activation, replaces)


def array_forward(network: nn.Module) -> Callable[[Array], tuple[Array, Callable[[Array], None]]] | None:
    """`ArrayMLP.forward` of what a plain actor-critic sees, whose gradients replace earlier ones; None where the
    network is something else."""
    if type(network) is not ActorCritic or not is_plain_mlp(network):
        return None
    layers, seen = layers_of(network, replaces=True), array_input(network)
    return lambda observation: layers.forward(seen(observation))
