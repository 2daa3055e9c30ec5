"""The network of actor-critics: a policy and a value of the same features."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn

from pappus.networks.body import Body
from pappus.networks.cores import Core
from pappus.networks.frame_stack import FrameStack
from pappus.networks.heads import PolicyValueHead
from pappus.ops.distributions import mask_logits
from pappus.types import Nest


class Output(NamedTuple):
    """Policy parameters `[T, B, P]` and values `[T, B]`, both float32, and the state after the last step."""

    policy: Tensor
    value: Tensor
    state: Nest


class ActorCritic(Body):
    """A body with a policy and a value on top; an action mask masks the policy's logits."""

    def __init__(
        self, torso: nn.Module, core: Core, head: PolicyValueHead, frame_stack: FrameStack | None = None
    ) -> None:
        super().__init__(torso, core, frame_stack)
        self.head = head

    def forward(self, observation: Nest, first: Tensor, state: Nest) -> Output:
        """`observation [T, B, …]`, `first [T, B]` and the state before them."""
        features, mask, state = self.features(observation, first, state)
        policy, value = self.head(features)
        if mask is not None:
            policy = mask_logits(policy, mask)
        return Output(policy, value, state)
