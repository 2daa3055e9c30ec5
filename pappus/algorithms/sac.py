"""SAC, soft actor-critic with twin critics and an automatic temperature (Haarnoja et al. 2018): the backbone of CQL.

    critics        (r_t + … + γⁿ (min_i Q'_i(o', a') − α log π(a' | o')) − Q_i(o, a))²         a' ~ π(o')
    policy         α log π(ã | o) − min_i Q_i(o, ã)                                            ã ~ π(o), reparameterised
    temperature    −log α · (log π(ã | o) + target entropy)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from pappus.actions import continuous_only
from pappus.algorithms.policy_critics import CriticsConfig, PolicyCriticsAlgorithm, PolicyCriticsConfig, critic_loss
from pappus.config import NetworkConfig
from pappus.errors import UserError
from pappus.experience import LossOutput, Transition
from pappus.networks.modules import unlearning
from pappus.ops.distributions import SquashedGaussian
from pappus.types import EnvSpec


@dataclass(frozen=True)
class EntropyConfig(CriticsConfig):
    """What a policy earns that stays random."""

    temperature: float = 1.0
    """α at the start."""
    entropy_per_action: float = -1.0
    """The target entropy, in nats for each dimension of the action."""
    entropy_backup: bool = True
    """Whether the entropy of later actions counts as reward."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.temperature <= 0:
            raise UserError(f"algorithm.temperature={self.temperature} must be positive: it is learnt as a logarithm")


@dataclass(frozen=True)
class SACConfig(PolicyCriticsConfig, EntropyConfig):
    """Defaults are the paper's."""


class Draws(NamedTuple):
    """What the loss of a batch needs of the policy: parameters now (with gradients) and later `[B, P]`."""

    now: Tensor
    later: Tensor


class SAC(PolicyCriticsAlgorithm):
    """Continuous actions."""

    squash: ClassVar[bool] = True
    distribution: SquashedGaussian

    def __init__(self, config: EntropyConfig, env: EnvSpec, network: NetworkConfig) -> None:
        if reason := continuous_only(env.action):
            raise UserError(f"{type(self).__name__.lower()} {reason}")
        super().__init__(config, env, network)
        self.config = config

    @property
    def _temperature(self) -> float:
        return self.config.temperature

    def loss(self, network: Any, target: Any, batch: Transition, weight: Tensor, update: int) -> LossOutput:
        """The losses of critics, policy and temperature, each a weighted mean over the batch."""
        seen = network.see(batch.observation)
        now = network.policy(seen)
        with torch.no_grad():
            later = network.policy(network.see(batch.next_observation))
            goal = self._goal(network, target, batch, later)
        q_loss, error, scalars = self._critics(network, seen, batch, goal, weight, Draws(now, later))
        policy_loss, temperature_loss, log_prob = self._policy(network, seen, now, weight)
        scalars |= {"td_error": error.mean(), **self._policy_scalars(network, policy_loss, log_prob)}
        return LossOutput(q_loss + policy_loss + temperature_loss, scalars, error)

    def _goal(self, network: Any, target: Any, batch: Transition, later: Tensor) -> Tensor:
        action, log_prob = self.distribution.reparameterized(later)
        return self._goal_of(batch, target.q(target.see(batch.next_observation), action), network, log_prob)

    def _goal_of(self, batch: Transition, q_later: Tensor, network: Any, log_prob: Tensor) -> Tensor:
        """What critics learn, by the critics' values `[critics, B]` of later actions with these log-probabilities."""
        value = q_later.amin(0)
        if self.config.entropy_backup:
            value = value - network.log_temperature.detach().exp() * log_prob
        goal: Tensor = batch.reward + batch.discount * value
        return goal

    def _critics(
        self, network: Any, seen: Any, batch: Transition, goal: Tensor, weight: Tensor, draws: Draws
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The loss, the error of each item, and scalars."""
        q = network.q(seen, batch.action)
        loss, error = critic_loss(q, goal, weight)
        return loss, error, {"critic_loss": loss.detach(), "q": q.detach().mean()}

    def _policy(self, network: Any, seen: Any, params: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The policy's and the temperature's loss, and log-probabilities of the policy's own actions `[B]`."""
        action, log_prob = self.distribution.reparameterized(params)
        proposed = action.detach().requires_grad_()
        with torch.enable_grad(), unlearning(network):
            (slope,) = torch.autograd.grad(network.q(seen, proposed).amin(0).sum(), proposed)  # critics do not learn
        temperature = network.log_temperature.detach().exp()
        policy_loss = (weight * (temperature * log_prob - (action * slope).sum(-1))).mean()
        found = log_prob.detach()
        target_entropy = self.config.entropy_per_action * action.shape[-1]
        temperature_loss = -network.log_temperature * (weight * (found + target_entropy)).mean()
        return policy_loss, temperature_loss, found

    @staticmethod
    def _policy_scalars(network: Any, loss: Tensor, log_prob: Tensor) -> dict[str, Tensor]:
        return {
            "policy_loss": loss.detach(), "entropy": -log_prob.mean(),
            "temperature": network.log_temperature.detach().exp(),
        }
