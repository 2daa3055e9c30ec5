"""The network of DQN and its kin: a value for every action."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from pappus.networks.body import Body
from pappus.networks.cores import Core
from pappus.networks.frame_stack import FrameStack
from pappus.networks.heads import QHead
from pappus.types import Nest

FORBIDDEN = -1e9
"""The value of an action that the mask does not allow: finite, so that 0 times it is 0."""


class QOutput(NamedTuple):
    """Values `[T, B, A]` and what they are means of `[T, B, A, K]`, both float32, and the state after the last step."""

    q: Tensor
    quantiles: Tensor
    state: Nest


class QNetwork(Body):
    """A body with action values on top; an action mask forbids actions.

    Where it allows none (many envs show an empty mask with the last observation of an episode), every action is worth
    0: nothing can be done there, so nothing more is to be had, and no value of it is ever learnt.
    """

    def __init__(self, torso: nn.Module, core: Core, head: QHead, frame_stack: FrameStack | None = None) -> None:
        super().__init__(torso, core, frame_stack)
        self.head = head

    def forward(self, observation: Nest, first: Tensor, state: Nest) -> QOutput:
        """`observation [T, B, …]`, `first [T, B]` and the state before them."""
        features, mask, state = self.features(observation, first, state)
        quantiles = self.head(features)
        q = quantiles.mean(-1) if self.head.quantiles > 1 else quantiles.squeeze(-1)
        if mask is not None:
            allowed = mask.bool()
            anything = allowed.any(-1, keepdim=True)
            q = torch.where(allowed, q, torch.where(anything, FORBIDDEN, 0.0))
            quantiles = torch.where(anything.unsqueeze(-1), quantiles, 0.0)
        return QOutput(q, quantiles, state)
