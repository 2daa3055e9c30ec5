"""What SAC, CrossQ, CQL, IQL and AWAC share: a stochastic policy that acts by itself, and critics of transitions.

    G = r_t + γ r_{t+1} + … + γⁿ V(o_{t+n})          V is the method's own
    critics    w · Σ_i (G − Q_i(o_t, a_t))²
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Generator, Tensor, nn

from pappus.config import AlgorithmConfig, NetworkConfig
from pappus.errors import UserError
from pappus.experience import TargetUpdates, Transitions, TransitionStats
from pappus.networks.build import build_policy_critics, own_network
from pappus.networks.steps import StepFunction
from pappus.ops.distributions import distribution_for
from pappus.types import Array, ArraySpec, ContinuousAction, EnvSpec, Nest


@dataclass(frozen=True)
class CriticsConfig(AlgorithmConfig):
    """What all of them have."""

    discount: float = 0.99
    """γ."""
    n_step: int = 1
    """Steps of the return before bootstrapping."""
    reward_scale: float = 1.0
    """Factor on rewards for learning."""

    def __post_init__(self) -> None:
        if self.n_step < 1:
            raise UserError(f"algorithm.n_step={self.n_step} must be at least 1")

    @property
    def target_updates(self) -> TargetUpdates | None:
        """How a target network follows; None: there is none."""
        return None


@dataclass(frozen=True)
class PolicyCriticsConfig(CriticsConfig):
    """With a target network."""

    target_every: int = 1
    """Updates between steps of the target network."""
    target_share: float = 0.005
    """Soft update of the target network: share of the new weights; 1: a full copy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target_every < 1:
            raise UserError(f"algorithm.target_every={self.target_every} must be at least 1")
        if not 0 < self.target_share <= 1:
            raise UserError(f"algorithm.target_share={self.target_share} must lie above 0 and up to 1")

    @property
    def target_updates(self) -> TargetUpdates | None:
        return TargetUpdates(self.target_every, self.target_share)


class PolicyCriticsAlgorithm:
    """Samples its policy's actions. Replay draws uniformly: nothing is recorded that a priority could be made of."""

    behaviour: ClassVar[dict[str, ArraySpec]] = {"log_prob": ArraySpec((), "float32")}
    part_delays: tuple[int, ...] = (1,)
    squash: ClassVar[bool] = False
    """A normal distribution through a tanh; otherwise a normal one around a mean between the bounds."""
    value: ClassVar[bool] = False
    """Whether the network learns V(o), too."""

    def __init__(self, config: CriticsConfig, env: EnvSpec, network: NetworkConfig) -> None:
        self.env, self.network_config = env, network
        self.experience = Transitions(config.n_step, config.discount, config.reward_scale)
        self.target_updates = config.target_updates
        self.distribution = distribution_for(env.action, self.squash)
        self._bounded = isinstance(env.action, ContinuousAction)

    def build_network(self) -> nn.Module:
        return own_network(self.env, self.network_config) or build_policy_critics(
            self.env, self.network_config, squash=self.squash, value=self.value, temperature=self._temperature
        )

    @property
    def _temperature(self) -> float:
        """Where the network's temperature begins; 0: it has none."""
        return 0.0

    def exploration(self, envs: Array, of: int, steps: int) -> Array:
        """Nothing: the policy explores by itself."""
        return np.zeros(len(envs), np.float32)

    def act(
        self, step: StepFunction, observation: Nest, first: Tensor, state: Nest, generator: Generator | None,
        exploration: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor], Nest]:
        """Sampled actions for tensors `[N, …]`, within their bounds; the mode without a generator."""
        params, state = step(observation, first, state)
        if generator is None:
            action = self._within_bounds(self.distribution.mode(params))
            return action, {"log_prob": self.distribution.log_prob(params, action)}, state
        action, log_prob = self.distribution.sample_with_log_prob(params, generator)
        if self._bounded:  # the probability recorded is that of the action recorded
            action = self._within_bounds(action)
            log_prob = self.distribution.log_prob(params, action)
        return action, {"log_prob": log_prob}, state

    def _within_bounds(self, action: Tensor) -> Tensor:
        """Continuous actions as envs take them."""
        return action.clamp(-1.0, 1.0) if self._bounded else action

    def initial_priority(self, steps: TransitionStats) -> Array:
        """One: for tables that draw uniformly."""
        return np.ones(len(steps.reward))


def critic_loss(q: Tensor, goal: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """The critics' weighted squared errors, summed over critics `[N, B]`, and the mean |error| of each item `[B]`."""
    error = q - goal
    return torch.mv(error.square(), weight).sum() / len(goal), error.detach().abs().mean(0)


def advantage_weights(advantage: Tensor, scale: float, bound: float) -> Tensor:
    """exp(scale · A) up to a bound: how much an action of the data is cloned, `[B]` (Nair et al. 2020)."""
    return (scale * advantage).exp().clamp(max=bound)
