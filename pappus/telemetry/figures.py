"""Numbers as all views write them."""

from __future__ import annotations


def figure(value: float) -> str:
    """`48,211`, `132.4` or `0.037`."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"
