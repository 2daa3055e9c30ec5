"""APPO: PPO's surrogate in place of V-trace's policy gradient (Rapid, OpenAI 2018; Petrenko et al. 2020, section 3.4).

    −min(r Â, clip(r, 1 − ε, 1 + ε) Â)      r = π(a|x) / μ(a|x), Â = r_t + γ v_{t+1} − V(x_t) (for λ = 1)

where v are V-trace's targets.

V-trace corrects the values for actors that lag; the clip keeps the policy near the one that acted.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from pappus.algorithms.vtrace import VTrace, VTraceConfig
from pappus.errors import UserError
from pappus.ops.losses import clipped_surrogate, normalised


@dataclass(frozen=True)
class APPOConfig(VTraceConfig):
    """V-trace's settings, and PPO's clip."""

    clip: float = 0.2
    """ε: clips the probability ratio to 1 ± ε."""
    normalize_advantage: bool = True
    """Normalise the advantages of each batch to mean 0 and deviation 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.clip > 0:
            raise UserError(f"algorithm.clip={self.clip} must be positive")


class APPO(VTrace):
    """V-trace with another policy loss."""

    config: APPOConfig
    weights_advantages = False

    def _policy_loss(self, log_prob: Tensor, log_ratio: Tensor, advantage: Tensor, valid: Tensor) -> Tensor:
        if self.config.normalize_advantage:
            advantage = normalised(advantage, valid)
        return clipped_surrogate(log_ratio, advantage, self.config.clip)
