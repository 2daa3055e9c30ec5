"""What several runs on several tasks say together, and how sure that is (Agarwal et al. 2021).

Scores are a list with an array `[..., runs]` per task: tasks may have different numbers of runs. Leading dimensions are
resamples, so every statistic is computed for all of them at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from pappus.types import Array

RESAMPLES = 10_000
CONFIDENCE = 0.95
MOST_ENTRIES = 2**22
"""Scores that are looked at in one piece."""

Tasks: TypeAlias = Sequence[Array]
Statistic: TypeAlias = Callable[[Tasks], Array]
"""Scores `[..., runs]` per task → `[...]`."""


def interquartile_mean(tasks: Tasks) -> Array:
    """The mean of the middle half of all runs of all tasks: a quarter is left out on each side."""
    scores = np.sort(np.concatenate(tasks, -1), -1)
    count = scores.shape[-1]
    cut = count // 4
    return np.asarray(scores[..., cut : count - cut].mean(-1))


def mean(tasks: Tasks) -> Array:
    """The mean over tasks of the mean over runs."""
    return np.asarray(_task_means(tasks).mean(0))


def median(tasks: Tasks) -> Array:
    """The median over tasks of the mean over runs."""
    return np.asarray(np.median(_task_means(tasks), 0))


def optimality_gap(tasks: Tasks, goal: float = 1.0) -> Array:
    """How much is missing to the goal on average, where more than the goal counts for nothing."""
    scores = np.concatenate(tasks, -1)
    return np.asarray(goal - np.minimum(scores, goal).mean(-1))


def share_above(tasks: Tasks, thresholds: Array) -> Array:
    """A performance profile: the share of all runs whose score is above each threshold, `[thresholds, ...]`."""
    scores = np.concatenate(tasks, -1)
    return np.stack([np.asarray((scores > threshold).mean(-1)) for threshold in thresholds])


def improvement(tasks: Tasks, others: Tasks) -> Array:
    """P(X > Y) + P(X = Y) / 2 for a run X of `tasks` and a run Y of `others`, the mean over tasks."""
    found = []
    for mine, theirs in zip(tasks, others, strict=True):
        x, y = mine[..., :, None], theirs[..., None, :]
        found.append((x > y).mean((-2, -1)) + (x == y).mean((-2, -1)) / 2)
    return np.asarray(np.mean(found, 0))


def drawn(tasks: Tasks, generator: np.random.Generator, resamples: int = RESAMPLES) -> list[Array]:
    """Which runs each resample has: indices `[resamples, runs]` per task, drawn with replacement within the task."""
    sizes = [task.shape[-1] for task in tasks]
    return [generator.integers(size, size=(resamples, size), dtype=np.int32) for size in sizes]


def bootstrapped(statistic: Statistic, tasks: Tasks, indices: Sequence[Array]) -> Array:
    """The statistic of every resample `[resamples]`."""
    count = len(indices[0])
    at_once = max(1, MOST_ENTRIES // sum(task.shape[-1] for task in tasks))
    parts = [
        statistic([task[rows[start : start + at_once]] for task, rows in zip(tasks, indices, strict=True)])
        for start in range(0, count, at_once)
    ]
    return np.concatenate(parts, -1)


def between(values: Array, confidence: float = CONFIDENCE) -> Array:
    """The percentile interval of resampled values `[..., resamples]`: low and high, `[2, ...]`."""
    tail = (1 - confidence) / 2
    return np.asarray(np.quantile(values, [tail, 1 - tail], axis=-1))


def improvement_interval(
    tasks: Tasks, others: Tasks, indices: Sequence[Array], other_indices: Sequence[Array],
    confidence: float = CONFIDENCE,
) -> Array:
    """The interval of `improvement`, both sides resampled independently: low and high."""
    pairs = max(mine.shape[-1] * theirs.shape[-1] for mine, theirs in zip(tasks, others, strict=True))
    at_once, found = max(1, MOST_ENTRIES // pairs), []
    for start in range(0, len(indices[0]), at_once):
        part = slice(start, start + at_once)
        mine = [task[rows[part]] for task, rows in zip(tasks, indices, strict=True)]
        theirs = [task[rows[part]] for task, rows in zip(others, other_indices, strict=True)]
        found.append(improvement(mine, theirs))
    return between(np.concatenate(found), confidence)


def _task_means(tasks: Tasks) -> Array:
    return np.stack([task.mean(-1) for task in tasks])
