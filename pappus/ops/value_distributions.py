"""Distributions over returns on fixed, evenly spaced atoms (Bellemare et al. 2017).

    z_i = low + i Δ        Z = Σ_i p_i δ(z_i)        E[Z] = Σ_i p_i z_i
    projection             an atom that moves to r + γ z_i leaves its probability to the two nearest ones, by distance

The projection keeps the mean, but for what moves beyond the atoms: that goes to the first or the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Projection(NamedTuple):
    """Probabilities `[B, N]` on the atoms, and the share of each distribution that lay beyond them, `[B]`."""

    probability: Tensor
    beyond: Tensor


@dataclass(frozen=True)
class Atoms:
    """`count` atoms from `low` to `high`."""

    low: float
    high: float
    count: int

    def values(self, like: Tensor) -> Tensor:
        """z, `[N]`, on the device of a tensor."""
        return torch.linspace(self.low, self.high, self.count, device=like.device)

    def mean(self, logits: Tensor) -> Tensor:
        """E[Z] of logits `[…, N]`, `[…]`."""
        return (logits.softmax(-1) * self.values(logits)).sum(-1)  # a product of matrices would be rounded by autocast

    def projected(self, probability: Tensor, reward: Tensor, discount: Tensor) -> Projection:
        """The distribution of r + γ Z, of `[B, N]`, `[B]` and `[B]`. A reward that is no finite number leaves none."""
        assert probability.dim() == 2 and probability.shape == (len(reward), self.count), probability.shape
        reward = torch.where(reward.isfinite(), reward, torch.nan)  # an infinite one must not pass for a large one
        spacing = (self.high - self.low) / (self.count - 1)
        moved = torch.addcmul(reward.unsqueeze(1), discount.unsqueeze(1), self.values(probability))
        place = (moved - self.low) / spacing
        inside = place.clamp(0, self.count - 1)
        lower = inside.floor().clamp(max=self.count - 2)
        upper = probability * (inside - lower)
        index = lower.nan_to_num(0.0).long()
        found = torch.zeros_like(probability)
        found.scatter_add_(1, index, probability - upper).scatter_add_(1, index + 1, upper)
        return Projection(found, (probability * (place != inside)).sum(1))
