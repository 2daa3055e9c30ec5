"""The comparison as a table and pictures: means over seeds with 95 % intervals, curves over steps and seconds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pappus.ops.intervals import interval

STEPS, SECONDS, RETURN = 0, 1, 2
"""Columns of a curve."""
FROM_REPLAY = ("gorila-dqn", "apex-dqn", "r2d2", "seed-r2d2")


class Result(NamedTuple):
    """One run, as a line of the results' file."""

    env: str
    system: str
    seed: int
    budget: float
    """Seconds of training."""
    failed: str = ""
    last_lines: Sequence[str] = ()
    steps: int = 0
    steps_per_second: float = 0.0
    updates_per_second: float = 0.0
    policy_lag: float = 0.0
    cpu_per_million: float = 0.0
    """CPU seconds of all processes per million env steps."""
    bytes_per_step: Mapping[str, float] = {}
    """By edge."""
    evaluator_busy: float = 0.0
    """Share of the time."""
    curve: Sequence[Sequence[float]] = ()
    """Steps, seconds and return of every evaluation."""


COSTS: dict[str, Callable[[Result], float]] = {
    "steps/s": lambda one: one.steps_per_second,
    "updates/s": lambda one: one.updates_per_second,
    "policy lag (updates)": lambda one: one.policy_lag,
    "CPU s per million steps": lambda one: one.cpu_per_million,
    "bytes moved per step": lambda one: sum(one.bytes_per_step.values()),
}


def return_at(curve: Sequence[Sequence[float]], at: float, column: int) -> float | None:
    """Between the evaluations before and after it; None if there is none after it."""
    if not curve or curve[-1][column] < at:
        return None
    return float(np.interp(at, [point[column] for point in curve], [point[RETURN] for point in curve]))


def mean_return(curve: Sequence[Sequence[float]]) -> float:
    """Over all of a run's time: high for who learns early."""
    if len(curve) < 2:
        return curve[0][RETURN] if curve else 0.0
    seconds = np.array([point[SECONDS] for point in curve])
    returns = np.array([point[RETURN] for point in curve])
    area = ((returns[1:] + returns[:-1]) / 2 * np.diff(seconds)).sum()
    return float(area / (seconds[-1] - seconds[0]))


def table(results: Sequence[Result], seconds: float, steps: int) -> str:
    """Markdown, a line for each system."""
    heads = [
        "system", f"return after {seconds:g} s", f"mean return over {seconds:g} s", f"return after {steps:,} steps",
        *COSTS, "of which", "evaluator busy",
    ]
    lines = [heads, ["---"] * len(heads)]
    for system in dict.fromkeys(one.system for one in results):
        runs = [one for one in results if one.system == system]
        lines.append([f"`{system}`", *_cells([one for one in runs if not one.failed], steps, len(heads) - 1)])
        failed = sum(bool(one.failed) for one in runs)
        if failed:
            lines[-1][0] += f" ({failed} of {len(runs)} failed)"
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cells(runs: Sequence[Result], steps: int, width: int) -> list[str]:
    if not runs:
        return ["failed", *["–"] * (width - 1)]
    return [
        interval([one.curve[-1][RETURN] for one in runs]), interval([mean_return(one.curve) for one in runs]),
        _after_steps(runs, steps), *(interval([cost(one) for one in runs]) for cost in COSTS.values()),
        _edges(runs), f"{100 * statistics.fmean(one.evaluator_busy for one in runs):.0f} %",
    ]


def _after_steps(runs: Sequence[Result], steps: int) -> str:
    returns = [value for one in runs if (value := return_at(one.curve, steps, STEPS)) is not None]
    if not returns:
        return f"not reached, {statistics.fmean(one.steps for one in runs):,.0f} steps"
    return interval(returns) + (f" ({len(returns)} of {len(runs)} reached it)" if len(returns) < len(runs) else "")


