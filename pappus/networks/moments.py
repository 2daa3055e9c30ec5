"""Running means and deviations of what a network sees. They are buffers, so they travel with the weights: everybody who
acts, evaluates or goes on from a checkpoint scales as the learner does."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SMALLEST_VARIANCE = 1e-8
FARTHEST = 10.0
"""Deviations from the mean that a number may lie away; what is further is cut off."""


class RunningMoments(nn.Module):
    """Mean and variance of all vectors `[…, size]` that it was shown; before the first, 0 and 1."""

    mean: Tensor
    variance: Tensor
    scale: Tensor
    count: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("variance", torch.ones(size))
        self.register_buffer("scale", torch.ones(size))
        self.register_buffer("count", torch.zeros(1))

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Count these in (Chan et al. 1979, equations 2.1)."""
        rows = x.reshape(-1, len(self.mean)).to(self.mean.dtype)
        total = self.count + len(rows)
        share = len(rows) / total
        variance, mean = torch.var_mean(rows, 0, correction=0)
        apart = mean - self.mean
        self.variance.mul_(1 - share).add_(share * variance).add_(share * (1 - share) * apart.square())
        self.mean.add_(share * apart)
        self.count.copy_(total)
        self.scale.copy_((self.variance + SMALLEST_VARIANCE).rsqrt())

    def forward(self, x: Tensor) -> Tensor:
        """With mean 0 and deviation 1."""
        return ((x - self.mean) * self.scale).clamp(-FARTHEST, FARTHEST)
