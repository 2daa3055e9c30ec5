"""Networks of action values: Q(o, ·) of DQN and R2D2, and the policy and critics Q(o, a) of DDPG and TD3."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pappus.networks.modules import MLP, Activation, Body, Encoder, orthogonal, zeros
from pappus.types import Nest

FORBIDDEN = -1e9
"""The value of an action that the mask does not allow: finite, so that 0 times it is 0."""
NOISE = "exploration_noise"
"""A key beside the observation: noise added to the policy's action `[…, *action]` before the critic evaluates it."""
LAST_LAYER_GAIN = 0.01
"""Small, so that the first policy stays near the middle of every action."""


class QOutput(NamedTuple):
    """Values `[T, B, A]`, the quantiles that they are the mean of `[T, B, A, K]`, both float32, and the state after the
    last step."""

    q: Any
    quantiles: Any
    state: Nest


class QHead(nn.Module):
    """Action values `[T, B, A, K]`, float32: K quantiles of each action, or with K = 1 the value itself.

    Dueling (Wang et al. 2016): Q = V + A − mean A; V is the last row of the layer that computes both. With `hidden`
    units, each of the two streams has a hidden layer of its own.
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
            streams = zip(self.hidden, self.outputs, strict=True)
            rows = torch.cat([output(hidden(features).relu_()) for hidden, output in streams], -1).float()
        else:
            rows = self.outputs[0](features).float()
        both: Tensor = rows.view(*rows.shape[:-1], -1, self.quantiles)
        if not self.dueling:
            return both
        advantage, value = both.narrow(-2, 0, self.num_actions), both.narrow(-2, self.num_actions, 1)
        return value + advantage - advantage.mean(-2, keepdim=True)


class QNetwork(Body):
    """A body with action values on top; an action mask forbids actions.

    Where the mask allows none (many envs show an empty mask with the last observation of an episode), every action is
    worth 0: nothing more can be earned there, and no such value is ever learned.
    """

    head: QHead

    def forward(self, observation: Nest, first: Tensor, state: Nest) -> QOutput:
        features, mask, state = self.features(observation, first, state)
        quantiles = self.head(features)
        q = quantiles.mean(-1) if self.head.quantiles > 1 else quantiles.squeeze(-1)
        if mask is not None:
            allowed = mask.bool()
            anything = allowed.any(-1, keepdim=True)
            q = torch.where(allowed, q, torch.where(anything, FORBIDDEN, 0.0))
            quantiles = torch.where(anything.unsqueeze(-1), quantiles, 0.0)
        return QOutput(q, quantiles, state)


class DeterministicOutput(NamedTuple):
    """Actions `[T, B, *action]`, their values and those without noise `[T, B]`, all float32, and the state."""

    action: Tensor
    q: Tensor
    value: Tensor
    state: Nest


class Critic(nn.Module):
    """Q(o, a): features and action concatenated, through an MLP."""

    def __init__(
        self, encoder: Encoder, action_size: int, sizes: tuple[int, ...], activation: Activation = "relu",
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.trunk = MLP(encoder.output_size + action_size, sizes, activation, layer_norm)
        self.linear = orthogonal(nn.Linear(self.trunk.output_size, 1), 1.0)

    def forward(self, observation: Nest, action: Tensor) -> Tensor:
        """Values `[T, B]` of actions `[T, B, A]`."""
        value: Tensor = self.linear(self.trunk(torch.cat([self.encoder(observation), action], -1))).float()
        return value.squeeze(-1)


class DeterministicActorCritic(nn.Module):
    """Actions in −1 … 1. `actor` and `critics` share no weights and are trained separately.

    The recurrent state is `memory_spec`: the state of correlated noise, or nothing.
    """

    frame_stack = None

    def __init__(
        self, actor: Encoder, critics: Sequence[Critic], action_shape: tuple[int, ...], memory_spec: Nest = ()
    ) -> None:
        super().__init__()
        self.action_shape = action_shape
        layer = orthogonal(nn.Linear(actor.output_size, math.prod(action_shape)), LAST_LAYER_GAIN)
        self.actor = nn.ModuleList([actor, layer])
        self.critics = nn.ModuleList(critics)
        self.state_spec: Nest = memory_spec

    @property
    def part_sizes(self) -> tuple[int, int]:
        """Numbers of parameters of the policy and of the critics, in the order of `parameters()`."""
        parts = (self.actor, self.critics)
        policy, critics = (sum(parameter.numel() for parameter in part.parameters()) for part in parts)
        return policy, critics

    def initial_state(self, batch: int, device: torch.device | str | None = None) -> Nest:
        return zeros(self.state_spec, batch, device)

    def policy(self, observation: Nest) -> Tensor:
        """The policy's action, flattened to `[T, B, A]`."""
        encoder, layer = self.actor
        action: Tensor = layer(encoder(observation)).float().tanh()
        return action

    def q(self, observation: Nest, action: Tensor) -> Tensor:
        """Q(o, a) of the first critic, which trains the policy, `[T, B]`."""
        value: Tensor = self.critics[0](observation, action)
        return value

    def judge(self, observation: Nest, action: Tensor) -> list[Tensor]:
        """Q(o, a) of every critic, `[T, B]` each."""
        return [critic(observation, action) for critic in self.critics]

    def forward(self, observation: Nest, first: Tensor, state: Nest) -> DeterministicOutput:
        """The policy's actions, plus the noise if the observation has some."""
        noise = None
        if isinstance(observation, dict) and NOISE in observation:
            noise = observation[NOISE].flatten(2)
            observation = observation["observation"]
        action = best = self.policy(observation)
        value = q = self.q(observation, best)
        if noise is not None:
            action = (best + noise).clamp(-1.0, 1.0)
            q = self.q(observation, action)
        return DeterministicOutput(action.view(*action.shape[:2], *self.action_shape), q, value, state)
