"""CrossQ: SAC with batch-renormalised, wide critics, and without a target network (Bhatt et al. 2024).

    critics        (r_t + … + γⁿ (min_i Q_i(o', a') − α log π(a' | o')) − Q_i(o, a))²       a' ~ π(o')
                   Q_i(o, a) and Q_i(o', a') from one pass: both are normalised by the moments of all rows
    policy, temperature        SAC's, every `policy_delay` updates
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pappus.algorithms.policy_critics import critic_loss
from pappus.algorithms.sac import SAC, EntropyConfig
from pappus.config import NetworkConfig
from pappus.errors import UserError
from pappus.experience import LossOutput, Transition
from pappus.networks.build import build_normed_policy_critics, own_network
from pappus.types import EnvSpec


@dataclass(frozen=True)
class CrossQConfig(EntropyConfig):
    """Defaults are the paper's."""

    policy_delay: int = 3
    """Updates of the critics for every one of policy and temperature."""
    critic_sizes: tuple[int, ...] = (2048, 2048)
    """Units of each layer of the critics; those of the policy are `network.hidden_sizes`."""
    renorm_after: int = 100_000
    """Batches after which running moments correct those of a batch; until then it is plain batch normalisation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.policy_delay < 1 or self.renorm_after < 0 or not self.critic_sizes or min(self.critic_sizes) < 1:
            raise UserError(
                f"algorithm.policy_delay={self.policy_delay} must be at least 1, renorm_after={self.renorm_after} not "
                f"negative, and critic_sizes={self.critic_sizes} layers of at least 1 unit"
            )


class CrossQ(SAC):
    """Continuous actions. It acts as SAC does, by running moments."""

    config: CrossQConfig

    def __init__(self, config: CrossQConfig, env: EnvSpec, network: NetworkConfig) -> None:
        super().__init__(config, env, network)
        self.part_delays = (config.policy_delay, 1)

    def build_network(self) -> nn.Module:
        config = self.config
        return own_network(self.env, self.network_config, "learnt_q", "learnt_policy") or build_normed_policy_critics(
            self.env, self.network_config, config.critic_sizes, config.renorm_after, config.temperature
        )

    def loss(self, network: Any, target: Any, batch: Transition, weight: Tensor, update: int) -> LossOutput:
        """The critics' loss and, when it is its turn, those of policy and temperature. The target is the network."""
        seen, later = network.see(batch.observation), network.see(batch.next_observation)
        with torch.no_grad():
            action, log_prob = self.distribution.reparameterized(network.policy(later))
        q, q_later = network.learnt_q((seen, batch.action), (later, action))
        goal = self._goal_of(batch, q_later.detach(), network, log_prob)
        loss, error = critic_loss(q, goal, weight)
        scalars = {"critic_loss": loss.detach(), "q": q.detach().mean(), "td_error": error.mean()}
        if update % self.config.policy_delay == 0:
            policy, temperature, found = self._policy(network, seen, network.learnt_policy(seen), weight)
            loss = loss + policy + temperature
            scalars |= self._policy_scalars(network, policy, found)
        return LossOutput(loss, scalars, error)
