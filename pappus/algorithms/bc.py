"""Behaviour cloning: the policy under which the actions of a data set are likely (Pomerleau 1988).

    discrete      loss = −log π(a | o)
    continuous    loss = mean_i (tanh μ_i(o) − a_i)²        or, with policy=gaussian, −log N(a; μ(o), σ)

Filtered BC (10 %BC in Chen et al. 2021) is the same on the episodes with the highest returns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Generator, Tensor, nn

from pappus.algorithms.actor_critic import ActorCriticAlgorithm
from pappus.config import AlgorithmConfig, NetworkConfig
from pappus.core import ReplayArrayLoss
from pappus.errors import UserError
from pappus.experience import Experience, LossOutput, Sequence, Sequences, Transition, Transitions
from pappus.networks.build import build_actor_critic, own_network
from pappus.networks.modules import ActorCritic
from pappus.networks.numpy_mlp import numpy_mlp
from pappus.networks.steps import BatchForward, StepFunction, unroll_after_burn_in
from pappus.ops.numpy_ops import cross_entropy, tanh_error
from pappus.overrides import stands_for
from pappus.types import Array, ArraySpec, ContinuousAction, DiscreteAction, EnvSpec, Nest


@dataclass(frozen=True)
class BCConfig(AlgorithmConfig):
    """The loss. The lengths are for recurrent networks (`--core lstm`), which learn from sequences."""

    policy: Literal["deterministic", "gaussian"] = "deterministic"
    """Continuous actions: deterministic minimises the squared error, gaussian maximises the log-likelihood."""
    burn_in: int = 10
    """Steps of a sequence that only warm up the recurrent state, which is not in the data."""
    length: int = 20
    """Steps of a sequence used for learning."""
    period: int = 15
    """Steps between the starts of consecutive sequences."""

    def __post_init__(self) -> None:
        if self.burn_in < 0 or self.length < 2 or not 1 <= self.period < self.length:
            raise UserError(
                f"algorithm.burn_in={self.burn_in}, length={self.length}, period={self.period}: sequences of at least "
                "2 steps must begin again before they end; use such as 10, 20, 15"
            )


class BC(ActorCriticAlgorithm):
    """Acts by its policy, and learns it from steps, or with memory from sequences. The network's value is not used."""

    part_delays: tuple[int, ...] = (1,)
    target_updates = None

    def __init__(self, config: BCConfig, env: EnvSpec, network: NetworkConfig) -> None:
        super().__init__(env, network)
        self.config = config
        self.deterministic = isinstance(env.action, ContinuousAction) and config.policy == "deterministic"
        self.discrete = not isinstance(env.action, ContinuousAction)
        self.experience: Experience = Transitions(1, 1.0)
        if network.core != "none":
            self.experience = Sequences(config.burn_in, config.length, config.period)
        if self.deterministic:
            self.behaviour = {}  # type: ignore[misc]  # an action without a density
        self._look = BatchForward()

    def build_network(self) -> nn.Module:
        """The configured network, or the user's own."""
        return own_network(self.env, self.network_config) or build_actor_critic(
            self.env, self.network_config, replay=True
        )

    def exploration(self, envs: Array, of: int, steps: int) -> Array:
        """None: it does not act while it learns."""
        return np.zeros(len(envs), np.float32)

    def initial_priority(self, steps: Any) -> Array:
        """Ones: every step counts the same."""
        return np.ones(steps.reward.shape[-1])

    def act(
        self, step: StepFunction, observation: Nest, first: Tensor, state: Nest, generator: Generator | None,
        exploration: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor], Nest]:
        """Action, its log-probability where it has one, and the next state; greedy without a generator."""
        if not self.deterministic:
            return super().act(step, observation, first, state, generator)
        output = step(observation, first, state)
        action = self._mean(output.policy).tanh()
        return action.reshape(*action.shape[:-1], *self.env.action.array.shape), {}, output.state

    def loss(
        self, network: nn.Module, target: nn.Module, batch: Transition | Sequence, weight: Tensor, update: int = 0
    ) -> LossOutput:
        """The weighted mean over the steps of a batch."""
        action = batch.action
        if isinstance(batch, Sequence):
            burn_in = self.config.burn_in
            params = unroll_after_burn_in(network, batch, burn_in).policy
            action, valid = action[burn_in:], batch.valid[burn_in:].float()
        else:
            params = self._look(network, batch.observation).policy
            valid = torch.ones_like(weight)
        count = valid.sum().clamp(min=1)
        losses = self._losses(params, action)
        loss = (weight * valid * losses).sum() / count
        scalars = {"imitation_loss": loss.detach()}
        if self.discrete:
            same = (self.distribution.mode(params.detach()) == action).reshape(*valid.shape, -1).all(-1)
            scalars["accuracy"] = (same * valid).sum() / count
        return LossOutput(loss, scalars, torch.ones_like(weight))

    def _losses(self, params: Tensor, action: Tensor) -> Tensor:
        """Of every step, `[…]`."""
        if not self.deterministic:
            return -self.distribution.log_prob(params, action)
        mean = self._mean(params)
        return (mean.tanh() - action.reshape(mean.shape).clamp(-1.0, 1.0)).square().mean(-1)

    def _mean(self, params: Tensor) -> Tensor:
        return params[..., : math.prod(self.env.action.array.shape)]

    def on_arrays(self, network: nn.Module, target: nn.Module) -> ReplayArrayLoss | None:
        """`loss` and its gradient in closed form, for items that are arrays: one choice, or the squared error, of a
        small network on a CPU.

        None for other policies, networks and observations, and where a subclass has a loss of its own."""
        mlp, discrete = numpy_mlp(network, replaces=True), isinstance(self.env.action, DiscreteAction)
        plain = isinstance(self.env.observation, ArraySpec) and (discrete or self.deterministic)
        if mlp is None or not plain or not stands_for(type(self), "on_arrays", "loss", "_losses"):
            return None
        head, size = cast(ActorCritic, network).head, math.prod(self.env.action.array.shape)
        width = head.policy_size if discrete else size

        def learn(batch: Transition, weight: Array) -> LossOutput:
            rows, backward = mlp.forward(batch.observation)
            policy, scalars = rows[:, :width], dict[str, float]()
            if discrete:
                losses, slope = cross_entropy(policy, batch.action)
                scalars["accuracy"] = float(np.mean(policy.argmax(-1) == batch.action))
            else:
                losses, slope = tanh_error(policy, batch.action.reshape(policy.shape).clip(-1.0, 1.0))
            share, gradient = weight / np.float32(len(weight)), np.zeros_like(rows)
            np.multiply(slope, share[:, None], out=gradient[:, :width])
            backward(gradient)
            loss = float(share @ losses)
            return LossOutput(loss, {"imitation_loss": loss, **scalars}, np.ones_like(weight))

        return learn
