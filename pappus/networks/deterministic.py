"""The network of DDPG and TD3: one policy, and one or two critics that evaluate its actions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import optree
import torch
from torch import Tensor, nn

from pappus.networks.torsos import MLP, Activation, Encoder, orthogonal
from pappus.types import ArraySpec, Nest

NOISE = "exploration_noise"
"""A key beside the observation: noise added to the policy's action `[…, *action]` before the critic evaluates it."""
LAST_LAYER_GAIN = 0.01
"""Small, so that the first policy stays near the middle of every action."""


class DeterministicOutput(NamedTuple):
    """Actions `[T, B, *action]`, their values and those without noise `[T, B]`, all float32, and the state."""

    action: Tensor
    q: Tensor
    value: Tensor
    state: Nest


class Critic(nn.Module):
    """Q(o, a): features and action concatenated, through an MLP."""

    def __init__(
        self, encoder: Encoder, action_size: int, sizes: tuple[int, ...], activation: Activation = "relu"
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.trunk = MLP(encoder.output_size + action_size, sizes, activation)
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
        """The state before an episode, `[batch, …]`."""
        return optree.tree_map(lambda leaf: torch.zeros(batch, *leaf.shape, device=device), self.state_spec)

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
        best = self.policy(observation)
        value = q = self.q(observation, best)
        action = best
        if noise is not None:
            action = (best + noise).clamp(-1.0, 1.0)
            q = self.q(observation, action)
        return DeterministicOutput(action.view(*action.shape[:2], *self.action_shape), q, value, state)


def noise_memory(action_shape: tuple[int, ...]) -> ArraySpec:
    """The state of correlated noise: its last value."""
    return ArraySpec(action_shape, "float32")
