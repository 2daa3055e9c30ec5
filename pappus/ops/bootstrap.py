"""Intervals from the episodes themselves, resampled or left out in turn (Efron & Tibshirani 1993, chapters 11, 12)."""

from __future__ import annotations

import math
from collections.abc import Sequence
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


def episode_interval(sums: Sums, confidence: float, generator: np.random.Generator) -> Interval | None:
    """The interval of an estimator; None for one episode."""
    return episode_intervals(sums, [confidence], generator)[0] if len(sums.rows) > 1 else None


def episode_intervals(sums: Sums, confidences: Sequence[float], generator: np.random.Generator) -> list[Interval]:
    """estimate ± quantile × standard error, of two episodes or more.

    The standard error is that of the jackknife's pseudo-values p_e = E θ − (E − 1) θ_e, where θ_e leaves episode e out:
    of a mean, they are what it is the mean of. Its quantiles are those of Student's t or of t = (p̄ − θ) / s in
    resampled episodes, on each side whichever reaches further: the former are right where weights are even, the latter
    where few large ones make the estimate lopsided, and either alone is too short in the other case.
    """
    episodes, estimate = len(sums.rows), sums.estimate
    pseudo = episodes * estimate - (episodes - 1) * sums.value(sums.rows.sum(0) - sums.rows)
    error = float(pseudo.std(ddof=1)) / math.sqrt(episodes)
    drawn, found = studentised(pseudo, generator), list[Interval]()
    for tail in ((1 - confidence) / 2 for confidence in confidences):
        low, high = np.quantile(drawn, [tail, 1 - tail])
        reach = t_quantile(1 - tail, episodes - 1)
        found.append((estimate - max(reach, float(high)) * error, estimate + max(reach, -float(low)) * error))
    return found


def studentised(values: Array, generator: np.random.Generator, resamples: int = RESAMPLES) -> Array:
    """(mean* − mean) / (standard error*) of values `[E]` in resamples of them, `[R]`."""
    episodes, middle = len(values), values.mean()
    powers = np.stack([values - middle, (values - middle) ** 2], -1)
    at_once = max(1, LARGEST_TABLE // episodes)
    sizes = [min(at_once, resamples - done) for done in range(0, resamples, at_once)]
    first, second = np.concatenate([_counts(episodes, size, generator) @ powers for size in sizes]).T / episodes
    error = np.sqrt(np.maximum(second - first**2, 0.0) / (episodes - 1))
    return np.asarray(np.divide(first, error, out=np.zeros_like(first), where=error > 0))


def _counts(episodes: int, resamples: int, generator: np.random.Generator) -> Array:
    """How often each of E episodes is drawn, in draws of E: `[R, E]` float64."""
    drawn = generator.integers(episodes, size=(resamples, episodes)) + episodes * np.arange(resamples)[:, None]
    counts = np.bincount(drawn.ravel(), minlength=resamples * episodes)
    return counts.reshape(resamples, episodes).astype(np.float64)


def jackknife_interval(estimate: float, left_out: Array, confidence: float) -> Interval:
    """estimate ± t s: s² = (G − 1)/G Σ_g (θ_g − θ̄)², of the estimates `[G]` without each of G groups in turn, and t of
    G − 1 degrees of freedom."""
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
