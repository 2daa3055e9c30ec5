"""A network without its time dimension: one step for actors, one batch of rows for learners; and unrolled.

The fastest way is taken: NumPy for plain MLPs on a CPU (`numpy_mlp`), the module itself for everything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import optree
import torch
from torch import Tensor, nn

from pappus.experience import Sequence
from pappus.networks.modules import ActorCritic, Body, split_mask
from pappus.networks.numpy_mlp import numpy_mlp
from pappus.networks.q_networks import QNetwork
from pappus.types import ACTION_MASK, Nest, map_leaves

StepFunction: TypeAlias = Callable[[Nest, Tensor, Nest], Any]
"""(observation `[N, …]`, first `[N]`, state) → the network's output without its time dimension."""


def module_step(network: nn.Module) -> StepFunction:
    """The module itself, for one step."""

    def step(observation: Nest, first: Tensor, state: Nest) -> Any:
        timed = optree.tree_map(lambda leaf: leaf.unsqueeze(0), observation)
        *values, state = output = network(timed, first.unsqueeze(0), state)
        return type(output)(*(value.squeeze(0) for value in values), state)

    return step


def single_step(network: nn.Module, learns: bool = False) -> StepFunction:
    """The fastest way to run `network` for one step; with gradients, where it `learns`: its parameters must then stay
    the same tensors."""
    mlp, module = numpy_mlp(network), module_step(network)
    if mlp is None:
        return module

    def step(observation: Nest, first: Tensor, state: Nest) -> Any:
        if not isinstance(observation, Tensor) or (learns and torch.is_autocast_enabled("cpu")):
            return module(observation, first, state)  # an action mask came with it, or another precision is wanted
        if learns:
            return mlp.learn(observation.numpy(), state)
        output = mlp(observation.numpy())
        return type(output)(*map(torch.from_numpy, output[:-1]), state)

    return step


class BatchForward:
    """`forward(network, observation)`: the output for observations `[B, …]` without time, as replay delivers them.

    Observations are stacks `[B, k, …]` where the network stacks frames; it must have no other memory.
    """

    def __init__(self) -> None:
        self._steps: WeakKeyDictionary[nn.Module, tuple[StepFunction, StepFunction]] = WeakKeyDictionary()
        """Without gradients, and with them."""
        self._first: dict[tuple[int, torch.device], Tensor] = {}
        """Kept, since a captured graph reads them at a fixed address."""

    def __reduce__(self) -> tuple[type[BatchForward], tuple[()]]:
        return BatchForward, ()  # another process has networks of its own

    def __call__(self, network: nn.Module, observation: Nest) -> Any:
        steps = self._steps.get(network)
        if steps is None:
            steps = self._steps[network] = (single_step(network), single_step(network, learns=True))
        return steps[torch.is_grad_enabled()](*self._inputs(network, observation))

    def _inputs(self, network: nn.Module, observation: Nest) -> tuple[Nest, Tensor, Nest]:
        """Observation, `first` and state. A network of ours takes stacks as they are, any other the newest frames and a
        state, which is the frames before them."""
        leaf = observation if isinstance(observation, Tensor) else optree.tree_leaves(observation)[0]
        key = len(leaf), leaf.device
        first = self._first.get(key)
        if first is None:
            first = self._first[key] = torch.zeros(len(leaf), dtype=torch.bool, device=leaf.device)
        if getattr(network, "frame_stack", None) is None:
            return observation, first, ((), ())
        stacks, mask = split_mask(observation)
        if _is_ours(network):
            return stacks if mask is None else {**stacks, ACTION_MASK: mask[:, -1]}, first, (None, ())
        frames = optree.tree_map(lambda leaf: leaf[:, :-1], stacks)
        return optree.tree_map(lambda leaf: leaf[:, -1], observation), first, (frames, ())


def _is_ours(network: nn.Module) -> bool:
    """Whether the network is one of ours, whose forward pass nobody has changed."""
    kind: Any = type(network)
    if not isinstance(network, Body) or "forward" in vars(network):
        return False
    return kind.features is Body.features and kind.forward in (ActorCritic.forward, QNetwork.forward)


def unroll_after_burn_in(network: nn.Module, batch: Sequence, burn_in: int, state: Nest | None = None) -> Any:
    """The network's output for the steps of a sequence after the first `burn_in`, which only make the state fresh.
    `state` is the one to begin with, where it is not the batch's. A sequence is of one episode, which may begin in the
    burn-in or right after it: our own networks are told that it does not begin later."""
    state = batch.state if state is None else state
    first = batch.first[burn_in : burn_in + 1] if _is_ours(network) else batch.first[burn_in:]
    if burn_in:
        with torch.no_grad():
            before = map_leaves(lambda leaf: leaf[:burn_in], batch.observation)
            state = network(before, batch.first[:burn_in], state).state
    return network(map_leaves(lambda leaf: leaf[burn_in:], batch.observation), first, state)


def stacked(network: Any, observation: Nest, first: Tensor, state: Nest) -> Nest:
    """Observations `[T, B, …]` as `BatchForward` takes them, still with time: stacks if the network stacks frames."""
    frame_stack = getattr(network, "frame_stack", None)
    if frame_stack is None:
        return observation
    observation, mask = split_mask(observation)
    stacks, _ = frame_stack(observation, first, state[0])
    return stacks if mask is None else {**stacks, ACTION_MASK: mask.unsqueeze(2)}
