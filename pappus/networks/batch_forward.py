"""A network's output for single observations out of replay, which have their frames stacked already."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import optree
import torch
from torch import Tensor, nn

from pappus.networks.acting import StepFunction, learning_step, single_step
from pappus.types import ACTION_MASK, Nest


class BatchForward:
    """`look(network, observation)`: the output for observations `[B, …]`, without time.

    Observations are stacks `[B, k, …]` where the network stacks frames; it must have no other memory. The fastest way
    is taken, which a network's weights must stay in place for (`FlatParameters`).
    """

    def __init__(self) -> None:
        self._steps: WeakKeyDictionary[nn.Module, tuple[StepFunction, StepFunction]] = WeakKeyDictionary()
        """Without gradients, and with them."""
        self._first: dict[tuple[int, torch.device], Tensor] = {}
        """Kept: a captured graph looks for them where they were."""

    def __reduce__(self) -> tuple[type[BatchForward], tuple[()]]:
        return BatchForward, ()  # another process has networks of its own

    def __call__(self, network: nn.Module, observation: Nest) -> Any:
        steps = self._steps.get(network)
        if steps is None:
            steps = self._steps[network] = (single_step(network), learning_step(network))
        inputs = self._inputs(observation, getattr(network, "frame_stack", None) is not None)
        return steps[torch.is_grad_enabled()](*inputs)

    def _inputs(self, observation: Nest, stacked: bool) -> tuple[Nest, Tensor, Nest]:
        """The newest frames, `first`, and the state, which is the frames before them."""
        leaf = observation if isinstance(observation, Tensor) else optree.tree_leaves(observation)[0]
        key = len(leaf), leaf.device
        first = self._first.get(key)
        if first is None:
            first = self._first[key] = torch.zeros(len(leaf), dtype=torch.bool, device=leaf.device)
        if not stacked:
            return observation, first, ((), ())
        seen = observation
        if isinstance(seen, dict) and ACTION_MASK in seen:
            seen = {key: leaf for key, leaf in seen.items() if key != ACTION_MASK}
        frames = optree.tree_map(lambda leaf: leaf[:, :-1], seen)
        return optree.tree_map(lambda leaf: leaf[:, -1], observation), first, (frames, ())


def stacked(network: Any, observation: Nest, first: Tensor, state: Nest) -> Nest:
    """Observations `[T, B, …]` as `BatchForward` takes them, still with time: of a network that stacks frames, the stacks."""
    frame_stack = getattr(network, "frame_stack", None)
    if frame_stack is None:
        return observation
    if not isinstance(observation, dict) or ACTION_MASK not in observation:
        return frame_stack(observation, first, state[0])[0]
    seen = {key: leaf for key, leaf in observation.items() if key != ACTION_MASK}
    return {**frame_stack(seen, first, state[0])[0], ACTION_MASK: observation[ACTION_MASK].unsqueeze(2)}
