"""Comparison of groups of runs: aggregates, probabilities of improvement, performance profiles and curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import NamedTuple

import numpy as np

from pappus.comparing.references import Reference, reference_of
from pappus.comparing.runs import Group, Run, groups_of
from pappus.comparing.scores import Curves, Measure, curve_kind, curves_of, tasks_of
from pappus.ops import aggregates
from pappus.ops.aggregates import Statistic, Tasks, between, bootstrapped
from pappus.types import Array

STATISTICS: dict[str, Statistic] = {
    "interquartile mean": aggregates.interquartile_mean, "mean": aggregates.mean, "median": aggregates.median,
}
GAP = "optimality gap"
THRESHOLDS, BETWEEN = 8, 4
"""About so many round thresholds, and steps from one to the next."""


class Estimate(NamedTuple):
    """A value and its bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Standing:
    """What is known of one group."""

    group: Group
    tasks: Tasks
    draws: Sequence[Array]
    """Its resamples, the same for every statistic."""
    statistics: Mapping[str, Estimate]
    profile: Sequence[Estimate]
    """Share of runs above each threshold."""
    by_steps: Sequence[Estimate] = ()
    by_seconds: Sequence[Estimate] = ()

    @property
    def runs(self) -> int:
        return sum(map(len, self.tasks))


@dataclass(frozen=True)
class Comparison:
    """Groups on the same envs."""

    envs: Sequence[str]
    references: Mapping[str, Reference]
    """By env; empty where returns are as they are."""
    thresholds: Array
    steps: Array
    seconds: Array
    curve: str
    """What the curves show: greedy or training returns."""
    standings: Sequence[Standing]
    """The best interquartile mean first."""
    improvements: Mapping[tuple[str, str], Estimate]
    """Probability that a run of the first group is better than one of the second."""


@dataclass(frozen=True)
class Question:
    """What is asked of the runs."""

    measure: Measure
    known: Mapping[str, Reference]
    """References by pattern of env; empty for none."""
    confidence: float = aggregates.CONFIDENCE
    resamples: int = aggregates.RESAMPLES
    seed: int = 0


def compare(runs: Sequence[Run], question: Question) -> tuple[list[Comparison], list[str]]:
    """A comparison over all envs where that is possible, then one for each env; and what is to be said of them."""
    groups, envs = groups_of(runs), list(dict.fromkeys(run.env for run in runs))
    comparisons, notes = [], _remarks(runs)
    if len(envs) > 1:
        whole = [group for group in groups if all(env in group.runs for env in envs)]
        unknown = [env for env in envs if reference_of(env, question.known) is None]
        if unknown:
            missing = ", ".join(unknown)
            notes.append(f"no aggregate over envs: {missing} has no reference; give one with --reference FILE")
        elif whole:
            comparisons.append(_compared(whole, envs, question))
        if len(whole) < len(groups) and not unknown:
            names = ", ".join(group.name for group in groups if group not in whole)
            notes.append(f"not run on all envs, and excluded from the aggregates: {names}")
    for env in envs:
        comparisons.append(_compared([group for group in groups if env in group.runs], [env], question))
    return comparisons, notes


def _compared(groups: Sequence[Group], envs: Sequence[str], question: Question) -> Comparison:
    generator = np.random.default_rng(question.seed)
    known = {env: one for env in envs if (one := reference_of(env, question.known)) is not None}
    tasks = [tasks_of(group, envs, question.measure, known) for group in groups]
    thresholds = _thresholds(tasks)
    kind = curve_kind([run for group in groups for env in envs for run in group.runs[env]], question.measure)
    by_steps, by_seconds = (curves_of(groups, envs, kind, known, by_time) for by_time in (False, True))
    standings = []
    for i, (group, scores) in enumerate(zip(groups, tasks, strict=True)):
        draws = aggregates.drawn(scores, generator, question.resamples)
        estimated = partial(_estimated, scores, draws, question.confidence)
        standings.append(Standing(
            group, scores, draws, {name: estimated(one)[0] for name, one in _statistics(envs, known).items()},
            estimated(partial(aggregates.share_above, thresholds=thresholds)),
            _curve(by_steps, i, draws, question.confidence), _curve(by_seconds, i, draws, question.confidence),
        ))
    standings.sort(key=lambda standing: -standing.statistics["interquartile mean"].value)
    steps, seconds = (np.zeros(0) if one is None else one.grid for one in (by_steps, by_seconds))
    return Comparison(
        envs, known, thresholds, steps, seconds, kind, standings, _improvements(standings, question.confidence)
    )


def _statistics(envs: Sequence[str], known: Mapping[str, Reference]) -> dict[str, Statistic]:
    """On one env, the median over envs is the mean; a goal of 1 is meaningful only for normalised scores."""
    found = {name: one for name, one in STATISTICS.items() if name != "median" or len(envs) > 1}
    return {**found, GAP: aggregates.optimality_gap} if known else found


def _estimated(tasks: Tasks, draws: Sequence[Array], confidence: float, statistic: Statistic) -> list[Estimate]:
    values = np.atleast_1d(statistic(tasks))
    low, high = np.reshape(between(bootstrapped(statistic, tasks, draws), confidence), (2, -1))
    return [Estimate(*map(float, one)) for one in zip(values, low, high, strict=True)]


def _curve(curves: Curves | None, group: int, draws: Sequence[Array], confidence: float) -> list[Estimate]:
    """The interquartile mean at each point; a resample has the same runs at all points."""
    if curves is None:
        return []
    found = []
    for point in range(len(curves.grid)):
        tasks = [values[point] for values in curves.values[group]]
        found += _estimated(tasks, draws, confidence, aggregates.interquartile_mean)
    return found


def _improvements(standings: Sequence[Standing], confidence: float) -> dict[tuple[str, str], Estimate]:
    found = {}
    for one, other in combinations(standings, 2):
        interval = aggregates.improvement_interval(one.tasks, other.tasks, one.draws, other.draws, confidence)
        value = float(aggregates.improvement(one.tasks, other.tasks))
        found[one.group.name, other.group.name] = Estimate(value, *map(float, interval))
    return found


def _thresholds(tasks: Sequence[Tasks]) -> Array:
    """Between the lowest and the highest score, round numbers where that is possible."""
    scores = np.concatenate([scores for group in tasks for scores in group])
    low, high = float(scores.min()), float(scores.max())
    if low == high:
        return np.array([low])
    step = 10 ** np.floor(np.log10((high - low) / THRESHOLDS))
    step *= min((factor for factor in (1, 2, 2.5, 5, 10) if (high - low) / (factor * step) <= THRESHOLDS), default=10)
    first, last = np.floor(low / step), np.ceil(high / step)
    return np.asarray(np.arange(BETWEEN * first, BETWEEN * (last - 1) + 1) * step / BETWEEN)


def _remarks(runs: Sequence[Run]) -> list[str]:
    notes = []
    commits = {str(run.summary.get("git_hash")) for run in runs if run.summary.get("git_hash")}
    if len(commits) > 1:
        notes.append(f"the runs are of {len(commits)} commits: {', '.join(sorted(one[:12] for one in commits))}")
    ends = sorted({run.summary.get("exit_reason", "?") for run in runs})
    if len(ends) > 1:
        notes.append(f"the runs ended differently: {', '.join(ends)}; --at-step N compares them at equal steps")
    resumed = sum(bool(run.summary.get("steps_before_resume")) for run in runs)
    if resumed:
        notes.append(f"{resumed} runs were resumed: their curves over time count the pause")
    return notes
