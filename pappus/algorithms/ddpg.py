"""DDPG, and TD3 as options of it (Lillicrap et al. 2016, Fujimoto et al. 2018; Ape-X DPG: Horgan et al. 2018).

    G = r_t + γ r_{t+1} + … + γⁿ min_i Q'_i(o_{t+n}, π'(o_{t+n}) + ε)        ε: TD3's smoothing; i: its twin critics
    critics    w · (G − Q_i(o_t, a_t))²
    policy     follows ∂Q_1(o, a)/∂a at a = π(o), every `policy_delay` updates
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Generator, Tensor, nn

from pappus.actions import continuous_only
from pappus.algorithms.policy_critics import critic_loss
from pappus.config import AlgorithmConfig, NetworkConfig
from pappus.errors import UserError
from pappus.experience import LossOutput, TargetUpdates, Transition, Transitions, TransitionStats
from pappus.networks.build import build_twin_deterministic, own_network
from pappus.networks.modules import unlearning
from pappus.networks.q_networks import NOISE
from pappus.networks.steps import StepFunction
from pappus.ops.numpy_ops import LOG_SQRT_2PI
from pappus.types import Array, ArraySpec, EnvSpec, Nest, map_leaves

SCALAR = ArraySpec((), "float32")
FRESH_NOISE = "noise"
"""What is said beside what is stored for replay: the noise that was drawn for the action."""


@dataclass(frozen=True)
class NoiseConfig:
    """Exploration noise added to actions, in units of half their range."""

    kind: Literal["gaussian", "ou"] = "gaussian"
    """ou: correlated over time (Ornstein-Uhlenbeck), for envs that average fast changes out."""
    sigma: float = 0.1
    """Standard deviation of the env that explores most."""
    ladder: float = 1.0
    """σ of the env that explores least, as a share of `sigma`; 1: all the same."""
    spread: Literal["geometric", "even"] = "geometric"
    """How σ falls from the first env to the last: by the same factor from env to env, or by the same amount."""
    theta: float = 0.15
    """ou: how fast it returns to zero."""

    def __post_init__(self) -> None:
        if not (self.sigma >= 0 and 0 <= self.ladder <= 1 and 0 <= self.theta <= 1):
            raise UserError(
                f"noise.sigma={self.sigma} must not be negative, ladder={self.ladder} and theta={self.theta} lie "
                "between 0 and 1"
            )


@dataclass(frozen=True)
class DDPGConfig(AlgorithmConfig):
    """Defaults are DDPG's; the system `td3` has Fujimoto's."""

    discount: float = 0.99
    """γ."""
    n_step: int = 1
    """Rewards before the bootstrap."""
    twin: bool = False
    """Two critics, of whose targets the smaller one counts."""
    policy_delay: int = 1
    """Updates of the critics for every one of the policy."""
    smoothing: float = 0.0
    """Standard deviation of the noise on the target policy's actions."""
    smoothing_clip: float = 0.5
    """And its bound."""
    action_gradient_clip: float = 0.0
    """Bound on every ∂Q/∂a (Ape-X: 1); 0: none."""
    target_every: int = 1
    """Updates between two steps of the target network."""
    target_share: float = 0.005
    """Share of the network's weights that it takes over then; 1: all."""
    reward_scale: float = 1.0
    """Rewards are multiplied by it before they are learned from."""
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    """Exploration."""

    def __post_init__(self) -> None:
        for name in ("n_step", "policy_delay", "target_every"):
            if getattr(self, name) < 1:
                raise UserError(f"algorithm.{name}={getattr(self, name)} must be at least 1")
        if self.smoothing < 0 or self.smoothing_clip < 0 or self.action_gradient_clip < 0:
            raise UserError(
                f"algorithm.smoothing={self.smoothing}, smoothing_clip={self.smoothing_clip} and action_gradient_clip="
                f"{self.action_gradient_clip} must not be negative; 0 does without"
            )
        if not 0 < self.target_share <= 1:
            raise UserError(f"algorithm.target_share={self.target_share} must lie above 0 and up to 1")


