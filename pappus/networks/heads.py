"""The last layer: features `[T, B, D]` to the parameters of the policy and the value of the state."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pappus.types import ActionSpec, ContinuousAction


class PolicyValueHead(nn.Module):
    """Policy parameters `[T, B, P]` as `ops.distributions` reads them, and values `[T, B]`, both float32.

    One linear layer computes both; the value is its last row. The policy's small gain makes the first policy nearly
    uniform. A continuous policy's log standard deviation is a parameter per action dimension, the same in all states.
    """

    def __init__(self, input_size: int, action: ActionSpec) -> None:
        super().__init__()
        self.log_std: nn.Parameter | None = None
        if isinstance(action, ContinuousAction):
            self.policy_size = math.prod(action.shape)
            self.log_std = nn.Parameter(torch.zeros(self.policy_size))
        else:
            self.policy_size = action.mask_size
        self.linear = nn.Linear(input_size, self.policy_size + 1)
        nn.init.orthogonal_(self.linear.weight[:-1], 0.01)
        nn.init.orthogonal_(self.linear.weight[-1:], 1.0)
        nn.init.zeros_(self.linear.bias)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        both = self.linear(features).float()
        policy, value = both.narrow(-1, 0, self.policy_size), both.select(-1, self.policy_size)
        if self.log_std is not None:
            policy = torch.cat([policy, self.log_std.float().expand_as(policy)], -1)
        return policy, value
