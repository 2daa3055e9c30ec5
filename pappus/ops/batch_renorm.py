"""Batch renormalisation (Ioffe 2017): columns of a batch scaled by its own moments, corrected towards running ones.

    x̂ = (x − μ_B) / σ_B · r + d        r = σ_B / σ within 1/3 … 3,  d = (μ_B − μ) / σ within −5 … 5
    y = gain · x̂ + offset              r and d are constants to the gradient, which goes through μ_B and σ_B

With r = 1 and d = 0 it is batch normalisation. Within the bounds x̂ is what it is with running moments alone, which are
those that a policy acts with.

It is one operation for autograd: torch's own takes the variance of columns fifty times as slowly on a CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

EPSILON = 1e-3
"""Added to variances."""
LARGEST_RATIO, LARGEST_SHIFT = 3.0, 5.0
"""Bounds of r and d, the paper's."""


def renormalised(
    x: Tensor, gain: Tensor, offset: Tensor, running_mean: Tensor, running_variance: Tensor, corrects: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """y `[M, D]` of x, and mean and variance of its columns `[D]`. Where `corrects`, a flag, is not set, r = 1 and
    d = 0."""
    assert x.dim() == 2 and x.shape[1:] == gain.shape == running_mean.shape, (x.shape, gain.shape)
    found: tuple[Tensor, Tensor, Tensor] = _Renormalised.apply(  # type: ignore[no-untyped-call]
        x, gain, offset, running_mean, running_variance, corrects
    )
    return found


class _Renormalised(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gain: Tensor, offset: Tensor, running_mean: Tensor, running_variance: Tensor,
        corrects: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = x.to(gain.dtype)
        mean = x.mean(0)
        centred = x - mean
        variance = (centred * centred).mean(0)
        variance = torch.where(variance.isfinite(), variance, torch.nan)  # rows of 1e20 must not pass for a finite loss
        inverse, running = (variance + EPSILON).rsqrt(), (running_variance + EPSILON).rsqrt()
        ratio = (running / inverse).clamp(1 / LARGEST_RATIO, LARGEST_RATIO)
        shift = ((mean - running_mean) * running).clamp(-LARGEST_SHIFT, LARGEST_SHIFT)
        ratio, shift = torch.where(corrects, ratio, 1.0), torch.where(corrects, shift, 0.0)
        ctx.save_for_backward(centred, gain, inverse, ratio, shift)
        ctx.mark_non_differentiable(mean, variance)
        return torch.addcmul(torch.addcmul(offset, gain, shift), centred, gain * ratio * inverse), mean, variance

    @staticmethod
    def backward(ctx: Any, slope: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        """With g the slope by y: the one by x is s (g − mean g − x̂ mean (g x̂)), for x̂ before its correction."""
        centred, gain, inverse, ratio, shift = ctx.saved_tensors
        total, along = slope.sum(0), (slope * centred).sum(0) * inverse
        scale = gain * ratio * inverse
        share = scale / len(centred)
        for_x = None
        if ctx.needs_input_grad[0]:
            for_x = torch.addcmul(-share * total, slope, scale).addcmul_(centred, -share * along * inverse)
        return for_x, torch.addcmul(ratio * along, shift, total), total, None, None, None
