"""A comparison as pictures, with matplotlib where that is installed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pappus.comparing.comparison import Comparison, Estimate
from pappus.errors import UserError
from pappus.types import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, ROW_HEIGHT = 9.0, 0.35
SHADE = 0.2


def plot(comparisons: Sequence[Comparison], directory: Path) -> list[Path]:
    """Write PNG files into a folder, and say which."""
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for comparison in comparisons:
        name = re.sub(r"[^\w.+-]", "-", comparison.envs[0]) if len(comparison.envs) == 1 else "all"
        for what, figure in _figures(comparison).items():
            path = directory / f"{name}-{what}.png"
            figure.savefig(path, dpi=120, bbox_inches="tight")
            written.append(path)
    return written


def check_matplotlib() -> None:
    """Raise `UserError` where no pictures can be made."""
    try:
        import matplotlib  # noqa: F401
    except ModuleNotFoundError:
        raise UserError("--plots needs matplotlib, which is not installed; run pip install matplotlib") from None


def _figures(comparison: Comparison) -> dict[str, Figure]:
    found = {"aggregates": _aggregates(comparison)}
    if len(comparison.standings) > 1:
        found["improvement"] = _improvement(comparison)
    share = "share of runs above"
    found["profile"] = _lines(
        comparison, comparison.thresholds, [one.profile for one in comparison.standings], _score(comparison), share
    )
    what = f"{comparison.curve} return, interquartile mean"
    for name, grid, curves in (
        ("steps", comparison.steps, [one.by_steps for one in comparison.standings]),
        ("seconds", comparison.seconds, [one.by_seconds for one in comparison.standings]),
    ):
        if len(grid):
            found[name] = _lines(comparison, grid, curves, name, what)
    return found


def _aggregates(comparison: Comparison) -> Figure:
    """Intervals as bars, a panel per statistic."""
    names = list(comparison.standings[0].statistics)
    figure = _empty(len(comparison.standings))
    axes = np.ravel(figure.subplots(1, len(names), sharey=True))
    for one, name in zip(axes, names, strict=True):
        _bars(one, [standing.statistics[name] for standing in comparison.standings])
        one.set_title(name)
        one.set_xlabel(_score(comparison))
    _name_rows(axes[0], [standing.group.name for standing in comparison.standings])
    return figure


def _improvement(comparison: Comparison) -> Figure:
    """Of the best group over each other one."""
    best = comparison.standings[0].group.name
    rows = [(other, found) for (one, other), found in comparison.improvements.items() if one == best]
    figure = _empty(len(rows))
    axes = figure.subplots()
    _bars(axes, [found for _, found in rows])
    axes.axvline(0.5, color="gray", linestyle=":")
    axes.set_xlim(0, 1)
    axes.set_xlabel(f"probability that {best} is better")
    _name_rows(axes, [other for other, _ in rows])
    return figure


def _lines(
    comparison: Comparison, grid: Array, curves: Sequence[Sequence[Estimate]], across: str, up: str
) -> Figure:
    figure = _empty(10)
    axes = figure.subplots()
    draw: Callable[..., object] = partial(axes.step, where="post") if across == _score(comparison) else axes.plot
    fill = partial(axes.fill_between, step="post") if across == _score(comparison) else axes.fill_between
    for i, (standing, curve) in enumerate(zip(comparison.standings, curves, strict=True)):
        values, low, high = np.array(curve).T
        draw(grid, values, label=standing.group.name, color=f"C{i}")
        fill(grid, low, high, alpha=SHADE, color=f"C{i}", linewidth=0)
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    return figure


def _bars(axes: Axes, estimates: Sequence[Estimate]) -> None:
    axes.use_sticky_edges = False
    for i, one in enumerate(estimates):
        axes.barh(i, one.high - one.low, left=one.low, height=0.6, alpha=0.6, color=f"C{i}")
        axes.vlines(one.value, i - 0.3, i + 0.3, color="black")
    axes.grid(axis="x", alpha=0.3)


def _name_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()


def _score(comparison: Comparison) -> str:
    return "normalised score" if comparison.references else "return"


def _empty(rows: int) -> Figure:
    """A figure that needs no display."""
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH, 1.2 + ROW_HEIGHT * rows))
