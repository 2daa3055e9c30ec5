"""Algorithms whose loss overflows where a cart is farther out than those of CartPole ever are, though within bounds."""

from __future__ import annotations

from typing import Any

import torch

from pappus.algorithms.dqn import DQN, DQNConfig
from pappus.algorithms.ppo import PPO, PPOConfig
from pappus.algorithms.vtrace import VTrace, VTraceConfig
from pappus.system import AlgorithmSpec

FARTHEST = 3.0


def factor(observation: torch.Tensor) -> torch.Tensor:
    return torch.where(observation[..., 0].abs() > FARTHEST, torch.inf, 1.0).amax()


class OverflowingVTrace(VTrace):
    def loss(self, network: Any, batch: Any) -> Any:
        loss, scalars = super().loss(network, batch)
        return loss * factor(batch.observation), scalars


class OverflowingPPO(PPO):
    def loss(self, network: Any, steps: Any, report: bool = True) -> Any:
        loss, scalars = super().loss(network, steps, report)
        return loss * factor(steps.observation), scalars


class OverflowingDQN(DQN):
    def loss(self, network: Any, target: Any, batch: Any, weight: Any, update: int = 0) -> Any:
        output = super().loss(network, target, batch, weight, update)
        return output._replace(loss=output.loss * factor(batch.observation))


vtrace = AlgorithmSpec("overflowing-vtrace", OverflowingVTrace, VTraceConfig(), corrects_for_lag=True)
ppo = AlgorithmSpec("overflowing-ppo", OverflowingPPO, PPOConfig(epochs=1), several_epochs=True)
dqn = AlgorithmSpec("overflowing-dqn", OverflowingDQN, DQNConfig(), learns_from_replay=True)
