"""Statistics over runs: rliable's numbers, and what must hold of any."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pappus.ops import aggregates
from pappus.ops.aggregates import Tasks, between, bootstrapped, drawn, improvement, improvement_interval
from pappus.types import Array

RLIABLE: dict[str, Any] = json.loads(Path(__file__).with_name("rliable.json").read_text())
STATISTICS = ("interquartile_mean", "mean", "median", "optimality_gap")
CLOSE = 1e-6


def tasks_of(name: str) -> list[Array]:
    """`[runs, tasks, ...]` as an array per task, runs last."""
    scores = np.array(RLIABLE[name])
    return [np.moveaxis(scores[:, task], 0, -1) for task in range(scores.shape[1])]


def rliable_draws(*shapes: tuple[int, ...]) -> list[Array]:
    """The indices that rliable draws: `[resamples, runs, tasks, ...]` per array of scores."""
    state = np.random.RandomState(RLIABLE["seed"])
    rounds = [[state.choice(shape[0], shape) for shape in shapes] for _ in range(RLIABLE["resamples"])]
    return [np.array(one) for one in zip(*rounds, strict=True)]


def per_task(indices: Array) -> list[Array]:
    return [indices[:, :, task] for task in range(indices.shape[2])]


@pytest.mark.parametrize("name", STATISTICS)
def test_a_statistic_and_its_interval_are_rliables(name: str) -> None:
    tasks, statistic = tasks_of("scores"), getattr(aggregates, name)
    indices = per_task(rliable_draws(np.shape(RLIABLE["scores"]))[0])
    assert statistic(tasks) == pytest.approx(RLIABLE[name]["value"][0], abs=CLOSE)
    found = between(bootstrapped(statistic, tasks, indices))
    assert found == pytest.approx(np.ravel(RLIABLE[name]["interval"]), abs=CLOSE)


def test_the_probability_of_improvement_and_its_interval_are_rliables() -> None:
    tasks, others = tasks_of("scores"), tasks_of("others")
    mine, theirs = rliable_draws(np.shape(RLIABLE["scores"]), np.shape(RLIABLE["others"]))
    assert improvement(tasks, others) == pytest.approx(RLIABLE["improvement"]["value"][0], abs=CLOSE)
    found = improvement_interval(tasks, others, per_task(mine), per_task(theirs))
    assert found == pytest.approx(np.ravel(RLIABLE["improvement"]["interval"]), abs=CLOSE)


def test_a_profile_and_its_intervals_are_rliables() -> None:
    tasks, thresholds = tasks_of("scores"), np.array(RLIABLE["thresholds"])
    indices = per_task(rliable_draws(np.shape(RLIABLE["scores"]))[0])
    assert aggregates.share_above(tasks, thresholds) == pytest.approx(RLIABLE["profile"]["value"], abs=CLOSE)
    found = between(bootstrapped(lambda drawn: aggregates.share_above(drawn, thresholds), tasks, indices))
    assert found == pytest.approx(np.array(RLIABLE["profile"]["interval"]), abs=CLOSE)


def test_a_curve_of_interquartile_means_and_its_intervals_are_rliables() -> None:
    curves = np.array(RLIABLE["curves"])
    indices = rliable_draws(curves.shape)[0]
    for frame in range(curves.shape[-1]):
        tasks = [curves[:, task, frame] for task in range(curves.shape[1])]
        rows = [indices[:, :, task, frame] for task in range(curves.shape[1])]
        value, low_high = aggregates.interquartile_mean(tasks), RLIABLE["efficiency"]["interval"]
        assert value == pytest.approx(RLIABLE["efficiency"]["value"][frame], abs=CLOSE)
        found = between(bootstrapped(aggregates.interquartile_mean, tasks, rows))
        assert found == pytest.approx([low_high[0][frame], low_high[1][frame]], abs=CLOSE)


def test_the_interquartile_mean_leaves_out_a_quarter_on_each_side() -> None:
    assert aggregates.interquartile_mean([np.array([-100.0, 1, 2, 3, 4, 5, 6, 900])]) == 3.5


def test_a_probability_and_its_opposite_add_up_to_one() -> None:
    tasks, others = tasks_of("scores"), tasks_of("others")
    assert improvement(tasks, others) + improvement(others, tasks) == pytest.approx(1.0)


def test_resamples_keep_every_task_apart() -> None:
    tasks: Tasks = [np.zeros(3), np.ones(5)]
    found = drawn(tasks, np.random.default_rng(0), 50)
    assert [rows.shape for rows in found] == [(50, 3), (50, 5)]
    assert (bootstrapped(aggregates.mean, tasks, found) == 0.5).all()


def test_resamples_in_pieces_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = tasks_of("scores")
    indices = drawn(tasks, np.random.default_rng(1), 100)
    whole = bootstrapped(aggregates.mean, tasks, indices)
    both = improvement_interval(tasks, tasks, indices, indices)
    monkeypatch.setattr(aggregates, "MOST_ENTRIES", 64)
    assert (bootstrapped(aggregates.mean, tasks, indices) == whole).all()
    assert (improvement_interval(tasks, tasks, indices, indices) == both).all()
