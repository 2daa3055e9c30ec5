"""How much each env explores."""

from __future__ import annotations

import numpy as np

from pappus.types import Array


def ladder(index: Array, count: int, base: float, alpha: float) -> Array:
    """ε_i = base^(1 + α i / (N − 1)) for the i-th of N (Horgan et al. 2018): few explore much, most of them little."""
    assert count >= 1 and (index >= 0).all() and (index < count).all(), (index, count)
    share = index / (count - 1) if count > 1 else np.zeros(len(index))
    return np.power(base, 1 + alpha * share)


def linear(step: int, start: float, end: float, duration: int) -> float:
    """From `start` to `end` over the first `duration` steps, and `end` ever after."""
    return end + (start - end) * max(0.0, 1.0 - step / max(1, duration))