def _edges(runs: Sequence[Result]) -> str:
    edges = dict.fromkeys(edge for one in runs for edge in one.bytes_per_step)
    means = {edge: statistics.fmean(one.bytes_per_step.get(edge, 0.0) for one in runs) for edge in edges}
    return ", ".join(f"{edge} {mean:,.0f}" for edge, mean in means.items())


def plot(name: str, results: Sequence[Result], directory: Path) -> None:
    """`architectures-NAME-return.png` and `architectures-NAME-cost.png`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    by_system: dict[str, list[Result]] = {}
    for one in results:
        if not one.failed:
            by_system.setdefault(one.system, []).append(one)
    if not by_system:
        return
    directory.mkdir(parents=True, exist_ok=True)
    for what, draw in (("return", draw_returns), ("cost", draw_costs)):
        figure = draw(pyplot, by_system)
        figure.tight_layout()
        figure.savefig(directory / f"architectures-{name}-{what}.png", dpi=130)
        pyplot.close(figure)


def draw_returns(pyplot: Any, by_system: Mapping[str, Sequence[Result]]) -> Any:
    """Against steps and seconds; the mean of all seeds, and from the lowest to the highest of them."""
    figure, panels = pyplot.subplots(1, 2, figsize=(11, 4.2), sharey=True)
    for number, (system, runs) in enumerate(by_system.items()):
        style = {"color": f"C{number}", "linestyle": "--" if system in FROM_REPLAY else "-"}
        for panel, column in zip(panels, (STEPS, SECONDS), strict=True):
            grid, returns = on_grid([one.curve for one in runs], column)
            panel.plot(grid, returns.mean(0), label=system, **style)
            panel.fill_between(grid, returns.min(0), returns.max(0), color=style["color"], alpha=0.12, linewidth=0)
    _logarithmic(panels[0], "log")
    panels[0].set_xlabel("env steps")
    panels[0].set_ylabel("greedy return")
    panels[1].set_xlabel("seconds")
    panels[1].legend(fontsize=7, ncol=2)
    return figure


def _logarithmic(panel: Any, scale: str) -> None:
    """With ticks that can be read where an axis spans less than a decade."""
    from matplotlib.ticker import EngFormatter, LogLocator

    panel.set_xscale(scale)
    panel.minorticks_off()
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    if scale == "log":
        panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))


def on_grid(curves: Sequence[Sequence[Sequence[float]]], column: int) -> tuple[np.ndarray, np.ndarray]:
    """Points that all seeds have reached `[P]`, even on the axis they are drawn on, and the returns there `[S, P]`."""
    points = [np.array(curve, dtype=float) for curve in curves]
    end = min(float(one[-1, column]) for one in points)
    if column == STEPS:
        second = min(float(one[min(1, len(one) - 1), STEPS]) for one in points)
        grid = np.geomspace(max(1.0, min(second, end) / 2), max(end, 1.0), 200)
    else:
        grid = np.linspace(0.0, end, 200)
    return grid, np.stack([np.interp(grid, one[:, column], one[:, RETURN]) for one in points])


def draw_costs(pyplot: Any, by_system: Mapping[str, Sequence[Result]]) -> Any:
    """A panel for each, a dot for each run."""
    figure, panels = pyplot.subplots(1, len(COSTS), figsize=(13, 3.4), sharey=True)
    for panel, (what, cost) in zip(panels, COSTS.items(), strict=True):
        for row, runs in enumerate(by_system.values()):
            values = [cost(one) for one in runs]
            panel.plot(values, [row] * len(values), "o", color=f"C{row}", alpha=0.6)
            panel.plot(statistics.fmean(values), row, "k|", markersize=14)
        _logarithmic(panel, "symlog" if "lag" in what else "log")
        panel.set_title(what, fontsize=9)
        panel.grid(axis="x", alpha=0.3)
    panels[0].set_yticks(range(len(by_system)), list(by_system))
    panels[0].invert_yaxis()
    return figure
