"""The master counts, publishes, saves, and finds everything where it was when it comes back."""

from __future__ import annotations

import numpy as np
import pytest

from pappus.config import OptimizerConfig
from pappus.errors import UserError
from pappus.roles.role import IDLE
from tests.roles.lock_free_tools import SIZE, STEPS, Setup

ADAM = OptimizerConfig("adam", 0.1, anneal=False)
UP, DOWN = np.full(SIZE, -1, np.float32), np.ones(SIZE, np.float32)


def work(setup: Setup, gradient: np.ndarray, steps: int = 10, worker: int = 0) -> None:
    """What a worker does at the end of an unroll."""
    setup.channels[worker].send(gradient, 0.0)
    setup.steps.counter(worker).add(steps)


def test_it_publishes_whenever_it_finds_updates() -> None:
    setup = Setup(ADAM, initial=1.0)
    assert setup.master.step() is None and setup.published() == (0, [1.0] * SIZE)
    assert setup.master.step() is IDLE and setup.master.wake_at is not None
    work(setup, UP)
    work(setup, UP)
    assert setup.master.step() is None
    assert setup.published() == (2, setup.read()) and setup.read() != [1.0] * SIZE


def test_it_counts_for_all_and_says_when_the_run_is_over() -> None:
    setup = Setup(ADAM, workers=2)
    setup.master.step()
    work(setup, UP, 40, worker=0)
    work(setup, UP, 50, worker=1)
    setup.master.step()
    assert not setup.master.finished and setup.master.progress() == (90, 2)
    work(setup, UP, STEPS - 90)
    setup.master.step()
    assert setup.master.finished and setup.master.metrics.drain()["counts"] == {"env_steps": STEPS, "updates": 3}


def test_a_successor_finds_newer_weights_than_its_checkpoint_and_counts_no_update_twice() -> None:
    setup = Setup(ADAM)
    setup.master.step()
    saved = setup.master.save()
    work(setup, UP)
    setup.master.step()
    work(setup, UP)  # while nobody counts
    here = setup.shared_parameters.rows.copy()
    setup.master = setup.new_master()
    setup.master.load(saved)
    setup.master.step()
    report = setup.master.metrics.drain()
    assert np.array_equal(setup.shared_parameters.rows, here) and setup.published()[0] == 2
    assert report["counts"] == {"env_steps": 10, "updates": 1} and "at version 2" in report["events"][0]


def test_a_resumed_run_goes_on_with_weights_statistics_and_counts() -> None:
    whole = Setup(ADAM, workers=2)
    whole.master.step()
    work(whole, UP)
    work(whole, UP, worker=1)
    whole.master.step()
    resumed = Setup(ADAM, workers=1, initial=5.0)
    resumed.master.load(whole.master.save())
    for setup in (whole, resumed):
        setup.master.step()
        work(setup, DOWN)
        setup.master.step()
    assert np.array_equal(whole.shared_parameters.rows, resumed.shared_parameters.rows)
    assert whole.master.progress() == resumed.master.progress() == (30, 3)
    assert resumed.master.metrics.drain()["counts"] == {"env_steps": 10, "updates": 1}


def test_statistics_of_another_optimizer_are_refused() -> None:
    saved = Setup(ADAM).master.save()
    with pytest.raises(UserError, match=r"rmsprop keeps square_avg, but the checkpoint holds exp_avg, exp_avg_sq"):
        Setup(OptimizerConfig("rmsprop", momentum=0.0)).master.load(saved)
