"""Advantage actor-critic: the loss of A3C (Mnih et al. 2016, section 4) and of its synchronous sibling, A2C.

The data is on-policy: the weights that acted are those whose gradient is taken. With λ = 1 the advantage of a step is
the longest n-step return that its unroll holds minus the value, as in the paper; smaller λ give generalised advantage
estimation (Schulman et al. 2016).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from pappus.algorithms.actor_critic import ActorCriticAlgorithm
from pappus.config import AlgorithmConfig, NetworkConfig
from pappus.errors import UserError
from pappus.ops.losses import actor_critic_loss, normalised, policy_gradient_loss, value_loss
from pappus.ops.returns import gae
from pappus.types import EnvSpec, Unroll


@dataclass(frozen=True)
class A2CConfig(AlgorithmConfig):
    """Defaults are the paper's, except that the loss is a mean, independent of the number of envs."""

    discount: float = 0.99
    """γ."""
    gae_lambda: float = 1.0
    """λ: 1 gives n-step returns, 0 one-step returns."""
    baseline_cost: float = 0.5
    """Weight of the value loss."""
    entropy_cost: float = 0.01
    """Weight of the entropy bonus."""
    normalize_advantage: bool = False
    """Normalise the advantages of a batch to mean 0 and deviation 1."""
    reduction: Literal["mean", "sum"] = "mean"
    """Reduction over the steps of a batch; the paper uses sum, with its learning rate."""
    reward_scale: float = 1.0
    """Factor on rewards for learning."""


class A2C(ActorCriticAlgorithm):
    """How to act comes from the actor-critic; this is how to learn."""

    def __init__(self, config: A2CConfig, env: EnvSpec, network: NetworkConfig) -> None:
        super().__init__(env, network)
        if not 0 <= config.gae_lambda <= 1:
            raise UserError(f"algorithm.gae_lambda={config.gae_lambda} must lie between 0 and 1")
        self.config, self.reduction = config, config.reduction

    def loss(self, network: torch.nn.Module, batch: Unroll) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Policy gradient + baseline_cost · value loss − entropy_cost · entropy, over valid steps."""
        config, valid = self.config, batch.valid
        output = network(batch.observation, batch.first, batch.state)
        policy, value = output.policy[:-1], output.value
        log_prob, entropy = self.distribution.log_prob_and_entropy(policy, batch.action)
        advantage = gae(
            value.detach(), batch.reward * config.reward_scale, batch.discount * config.discount, valid,
            lam=config.gae_lambda,
        )
        target = advantage + value[:-1].detach()
        if config.normalize_advantage:
            advantage = normalised(advantage, valid)
        return actor_critic_loss(
            policy_gradient_loss(log_prob, advantage), value_loss(value[:-1], target), entropy, valid,
            baseline_cost=config.baseline_cost, entropy_cost=config.entropy_cost, reduction=config.reduction,
        )
