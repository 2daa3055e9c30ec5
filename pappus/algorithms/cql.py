"""CQL(H), conservative Q-learning for continuous actions (Kumar et al. 2020), on SAC.

    critics    SAC's + α Σ_i (log Σ_a exp(Q_i(o, a) − log μ(a)) − Q_i(o, a_data))

The sum is over samples: some from each of the uniform distribution, π(o) and π(o'), with their densities μ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pappus.algorithms.policy_critics import critic_loss
from pappus.algorithms.sac import SAC, Draws, SACConfig
from pappus.config import NetworkConfig
from pappus.errors import UserError
from pappus.experience import Transition
from pappus.types import EnvSpec


@dataclass(frozen=True)
class CQLConfig(SACConfig):
    """Defaults are the paper's for locomotion."""

    alpha: float = 5.0
    """α: weight of the conservative term; 0 is SAC."""
    action_samples: int = 10
    """Actions sampled from each of the three distributions, per item."""
    entropy_backup: bool = False
    """Include the entropy of later actions in targets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha < 0 or self.action_samples < 1:
            raise UserError(
                f"algorithm.alpha={self.alpha} must not be negative, and action_samples={self.action_samples} must be "
                "at least 1"
            )


class CQL(SAC):
    """SAC whose critics are held down where there is no data."""

    config: CQLConfig

    def __init__(self, config: CQLConfig, env: EnvSpec, network: NetworkConfig) -> None:
        super().__init__(config, env, network)

    def _critics(
        self, network: Any, seen: Any, batch: Transition, goal: Tensor, weight: Tensor, draws: Draws
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        if not self.config.alpha:
            return super()._critics(network, seen, batch, goal, weight, draws)
        actions, log_density = self._samples(draws)
        data = network.encoded(batch.action).unsqueeze(1)
        values = network.q_of_many(seen, torch.cat([actions, data], 1))  # one pass for all
        others, q = values[..., :-1], values[..., -1]
        loss, error = critic_loss(q, goal, weight)
        gap = conservative_gap(others, log_density, q)
        conservative = self.config.alpha * torch.mv(gap, weight).sum() / len(goal)
        return loss + conservative, error, {
            "critic_loss": loss.detach(), "q": q.detach().mean(), "conservative_loss": conservative.detach(),
        }

    @torch.no_grad()
    def _samples(self, draws: Draws) -> tuple[Tensor, Tensor]:
        """Actions `[B, 3 N, A]`, and their log-densities `[B, 3 N]`."""
        count = self.config.action_samples
        own, own_density = self.distribution.reparameterized(draws.now.detach(), count)
        later, later_density = self.distribution.reparameterized(draws.later, count)
        uniform = torch.rand_like(own) * 2 - 1
        flat = torch.full_like(own_density, -own.shape[-1] * math.log(2))
        return torch.cat([uniform, own, later], 1), torch.cat([flat, own_density, later_density], 1)


def conservative_gap(values: Tensor, log_density: Tensor, q: Tensor) -> Tensor:
    """log (1/N Σ_a exp(Q(o, a)) / μ(a)) − Q(o, a_data): `[…, B, N]`, `[B, N]`, `[…, B]` → `[…, B]`."""
    return (values - log_density).logsumexp(-1) - math.log(values.shape[-1]) - q
