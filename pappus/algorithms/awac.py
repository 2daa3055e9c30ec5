"""AWAC, advantage-weighted actor-critic (Nair et al. 2020): clone what is better than the policy.

    critics    (r_t + … + γⁿ min_i Q'_i(o', a') − Q_i(o, a))²       a' ~ π(o')
    policy     −min(exp(A / λ), 100) log π(a | o)                   A = min_i Q_i(o, a) − min_i Q_i(o, ã), ã ~ π(o)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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
class AWACConfig(PolicyCriticsConfig):
    """Defaults are the paper's."""

    awac_lambda: float = 1.0
    """λ: smaller values prefer actions with a higher advantage more strongly."""
    largest_weight: float = 100.0
    """Bound on exp(advantage / λ)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.awac_lambda <= 0 or self.largest_weight <= 0:
            raise UserError(
                f"algorithm.awac_lambda={self.awac_lambda} and largest_weight={self.largest_weight} must be positive"
            )


class AWAC(PolicyCriticsAlgorithm):
    """Continuous and discrete actions."""

    def __init__(self, config: AWACConfig, env: EnvSpec, network: NetworkConfig) -> None:
        super().__init__(config, env, network)
        self.config = config

    def loss(self, network: Any, target: Any, batch: Transition, weight: Tensor, update: int) -> LossOutput:
        """The critics' and the policy's loss, each a weighted mean over the batch."""
        config, seen = self.config, network.see(batch.observation)
        policy = network.policy(seen)
        q = network.q(seen, batch.action)
        with torch.no_grad():
            goal = batch.reward + batch.discount * self._next_value(network, target, batch)
            own, _ = self.distribution.sample_with_log_prob(policy)
            advantage = q.amin(0) - network.q(seen, own).amin(0)
            share = advantage_weights(advantage, 1 / config.awac_lambda, config.largest_weight)
        q_loss, error = critic_loss(q, goal, weight)
        log_prob = self.distribution.log_prob(policy, self._within_bounds(batch.action))
        policy_loss = -(weight * share * log_prob).mean()
        return LossOutput(q_loss + policy_loss, {
            "critic_loss": q_loss.detach(), "q": q.detach().mean(), "td_error": error.mean(),
            "policy_loss": policy_loss.detach(), "advantage_weight": share.mean(),
        }, error)

    def _next_value(self, network: Any, target: Any, batch: Transition) -> Tensor:
        action, _ = self.distribution.sample_with_log_prob(network.policy(network.see(batch.next_observation)))
        value: Tensor = target.q(target.see(batch.next_observation), action).amin(0)
        return value
