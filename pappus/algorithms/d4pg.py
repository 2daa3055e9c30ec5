"""D4PG: DDPG whose critic learns the distribution of what is earned (Barth-Maron et al. 2018).

    G = projection of r_t + γ r_{t+1} + … + γⁿ Z'(o_{t+n}, π'(o_{t+n}))        Z': the target critic's distribution
    critic     −w · Σ_i G_i log Z_i(o_t, a_t)
    policy     follows ∂E[Z(o, a)]/∂a at a = π(o)

With `twin`, Z' is at every item that of the target critic with the smaller mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from pappus.algorithms.ddpg import DDPG, DDPGConfig, NoiseConfig
from pappus.config import NetworkConfig
from pappus.errors import UserError
from pappus.experience import Transition
from pappus.networks.build import build_distributional, own_network
from pappus.ops.value_distributions import Atoms, Projection
from pappus.types import EnvSpec, Nest


@dataclass(frozen=True)
class D4PGConfig(DDPGConfig):
    """Defaults are the paper's; the atoms are those of its authors' later code for tasks of the control suite."""

    n_step: int = 5
    """Rewards before the bootstrap."""
    target_every: int = 100
    """Updates between two steps of the target network."""
    target_share: float = 1.0
    """Share of the network's weights that it takes over then; 1: all."""
    noise: NoiseConfig = field(default_factory=lambda: NoiseConfig(sigma=0.3))
    """Exploration."""
    atoms: int = 51
    """Returns among which a distribution is spread, at equal distances."""
    v_min: float = -150.0
    """The first of them: no action is worth less, with rewards as they are after `reward_scale`."""
    v_max: float = 150.0
    """The last of them: no action is worth more."""
    critic_sizes: tuple[int, ...] = ()
    """Units of each layer of the critics; empty: those of the policy, which are `network.hidden_sizes`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.atoms < 2 or not -inf < self.v_min < self.v_max < inf:
            raise UserError(
                f"algorithm.atoms={self.atoms} must be at least 2, and v_min={self.v_min} below v_max={self.v_max}, "
                "both finite"
            )
        if min(self.critic_sizes, default=1) < 1:
            raise UserError(f"algorithm.critic_sizes={self.critic_sizes} must be layers of at least 1 unit")


class D4PG(DDPG):
    """Acts as DDPG does. Priorities are those of DDPG, too: by how far the means are apart."""

    config: D4PGConfig

    def __init__(self, config: D4PGConfig, env: EnvSpec, network: NetworkConfig) -> None:
        super().__init__(config, env, network)
        self.atoms = Atoms(config.v_min, config.v_max, config.atoms)

    def build_network(self) -> nn.Module:
        config = self.config
        return own_network(self.env, self.network_config, "logits") or build_distributional(
            self.env, self.network_config, self.atoms, 2 if config.twin else 1, config.noise.kind == "ou",
            config.critic_sizes,
        )

    def _critics(
        self, network: Any, target: Any, seen: Nest, batch: Transition, weight: Tensor
    ) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        with torch.no_grad():
            goal, value = self._goals(target, batch)
        logits = network.logits(seen, batch.action.flatten(1).unsqueeze(0)).squeeze(1)
        apart = -(goal.probability * logits.log_softmax(-1)).sum(-1)
        loss = torch.mv(apart, weight).sum() / len(value)
        q = self.atoms.mean(logits.detach())
        error = (q - value).abs().mean(0)
        return loss, error, {
            "critic_loss": loss.detach(), "q": q[0].mean(), "td_error": error.mean(),
            "beyond_atoms": goal.beyond.mean(),
        }

    def _goals(self, target: Any, batch: Transition) -> tuple[Projection, Tensor]:
        """The distributions to learn, and their means `[B]` before anything was projected."""
        logits = target.logits(*self._next_action(target, batch)).squeeze(1)
        values = self.atoms.mean(logits)
        value, which = values.min(0)
        if len(logits) > 1:
            logits = logits.gather(0, which.view(1, -1, 1).expand(1, -1, self.atoms.count))
        goal = self.atoms.projected(logits[0].softmax(-1), batch.reward, batch.discount)
        return goal, batch.reward + batch.discount * value
