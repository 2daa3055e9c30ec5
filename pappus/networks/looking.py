"""A network's output for single observations out of replay, which have their frames stacked already."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import optree
import torch
from torch import Tensor, nn

from pappus.networks.acting import StepFunction, module_step, single_step
from pappus.types import ACTION_MASK, Nest


class Look:
    """`look(network, observation)`: the output for observations `[B, …]`, without time.

    Observations are stacks `[B, k, …]` where the network stacks frames; it must have no other memory. Without
    gradients the fastest way is taken, which a network's weights must stay in place for (`FlatParameters`).
    """

    def __init__(self) -> None:
        self._steps: WeakKeyDictionary[nn.Module, StepFunction] = WeakKeyDictionary()

    def __reduce__(self) -> tuple[type[Look], tuple[()]]:
        return Look, ()  # another process has networks of its own

    def __call__(self, network: nn.Module, observation: Nest) -> Any:
        inputs = _inputs(observation, getattr(network, "frame_stack", None) is not None)
        if torch.is_grad_enabled():
            return module_step(network)(*inputs)
        step = self._steps.get(network)
        if step is None:
            step = self._steps[network] = single_step(network)
        return step(*inputs)


def _inputs(observation: Nest, stacked: bool) -> tuple[Nest, Tensor, Nest]:
    """The newest frames, `first`, and the state, which is the frames before them."""
    leaf = optree.tree_leaves(observation)[0]
    first = torch.zeros(len(leaf), dtype=torch.bool, device=leaf.device)
    if not stacked:
        return observation, first, ((), ())
    seen = observation
    if isinstance(seen, dict) and ACTION_MASK in seen:
        seen = {key: leaf for key, leaf in seen.items() if key != ACTION_MASK}
    frames = optree.tree_map(lambda leaf: leaf[:, :-1], seen)
    return optree.tree_map(lambda leaf: leaf[:, -1], observation), first, (frames, ())
