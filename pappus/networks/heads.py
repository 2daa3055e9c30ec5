"""The last layers: features `[T, B, D]` to what a policy, a state or an action is worth."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from pappus.networks.torsos import orthogonal
from pappus.types import ActionSpec, ContinuousAction


class PolicyValueHead(nn.Module):
    """Policy parameters `[T, B, P]` as `ops.distributions` reads them, and values `[T, B]`, both float32.

    One linear layer computes both; the value is its last row. The policy's small gain makes the first policy nearly
    uniform. A continuous policy's log standard deviation is a parameter per action dimension, the same in all states,
    or `predicted` as the mean is.
    """

    def __init__(self, input_size: int, action: ActionSpec, predicted: bool = False) -> None:
        super().__init__()
        self.log_std: nn.Parameter | None = None
        if isinstance(action, ContinuousAction):
            size = math.prod(action.shape)
            self.policy_size = 2 * size if predicted else size
            self.log_std = None if predicted else nn.Parameter(torch.zeros(size))
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


class QHead(nn.Module):
    """Action values `[T, B, A, K]`, float32: K quantiles of each, or with K = 1 the value itself.

    Dueling (Wang et al. 2016): Q = V + A − mean A; V is the last row of the layer that computes both. With `hidden`
    units, each of the two streams has a layer of its own before.
    """

    def __init__(
        self, input_size: int, num_actions: int, dueling: bool = True, hidden: int = 0, quantiles: int = 1
    ) -> None:
        super().__init__()
        self.num_actions, self.dueling, self.quantiles = num_actions, dueling, quantiles
        streams = ("advantage", "value") if dueling else ("advantage",)
        self.hidden = nn.ModuleList(orthogonal(nn.Linear(input_size, hidden), math.sqrt(2)) for _ in streams if hidden)
        outputs = {"advantage": num_actions * quantiles, "value": quantiles}
        if hidden:
            self.outputs = nn.ModuleList(orthogonal(nn.Linear(hidden, outputs[name]), 0.1) for name in streams)
        else:
            self.outputs = nn.ModuleList([orthogonal(nn.Linear(input_size, sum(outputs[n] for n in streams)), 0.1)])

    def mixing(self) -> Tensor:
        """Dueling as a matrix `[A + 1, A]`, for K = 1: Q = (A, V) · M."""
        count = self.num_actions
        return torch.cat([torch.eye(count) - 1 / count, torch.ones(1, count)])

    def forward(self, features: Tensor) -> Tensor:
        if self.hidden:
            parts = [
                output(hidden(features).relu_()) for hidden, output in zip(self.hidden, self.outputs, strict=True)
            ]
            rows = torch.cat(parts, -1).float()
        else:
            rows = self.outputs[0](features).float()
        both: Tensor = rows.view(*rows.shape[:-1], -1, self.quantiles)
        if not self.dueling:
            return both
        advantage, value = both.narrow(-2, 0, self.num_actions), both.narrow(-2, self.num_actions, 1)
        return value + advantage - advantage.mean(-2, keepdim=True)
