"""IQL, implicit Q-learning (Kostrikov et al. 2021): the value of the best actions in the data, asked of no others.

    value      |τ − 1(u < 0)| u², u = min_i Q'_i(o, a) − V(o)                  expectile regression
    critics    (r_t + … + γⁿ V(o_{t+n}) − Q_i(o, a))²
    policy     −min(exp(β u), 100) log π(a | o)                                advantage-weighted regression
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pappus.algorithms.policy_critics import (
    PolicyCriticsAlgorithm,
    PolicyCriticsConfig,
    advantage_weights,
    critic_loss,
)
from pappus.config import NetworkConfig
from pappus.errors import UserError
from pappus.experience import LossOutput, Transition
from pappus.types import EnvSpec


@dataclass(frozen=True)
class IQLConfig(PolicyCriticsConfig):
    """Defaults are the paper's for locomotion."""

    expectile: float = 0.7
    """τ: 0.5 evaluates the behaviour policy; values near 1 approach its best actions."""
    beta: float = 3.0
    """β: how strongly actions with a higher advantage are preferred; 0 clones the behaviour policy."""
    largest_weight: float = 100.0
    """Bound on exp(β · advantage)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.expectile < 1:
            raise UserError(f"algorithm.expectile={self.expectile} must lie between 0 and 1; the paper has 0.7 or 0.9")
        if self.beta < 0 or self.largest_weight <= 0:
            raise UserError(
                f"algorithm.beta={self.beta} must not be negative, and largest_weight={self.largest_weight} must be "
                "positive"
            )


class IQL(PolicyCriticsAlgorithm):
    """Continuous and discrete actions."""

    value: ClassVar[bool] = True

    def __init__(self, config: IQLConfig, env: EnvSpec, network: NetworkConfig) -> None:
        super().__init__(config, env, network)
        self.config = config

    def loss(self, network: Any, target: Any, batch: Transition, weight: Tensor, update: int) -> LossOutput:
        """The three losses, each a weighted mean over the batch; no part is trained by another's."""
        config, seen = self.config, network.see(batch.observation)
        with torch.no_grad():
            judged = target.q(target.see(batch.observation), batch.action).amin(0)
            goal = batch.reward + batch.discount * network.value(network.see(batch.next_observation))
        value = network.value(seen)
        value_loss = (weight * expectile_loss(judged - value, config.expectile)).mean()
        q = network.q(seen, batch.action)
        q_loss, error = critic_loss(q, goal, weight)
        advantage = judged - value.detach()
        share = advantage_weights(advantage, config.beta, config.largest_weight)
        log_prob = self.distribution.log_prob(network.policy(seen), self._within_bounds(batch.action))
        policy_loss = -(weight * share * log_prob).mean()
        return LossOutput(value_loss + q_loss + policy_loss, {
            "critic_loss": q_loss.detach(), "q": q.detach().mean(), "td_error": error.mean(),
            "value_loss": value_loss.detach(), "value": value.detach().mean(), "policy_loss": policy_loss.detach(),
            "advantage_weight": share.mean(),
        }, error)


def expectile_loss(error: Tensor, expectile: float) -> Tensor:
    """|τ − 1(u < 0)| u², elementwise: its minimum over V of u = x − V is the τ-expectile of x."""
    return torch.where(error < 0, 1 - expectile, expectile) * error.square()
