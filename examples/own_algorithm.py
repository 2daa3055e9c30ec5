"""An algorithm of your own: plain advantage actor-critic.

    python examples/own_algorithm.py
    cd examples; pappus train own_algorithm:my_system --env CartPole-v1 --target-return 475
    cd examples; pappus train own_algorithm:a2c@seed --env CartPole-v1

An algorithm is one class: how it acts (inherited here) and what it minimises. Its spec says what it asks of a topology;
a system puts it on one.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

import pappus
from pappus.algorithms.actor_critic import ActorCriticAlgorithm
from pappus.config import AlgorithmConfig, NetworkConfig
from pappus.ops.losses import masked_mean, policy_gradient_loss, value_loss
from pappus.ops.returns import lambda_returns
from pappus.system import AlgorithmSpec, System
from pappus.systems import TOPOLOGIES
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


a2c = AlgorithmSpec("my-a2c", A2C, A2CConfig())
my_system = System(a2c, TOPOLOGIES["sync"], settings={"envs_per_actor": 32, "optimizer.learning_rate": 3e-3})

if __name__ == "__main__":
    pappus.train(my_system, "CartPole-v1", steps=1_000_000, target_return=475.0)
