"""V-trace actor-critic: IMPALA's loss (Espeholt et al. 2018, sections 4.1 and 4.2).

The actor's policy μ lags behind the learner's π. V-trace corrects the value targets by truncated importance weights
ρ_t = min(ρ̄, π/μ) and c_t = λ·min(c̄, π/μ); the policy gradient is weighted by ρ_t too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from pappus.algorithms.actor_critic import ActorCriticAlgorithm
from pappus.config import AlgorithmConfig, NetworkConfig
from pappus.errors import UserError
from pappus.ops.losses import actor_critic_loss, policy_gradient_loss, value_loss
from pappus.ops.vtrace import vtrace
from pappus.types import EnvSpec, Unroll


@dataclass(frozen=True)
class VTraceConfig(AlgorithmConfig):
    """Defaults are the paper's (table G.1), except that the loss is a mean, independent of the batch size."""

    discount: float = 0.99
    """γ."""
    baseline_cost: float = 0.5
    """Weight of the value loss."""
    entropy_cost: float = 0.01
    """Weight of the entropy bonus."""
    rho_clip: float = 1.0
    """ρ̄: clips the importance weights; determines the policy whose value is learned."""
    c_clip: float = 1.0
    """c̄: clips the trace weights; limits how far corrections propagate back."""
    trace_lambda: float = 1.0
    """λ: 1 gives n-step targets on-policy, 0 one-step targets."""
    epochs: int = 1
    """Updates per batch; V-trace corrects for the policy change of the earlier ones."""
    reduction: Literal["mean", "sum"] = "mean"
    """Reduction over the steps of a batch; the paper uses sum, with its learning rate."""
    reward_scale: float = 1.0
    """Factor on rewards for learning."""

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise UserError(f"algorithm.epochs={self.epochs} must be at least 1")


class VTrace(ActorCriticAlgorithm):
    """How to act comes from the actor-critic; this is how to learn."""

    weights_advantages: ClassVar[bool] = True
    """Whether advantages are multiplied by min(ρ̄, π/μ); not where the policy's loss holds π/μ itself."""

    def __init__(self, config: VTraceConfig, env: EnvSpec, network: NetworkConfig) -> None:
        super().__init__(env, network)
        self.config, self.reduction, self.epochs = config, config.reduction, config.epochs

    def loss(self, network: torch.nn.Module, batch: Unroll) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Policy loss + baseline_cost · value loss − entropy_cost · entropy, over valid steps."""
        config, valid = self.config, batch.valid
        output = network(batch.observation, batch.first, batch.state)
        policy, value = output.policy[:-1], output.value
        log_prob, entropy = self.distribution.log_prob_and_entropy(policy, batch.action)
        log_ratio = log_prob - batch.behaviour["log_prob"]
        returns = vtrace(
            value.detach(), batch.reward * config.reward_scale, batch.discount * config.discount,
            log_ratio.detach().exp(), valid, rho_clip=config.rho_clip, c_clip=config.c_clip,
            pg_rho_clip=config.rho_clip if self.weights_advantages else None, lam=config.trace_lambda,
        )
        actor = self._policy_loss(log_prob, log_ratio, returns.pg_advantage, valid)
        return actor_critic_loss(
            actor, value_loss(value[:-1], returns.target), entropy, valid,
            baseline_cost=config.baseline_cost, entropy_cost=config.entropy_cost, reduction=config.reduction,
        )

    def _policy_loss(self, log_prob: Tensor, log_ratio: Tensor, advantage: Tensor, valid: Tensor) -> Tensor:
        return policy_gradient_loss(log_prob, advantage)
