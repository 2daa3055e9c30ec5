"""Means over seeds, and how sure they are."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

T_QUANTILES = (
    12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09,
    2.09,
)
"""97.5 % quantiles of Student's t with 1, 2, … degrees of freedom."""


def half_interval(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean (Student's t); 0 for one value."""
    return half_interval_of(statistics.stdev(values), len(values)) if len(values) > 1 else 0.0


def half_interval_of(deviation: float, count: int) -> float:
    """The same of so many values with this sample deviation."""
    quantile = T_QUANTILES[min(count - 1, len(T_QUANTILES)) - 1]
    return quantile * deviation / math.sqrt(count)


def interval(values: Sequence[float]) -> str:
    """Mean ± half of its 95 % interval."""
    mean = statistics.fmean(values)
    digits = 0 if abs(mean) >= 1000 else 1
    if len(values) < 2:
        return f"{mean:,.{digits}f}"
    return f"{mean:,.{digits}f} ± {half_interval(values):,.{digits}f}"
