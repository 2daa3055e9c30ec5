"""Intervals from the episodes themselves: resampled (Efron 1987), or left out in turn."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TypeAlias

import numpy as np

from pappus.ops.off_policy import Sums
from pappus.types import Array

RESAMPLES = 2_000
LARGEST_TABLE = 2**24
"""Entries of the table of counts that is made at a time."""

Interval: TypeAlias = tuple[float, float]
NORMAL = NormalDist()


def resampled_counts(episodes: int, resamples: int, generator: np.random.Generator) -> Array:
    """How often each of E episodes is drawn, in draws of E: `[R, E]` float64."""
    drawn = generator.integers(episodes, size=(resamples, episodes)) + episodes * np.arange(resamples)[:, None]
    counts = np.bincount(drawn.ravel(), minlength=resamples * episodes)
    return counts.reshape(resamples, episodes).astype(np.float64)


def bca_interval(
    sums: Sums, confidence: float, generator: np.random.Generator, resamples: int = RESAMPLES
) -> Interval | None:
    """The interval of an estimator from resampled episodes; None for one episode."""
    return bca_of(sums, resampled_estimates(sums, generator, resamples), confidence) if len(sums.rows) > 1 else None


def bca_of(sums: Sums, drawn: Array, confidence: float) -> Interval:
    """Bias-corrected and accelerated percentiles of the estimates `drawn [R]` from resampled episodes.

    z0 says how far the estimate lies from the median of the resampled ones, the acceleration how the standard error
    changes with the estimate, from the estimates without one episode each.
    """
    estimate, resamples = sums.estimate, len(drawn)
    if np.ptp(drawn) == 0:
        return float(drawn[0]), float(drawn[0])
    below = float(np.mean(drawn < estimate) + np.mean(drawn == estimate) / 2)
    z0 = NORMAL.inv_cdf(min(max(below, 1 / resamples), 1 - 1 / resamples))
    apart = sums.value(sums.rows.sum(0) - sums.rows)
    apart = apart.mean() - apart
    spread = float((apart**2).sum())
    acceleration = float((apart**3).sum()) / (6 * spread**1.5) if spread > 0 else 0.0

    def level(share: float) -> float:
        z = z0 + NORMAL.inv_cdf(share)
        return NORMAL.cdf(z0 + z / max(1 - acceleration * z, 1e-6))

    tail = (1 - confidence) / 2
    low, high = np.quantile(drawn, [level(tail), level(1 - tail)])
    return float(low), float(high)


def resampled_estimates(sums: Sums, generator: np.random.Generator, resamples: int = RESAMPLES) -> Array:
    """The estimates from resampled episodes, `[R]`."""
    episodes = len(sums.rows)
    at_once = max(1, LARGEST_TABLE // episodes)
    sizes = [min(at_once, resamples - done) for done in range(0, resamples, at_once)]
    return np.concatenate([sums.value(resampled_counts(episodes, size, generator) @ sums.rows) for size in sizes])


def jackknife_interval(estimate: float, left_out: Array, confidence: float) -> Interval:
    """estimate ± t s: s² = (G − 1)/G Σ_g (θ_g − θ̄)², of the estimates `[G]` without each of G groups in turn, and t of
    G − 1 degrees of freedom (Efron & Tibshirani 1993, chapter 11)."""
    groups = len(left_out)
    spread = math.sqrt((groups - 1) / groups * float(((left_out - left_out.mean()) ** 2).sum()))
    reach = t_quantile((1 + confidence) / 2, groups - 1) * spread
    return estimate - reach, estimate + reach


def t_quantile(share: float, freedom: int) -> float:
    """Student's t, by its expansion around the normal one (Abramowitz & Stegun 26.7.5)."""
    z = NORMAL.inv_cdf(share)
    terms = (
        (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + math.fsum(term / freedom**power for power, term in enumerate(terms, 1))
