"""Running means and variances of a network's inputs. They are buffers and are published with the weights, so actors,
evaluators and resumed runs scale as the learner does."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SMALLEST_VARIANCE = 1e-8
FARTHEST = 10.0
"""Scaled numbers are clipped to this many deviations from the mean."""


class RunningMoments(nn.Module):
    """Mean and variance of all vectors `[…, size]` counted so far; 0 and 1 before the first."""

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

    def update(self, x: Tensor) -> None:
        """Count these vectors."""
        self.count_in(self.of(x))

    def of(self, x: Tensor) -> Tensor:
        """The moments of these vectors alone, as `merged` and `count_in` take them."""
        return moments_of(x.reshape(-1, len(self.mean)).to(self.mean.dtype))

    @torch.no_grad()
    def count_in(self, seen: Tensor) -> None:
        """Count vectors of which only the moments are given (Chan et al. 1979, equations 2.1)."""
        count, mean, variance = torch.split(seen.to(self.mean.dtype), [1, len(self.mean), len(self.mean)])
        total = self.count + count
        share = count * total.clamp(min=1).reciprocal()
        apart = mean - self.mean
        self.variance.mul_(1 - share).add_(share * variance).add_(share * (1 - share) * apart.square())
        self.mean.add_(share * apart)
        self.count.copy_(total)
        self.scale.copy_((self.variance + SMALLEST_VARIANCE).rsqrt())

    def forward(self, x: Tensor) -> Tensor:
        """x scaled to mean 0 and deviation 1."""
        return ((x - self.mean) * self.scale).clamp(-FARTHEST, FARTHEST)


@torch.no_grad()
def moments_of(rows: Tensor) -> Tensor:
    """Count, means and variances of rows `[M, size]`, concatenated to `[1 + 2 size]`."""
    count = rows.new_full((1,), len(rows))
    if not len(rows):
        return torch.cat([count, rows.new_zeros(2 * rows.shape[1])])
    variance, mean = torch.var_mean(rows, 0, correction=0)
    return torch.cat([count, mean, variance])


def merged(parts: Tensor) -> Tensor:
    """The moments `[…, 1 + 2 size]` of the union of N parts with moments `[N, …, 1 + 2 size]`.

    Computed in float64, so that the order of the parts does not show in float32.
    """
    size = parts.shape[-1] // 2
    count, mean, variance = torch.split(parts.double(), [1, size, size], -1)
    total = count.sum(0)
    share = count / total.clamp(min=1)
    common = (share * mean).sum(0)
    return torch.cat([total, common, (share * (variance + (mean - common).square())).sum(0)], -1)