class DDPG:
    """Acts with noise, learns from transitions. It records Q of the action, Q of the action without noise, and σ."""

    behaviour: ClassVar[dict[str, ArraySpec]] = {"q": SCALAR, "value": SCALAR, "sigma": SCALAR}

    def __init__(self, config: DDPGConfig, env: EnvSpec, network: NetworkConfig) -> None:
        if reason := continuous_only(env.action):
            raise UserError(f"{type(self).__name__.lower()} {reason}")
        self.config, self.env, self.network_config = config, env, network
        self.experience = Transitions(config.n_step, config.discount, config.reward_scale)
        self.target_updates = TargetUpdates(config.target_every, config.target_share)
        self.part_delays = (config.policy_delay, 1)

    def build_network(self) -> nn.Module:
        return own_network(self.env, self.network_config) or build_twin_deterministic(
            self.env, self.network_config, 2 if self.config.twin else 1, self.config.noise.kind == "ou"
        )

    def exploration(self, envs: Array, of: int, steps: int) -> Array:
        """σ of the envs with these indices among `of` envs, `[N]`."""
        noise = self.config.noise
        share = envs / (of - 1) if of > 1 else np.zeros(len(envs))
        falls = noise.ladder**share if noise.spread == "geometric" else 1 - share * (1 - noise.ladder)
        return (noise.sigma * falls).astype(np.float32)

    def act(
        self, step: StepFunction, observation: Nest, first: Tensor, state: Nest, generator: Generator | None,
        exploration: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor], Nest]:
        """Noisy actions for tensors `[N, …]`; without a generator, actions without noise."""
        if generator is None or exploration is None:
            action, q, value, _ = step(observation, first, state)
            return action, {"q": q, "value": value, "sigma": torch.zeros_like(q)}, state
        fresh, noise, state = self._noise(first, state, generator, exploration)
        action, q, value, _ = step({"observation": observation, NOISE: noise}, first, state)
        return action, {"q": q, "value": value, "sigma": exploration, FRESH_NOISE: fresh}, state

    def behaviour_log_prob(self, behaviour: Mapping[str, Array], allowed: Array) -> Array | None:
        """The log-density of the noise that was drawn; that the action was clipped to its bounds is left out."""
        if FRESH_NOISE not in behaviour or not self.config.noise.sigma * self.config.noise.ladder:
            return None  # without noise an action has no density
        sigma = behaviour["sigma"]
        noise = behaviour[FRESH_NOISE].reshape(*sigma.shape, -1)
        scaled = np.square(noise / sigma[..., None]).sum(-1)
        log_prob: Array = -0.5 * scaled - noise.shape[-1] * (np.log(sigma) + LOG_SQRT_2PI)
        return log_prob

    def _noise(self, first: Tensor, state: Nest, generator: Generator, sigma: Tensor) -> tuple[Tensor, Tensor, Nest]:
        """What is drawn for every env, the noise that it makes, and that noise's next state."""
        shape = (len(first), *self.env.action.array.shape)
        width = (-1, *[1] * (len(shape) - 1))
        fresh = torch.randn(shape, generator=generator, device=first.device) * sigma.view(width)
        if self.config.noise.kind == "gaussian":
            return fresh, fresh, state
        kept = torch.where(first.view(width), 0.0, state * (1 - self.config.noise.theta))
        return fresh, kept + fresh, kept + fresh

    def initial_priority(self, steps: TransitionStats) -> Array:
        """|δ|, with the actor's own networks in place of the target ones."""
        goal = steps.reward + steps.discount * steps.next_behaviour["value"]
        priority: Array = np.abs(goal - steps.behaviour["q"])
        return priority

    def loss(self, network: Any, target: Any, batch: Transition, weight: Tensor, update: int) -> LossOutput:
        """The critics' weighted squared error and, when it is its turn, the policy's loss. Actions are those that the
        env took: a policy in the data may have said more than its bounds allow."""
        batch = batch._replace(action=batch.action.clamp(-1.0, 1.0))
        seen = map_leaves(lambda leaf: leaf.unsqueeze(0), batch.observation)
        loss, error, scalars = self._critics(network, target, seen, batch, weight)
        if update % self.config.policy_delay == 0:
            loss = loss + self._policy_loss(network, seen, batch)
        return LossOutput(loss, scalars, error)

    def _critics(
        self, network: Any, target: Any, seen: Nest, batch: Transition, weight: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The loss, the error of each item, and scalars."""
        with torch.no_grad():
            goal = self._goal(target, batch)
        values = torch.stack(network.judge(seen, batch.action.flatten(1).unsqueeze(0))).squeeze(1)
        loss, error = critic_loss(values, goal, weight)
        return loss, error, {"critic_loss": loss.detach(), "q": values[0].detach().mean(), "td_error": error.mean()}

    def _goal(self, target: Any, batch: Transition) -> Tensor:
        _, value = self._next(target, batch)
        goal: Tensor = batch.reward + batch.discount * value
        return goal

    def _next(self, target: Any, batch: Transition) -> tuple[Tensor, Tensor]:
        """The target policy's next actions `[B, A]`, and their values `[B]`."""
        later, action = self._next_action(target, batch)
        return action.squeeze(0), torch.stack(target.judge(later, action)).amin(0).squeeze(0)

    def _next_action(self, target: Any, batch: Transition) -> tuple[Nest, Tensor]:
        """The next observations `[1, B, …]`, and the target policy's actions there `[1, B, A]`."""
        later = map_leaves(lambda leaf: leaf.unsqueeze(0), batch.next_observation)
        action = target.policy(later)
        if self.config.smoothing:
            bound = self.config.smoothing_clip
            noise = (torch.randn_like(action) * self.config.smoothing).clamp(-bound, bound)
            action = (action + noise).clamp(-1.0, 1.0)
        return later, action

    def _policy_loss(self, network: Any, seen: Nest, batch: Transition) -> Tensor:
        """Its gradient is −∂Q/∂a · ∂π/∂θ; the critics are judges here, and do not learn from it."""
        action: Tensor = network.policy(seen)
        slope, _ = self._slope(network, seen, action)
        return -(action * slope).sum(-1).mean()

    def _slope(self, network: Any, seen: Nest, action: Tensor) -> tuple[Tensor, Tensor]:
        """∂Q/∂a at the policy's actions `[1, B, A]`, and Q there `[1, B]`."""
        proposed = action.detach().requires_grad_()
        with unlearning(network):
            value = self._judged(network, seen, proposed)
        (slope,) = torch.autograd.grad(value.sum(), proposed)
        bound = self.config.action_gradient_clip
        return slope.clamp(-bound, bound) if bound else slope, value.detach()

    def _judged(self, network: Any, seen: Nest, action: Tensor) -> Tensor:
        """The value `[1, B]` that the policy climbs: that of the first critic."""
        value: Tensor = network.q(seen, action)
        return value
