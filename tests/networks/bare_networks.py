"""Networks that share nothing with ours but the members that docs/guide/own-network.md asks for."""

from __future__ import annotations

from typing import Any

import optree
import torch
from torch import Tensor, nn

from pappus.networks.q_networks import DeterministicOutput, QOutput
from pappus.types import ArraySpec


class Values(nn.Module):
    """Q from the observation alone."""

    state_spec: Any = ()

    def __init__(self, env: Any, config: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(env.observation.shape[0], env.action.n)

    def initial_state(self, batch: int, device: Any = None) -> Any:
        return ()

    def forward(self, observation: Tensor, first: Tensor, state: Any) -> QOutput:
        q = self.layer(observation).float()
        return QOutput(q, q.unsqueeze(-1), state)


class Remembering(nn.Module):
    """Q from a sum over the episode, which fades."""

    state_spec: Any = ArraySpec((2,), "float32")

    def __init__(self, env: Any, config: Any) -> None:
        super().__init__()
        inputs = sum(leaf.shape[0] if leaf.shape else 1 for leaf in optree.tree_leaves(env.observation))
        self.into, self.out = nn.Linear(inputs, 2), nn.Linear(2, env.action.n)

    def initial_state(self, batch: int, device: Any = None) -> Any:
        return torch.zeros(batch, 2, device=device)

    def forward(self, observation: Any, first: Tensor, state: Tensor) -> QOutput:
        leaves = [leaf.reshape(*first.shape, -1).float() for leaf in optree.tree_leaves(observation)]
        rows = []
        for x, begins in zip(self.into(torch.cat(leaves, -1)), first, strict=True):
            state = 0.9 * torch.where(begins.unsqueeze(-1), 0.0, state) + x
            rows.append(state)
        q = self.out(torch.stack(rows)).float()
        return QOutput(q, q.unsqueeze(-1), state)


class PolicyAndCritic(nn.Module):
    """Both linear."""

    state_spec: Any = ()

    def __init__(self, env: Any, config: Any) -> None:
        super().__init__()
        inputs, (size,) = env.observation.shape[0], env.action.shape
        self.actor, self.critic = nn.Linear(inputs, size), nn.Linear(inputs + size, 1)
        self.part_sizes = (inputs * size + size, inputs + size + 1)

    def initial_state(self, batch: int, device: Any = None) -> Any:
        return ()

    def policy(self, observation: Tensor) -> Tensor:
        return self.actor(observation).float().tanh()

    def q(self, observation: Tensor, action: Tensor) -> Tensor:
        return self.critic(torch.cat([observation, action], -1)).float().squeeze(-1)

    def judge(self, observation: Tensor, action: Tensor) -> list[Tensor]:
        return [self.q(observation, action)]

    def forward(self, observation: Any, first: Tensor, state: Any) -> DeterministicOutput:
        noise: Any = 0.0
        if isinstance(observation, dict):
            observation, noise = observation["observation"], observation["exploration_noise"]
        best = self.policy(observation)
        action = (best + noise).clamp(-1.0, 1.0)
        return DeterministicOutput(action, self.q(observation, action), self.q(observation, best), state)
