"""What all networks share: frame stack → torso → core."""

from __future__ import annotations

from typing import Any

import optree
import torch
from torch import Tensor, nn

from pappus.networks.cores import Core
from pappus.networks.frame_stack import FrameStack
from pappus.networks.moments import RunningMoments
from pappus.types import ACTION_MASK, Nest


class Body(nn.Module):
    """From observations `[T, B, …]` to features `[T, B, D]`; single steps have T = 1.

    The recurrent state is (frames, core state), either of which may be `()`. It returns to its initial value
    wherever `first` is True, before that observation is consumed. An observation's `action_mask` does not enter
    the network: it masks what the network says. Outputs and states keep their dtypes in a bfloat16 copy too.
    """

    def __init__(self, torso: nn.Module, core: Core, frame_stack: FrameStack | None = None) -> None:
        super().__init__()
        self.frame_stack = frame_stack
        self.torso = torso
        self.core = core
        self.state_spec: Nest = (frame_stack.state_spec if frame_stack else (), core.state_spec)
        self._keeps_moments = any(isinstance(module, RunningMoments) for module in torso.modules())

    def initial_state(self, batch: int, device: torch.device | str | None = None) -> Nest:
        """The state before an episode, `[batch, …]`, on the parameters' device unless told."""
        device = next(self.parameters()).device if device is None else device
        return optree.tree_map(
            lambda leaf: torch.zeros(batch, *leaf.shape, dtype=getattr(torch, leaf.dtype), device=device),
            self.state_spec,
        )

    def features(self, observation: Nest, first: Tensor, state: Nest) -> tuple[Tensor, Tensor | None, Nest]:
        """Features, the action mask where there is one, and the state after the last step."""
        frames, core_state = state
        observation, mask = _split_mask(observation)
        if self.frame_stack is not None:
            observation, frames = self.frame_stack(observation, first, frames)
        features, core_state = self.core(self.torso(observation), first, core_state)
        return features, mask, (frames, core_state)

    def observe(self, observation: Nest, first: Tensor, state: Nest) -> None:
        """Count observations in, where the network keeps running moments of them."""
        for moments, rows in self.shown(observation, first, state):
            moments.update(rows)

    def shown(self, observation: Nest, first: Tensor, state: Nest) -> list[tuple[RunningMoments, Tensor]]:
        """What the network keeps running moments of, and which of the numbers that it sees each of them is of."""
        if not self._keeps_moments:
            return []
        observation, _ = _split_mask(observation)
        if self.frame_stack is not None:
            observation, _ = self.frame_stack(observation, first, state[0])
        torso: Any = self.torso
        found: list[tuple[RunningMoments, Tensor]] = torso.shown(observation)
        return found


def _split_mask(observation: Nest) -> tuple[Nest, Tensor | None]:
    if not isinstance(observation, dict) or ACTION_MASK not in observation:
        return observation, None
    rest = dict(observation)
    return rest, rest.pop(ACTION_MASK)
