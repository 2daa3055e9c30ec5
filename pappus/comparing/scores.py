"""One score per run, and curves of all runs on the same steps or seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pappus.comparing.references import Reference
from pappus.comparing.runs import Group, Run
from pappus.errors import UserError
from pappus.ops.aggregates import Tasks
from pappus.telemetry.history import GREEDY, TRAINING
from pappus.types import Array

NAMES = {"greedy": GREEDY, "training": TRAINING}
POINTS = 20
"""Points of a curve."""


@dataclass(frozen=True)
class Measure:
    """What of a run is its score."""

    kind: str
    """greedy: what an evaluation found. training: the mean of the last 100 training episodes."""
    at_step: int | None = None
    """The last value by then; without: that at the end."""

    def __str__(self) -> str:
        what = "greedy evaluation" if self.kind == "greedy" else "mean of the last 100 training episodes"
        return f"{what} {'at the end of each run' if self.at_step is None else f'by step {self.at_step:,}'}"

    def score(self, run: Run) -> float | None:
        """The run's score; None if it has none."""
        name = NAMES[self.kind]
        if self.at_step is None:
            return run.final(name)
        if run.steps < self.at_step and not run.reached_target:
            return None
        steps, _, values = run.curve(name)
        by_then = values[steps <= self.at_step]
        return float(by_then[-1]) if len(by_then) else None


def measure_of(kind: str, at_step: int | None, runs: Sequence[Run]) -> Measure:
    """What was asked for; `auto` takes greedy evaluations where all runs have them."""
    if kind != "auto":
        return Measure(kind, at_step)
    greedy = Measure("greedy", at_step)
    return greedy if all(greedy.score(run) is not None for run in runs) else Measure("training", at_step)


def scored(runs: Sequence[Run], measure: Measure) -> tuple[list[Run], list[str]]:
    """The runs that have a score, and what is said of the others."""
    kept, notes = [], []
    for run in runs:
        if measure.score(run) is not None:
            kept.append(run)
        elif measure.at_step is not None and run.steps < measure.at_step:
            notes.append(f"{run.directory} ended after {run.steps:,} steps, before {measure.at_step:,}")
        else:
            notes.append(f"{run.directory} has no {measure}")
    if not kept:
        raise UserError(f"nothing to compare: {notes[0]}; try --score training, or another --at-step")
    return kept, notes


def tasks_of(group: Group, envs: Sequence[str], measure: Measure, known: Mapping[str, Reference]) -> Tasks:
    """The scores of a group by env, normalised where there is a reference."""
    found = []
    for env in envs:
        scores = np.array([measure.score(run) for run in group.runs[env]], np.float64)
        found.append(known[env].normalised(scores) if env in known else scores)
    return found


@dataclass(frozen=True)
class Curves:
    """Returns of groups on one grid of steps or seconds: by group, env and run."""

    grid: Array
    values: list[list[Array]]
    """Of each group, an array `[points, runs]` per env."""


def curves_of(
    groups: Sequence[Group], envs: Sequence[str], kind: str, known: Mapping[str, Reference], by_time: bool
) -> Curves | None:
    """Values between the first moment at which all runs have one and the end of the shortest run, between points
    linearly; None if there is no such time. Runs that reached their target stay there."""
    lines = {
        id(run): _line(run, kind, by_time) for group in groups for env in envs for run in group.runs[env]
    }
    runs = [run for group in groups for env in envs for run in group.runs[env]]
    if any(not len(lines[id(run)][0]) for run in runs):
        return None
    ends = [lines[id(run)][0][-1] for run in runs if not run.reached_target]
    end = min(ends) if ends else max(lines[id(run)][0][-1] for run in runs)
    start = max(lines[id(run)][0][0] for run in runs)
    if start >= end:
        return None
    grid = np.linspace(start, end, POINTS)
    values = [[_on_grid(group.runs[env], lines, grid, known.get(env)) for env in envs] for group in groups]
    return Curves(grid, values)


def curve_kind(runs: Sequence[Run], measure: Measure) -> str:
    """Greedy evaluations make a curve where every run has three or more."""
    many = all(len(run.curve(GREEDY)[2]) > 2 for run in runs)
    return "greedy" if measure.kind == "greedy" and many else "training"


def _line(run: Run, kind: str, by_time: bool) -> tuple[Array, Array]:
    steps, seconds, values = run.curve(NAMES[kind])
    return (seconds if by_time else steps), values


def _on_grid(
    runs: Sequence[Run], lines: Mapping[int, tuple[Array, Array]], grid: Array, reference: Reference | None
) -> Array:
    values = np.stack([np.interp(grid, *lines[id(run)]) for run in runs], -1)
    return values if reference is None else reference.normalised(values)
