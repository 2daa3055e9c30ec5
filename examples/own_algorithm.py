"""An algorithm of your own: what V-trace becomes when nothing is corrected (plain A2C on IMPALA's topology).

    python examples/own_algorithm.py

An algorithm is one class: how it acts (inherited here) and what it minimises. A system names it beside a topology.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor, nn

import pappus
from pappus.algorithms.actor_critic import ActorCriticAlgorithm
from pappus.config import AlgorithmConfig, NetworkConfig
from pappus.ops.losses import masked_mean, policy_gradient_loss, value_loss
from pappus.ops.returns import lambda_returns
from pappus.systems import SYSTEMS
from pappus.types import EnvSpec, Unroll


@dataclass(frozen=True)
class A2CConfig(AlgorithmConfig):
    """Settings become options: `--algorithm.discount 0.9`."""

    discount: float = 0.99
    """γ."""
    reward_scale: float = 0.05
    """Rewards are multiplied by it."""


class A2C(ActorCriticAlgorithm):
    """Advantage actor-critic that trusts its data to be on-policy."""

    def __init__(self, config: A2CConfig, env: EnvSpec, network: NetworkConfig) -> None:
        super().__init__(env, network)
        self.config = config

    def loss(self, network: nn.Module, batch: Unroll) -> tuple[Tensor, dict[str, Tensor]]:
        output = network(batch.observation, batch.first, batch.state)
        policy, value = output.policy[:-1], output.value[:-1]
        discount, reward = batch.discount * self.config.discount, batch.reward * self.config.reward_scale
        target = lambda_returns(output.value.detach(), reward, discount, batch.valid, lam=1.0)
        log_prob = self.distribution.log_prob(policy, batch.action)
        actor = masked_mean(policy_gradient_loss(log_prob, target - value.detach()), batch.valid)
        critic = masked_mean(value_loss(value, target), batch.valid)
        entropy = masked_mean(self.distribution.entropy(policy), batch.valid)
        loss = actor + 0.5 * critic - 0.01 * entropy
        return loss, {"policy_loss": actor.detach(), "value_loss": critic.detach(), "entropy": entropy.detach()}


if __name__ == "__main__":
    torch.manual_seed(0)
    impala = SYSTEMS["impala"]
    defaults = dataclasses.replace(impala.defaults, system="my-a2c", algorithm=A2CConfig())
    SYSTEMS["my-a2c"] = dataclasses.replace(impala, name="my-a2c", algorithm=A2C, defaults=defaults)
    pappus.train("my-a2c", "CartPole-v1", steps=1_000_000, target_return=475.0, optimizer={"learning_rate": 3e-3})
