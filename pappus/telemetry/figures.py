"""Numbers as all views write them."""

from __future__ import annotations


def figure(value: float) -> str:
    """`48,211`, `132.4` or `0.037`."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3g}"


def memory(size: int | None) -> str:
    """`512 MiB` or `1.5 GiB`."""
    if size is None:
        return ""
    return f"{size / 2**20:.0f} MiB" if size < 2**30 else f"{size / 2**30:.1f} GiB"
