"""A comparison as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pappus.comparing.comparison import BETWEEN, Comparison, Estimate, Question, Standing
from pappus.telemetry.figures import figure
from pappus.telemetry.files import git_hash, versions
from pappus.telemetry.wording import aligned
from pappus.types import Array

SHOWN_POINTS = 7
"""Columns of a curve as text; JSON has all points, and their intervals."""
FEW = 5
"""Fewer runs than this, and a percentile interval is too short."""


def text_of(
    comparisons: Sequence[Comparison], question: Question, notes: Sequence[str], costs: Sequence[str] = ()
) -> str:
    """Everything that was found, for readers; `costs` are lines."""
    drawn = f"{100 * question.confidence:g} %, of {question.resamples:,} stratified resamples of the runs"
    lines = [f"score: {question.measure}; intervals: {drawn}"]
    for comparison in comparisons:
        lines += ["", *_section(comparison)]
    few = min(standing.runs for comparison in comparisons for standing in comparison.standings)
    said = [*notes, *([f"intervals of fewer than {FEW} runs are too short to trust"] if few < FEW else [])]
    return "\n".join([*lines, *costs, *([""] if said else []), *(f"note: {note}" for note in said)])


def json_of(comparisons: Sequence[Comparison], question: Question, notes: Sequence[str]) -> dict[str, Any]:
    """The same as plain values."""
    return {
        "score": str(question.measure), "confidence": question.confidence, "resamples": question.resamples,
        "seed": question.seed, "notes": list(notes), "comparisons": [_plain(one) for one in comparisons],
        "versions": versions(), "git_hash": git_hash(),
    }


def spread(estimate: Estimate) -> str:
    """`480.2 (471.0 … 488.1)`."""
    return f"{figure(estimate.value)} ({figure(estimate.low)} … {figure(estimate.high)})"


def _section(comparison: Comparison) -> list[str]:
    envs = comparison.envs
    title = envs[0] if len(envs) == 1 else f"all {len(envs)} envs"
    lines = [f"{title}{', normalised' if comparison.references else ''}", "═" * len(title), ""]
    heads = list(comparison.standings[0].statistics)
    rows = [["group", "runs", *heads]]
    for standing in comparison.standings:
        rows.append([
            standing.group.name, str(standing.runs), *(spread(one) for one in standing.statistics.values()),
        ])
    lines += aligned(rows)
    lines += _improvements(comparison) + _profiles(comparison)
    what = "greedy return" if comparison.curve == "greedy" else "training return"
    for name, grid, curves in (
        ("steps", comparison.steps, [one.by_steps for one in comparison.standings]),
        ("seconds", comparison.seconds, [one.by_seconds for one in comparison.standings]),
    ):
        lines += _curves(f"{what} (interquartile mean) after {name}", name, grid, comparison.standings, curves)
    origins = dict.fromkeys(
        f"{env}: 0 is {figure(one.low)}, 1 is {figure(one.high)}: {one.origin}"
        for env, one in comparison.references.items()
    )
    return [*lines, *([""] if origins else []), *origins]


def _improvements(comparison: Comparison) -> list[str]:
    """The best group against each other one; JSON has all pairs."""
    if len(comparison.standings) < 2:
        return []
    best = comparison.standings[0].group.name
    lines = ["", f"probability that a run of {best} is better than one of"]
    rows = [(other, found) for (one, other), found in comparison.improvements.items() if one == best]
    width = max(len(other) for other, _ in rows)
    return [*lines, *(f"  {other.ljust(width)}  {spread(found)}" for other, found in rows)]


def _profiles(comparison: Comparison) -> list[str]:
    rows = [["share of runs above", *map(figure, comparison.thresholds[::BETWEEN])]]
    for standing in comparison.standings:
        rows.append([standing.group.name, *(f"{100 * one.value:.0f} %" for one in standing.profile[::BETWEEN])])
    return ["", *aligned(rows)]


def _curves(
    title: str, name: str, grid: Array, standings: Sequence[Standing], curves: Sequence[Sequence[Estimate]]
) -> list[str]:
    if not len(grid):
        return []
    chosen = [round(i * (len(grid) - 1) / (SHOWN_POINTS - 1)) for i in range(SHOWN_POINTS)]
    moments = [figure(grid[i]) if name == "seconds" else f"{grid[i]:,.0f}" for i in chosen]
    rows = [[title, *moments]]
    for standing, curve in zip(standings, curves, strict=True):
        rows.append([standing.group.name, *(figure(curve[i].value) for i in chosen)])
    return ["", *aligned(rows)]


def _plain(comparison: Comparison) -> dict[str, Any]:
    return {
        "envs": list(comparison.envs),
        "references": {env: vars(one) for env, one in comparison.references.items()},
        "groups": [_plain_standing(comparison, standing) for standing in comparison.standings],
        "improvement": [
            {"of": one, "over": other, **found._asdict()} for (one, other), found in comparison.improvements.items()
        ],
        "curve": comparison.curve,
    }


def _plain_standing(comparison: Comparison, standing: Standing) -> dict[str, Any]:
    def points(name: str, grid: Array, curve: Sequence[Estimate]) -> list[dict[str, float]]:
        return [{name: float(moment), **one._asdict()} for moment, one in zip(grid, curve, strict=True)]

    def scores(env: str, found: Array) -> dict[str, float]:
        runs = standing.group.runs[env]
        return {str(run.directory): float(score) for run, score in zip(runs, found, strict=True)}

    return {
        "group": standing.group.name, "system": standing.group.system, "setting": standing.group.setting,
        "scores": {env: scores(env, found) for env, found in zip(comparison.envs, standing.tasks, strict=True)},
        "statistics": {name: one._asdict() for name, one in standing.statistics.items()},
        "profile": points("threshold", comparison.thresholds, standing.profile),
        "by_steps": points("step", comparison.steps, standing.by_steps) if standing.by_steps else [],
        "by_seconds": points("second", comparison.seconds, standing.by_seconds) if standing.by_seconds else [],
    }
