"""Weights that several workers change in place."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from pappus.config import OptimizerConfig
from pappus.roles.gradient_step import make_optimizer
from pappus.roles.lock_free import statistics_of
from pappus.roles.role import IDLE
from tests.roles.lock_free_tools import SIZE, STEPS, Setup

CONSTANT = OptimizerConfig("rmsprop", 0.1, anneal=False, decay=0.0, momentum=0.0, epsilon=0.0)
"""Steps of the rate itself, in the direction of the gradient's sign."""
OPTIMIZERS = [
    OptimizerConfig("adam", anneal=False),
    OptimizerConfig("adagrad", anneal=False),
    OptimizerConfig("rmsprop", anneal=False, momentum=0.0),
    OptimizerConfig("rmsprop", anneal=False, momentum=0.9, centered=True),
]


def gradients(count: int) -> list[np.ndarray]:
    return list(np.random.default_rng(0).normal(size=(count, SIZE)).astype(np.float32))


@pytest.mark.parametrize("config", OPTIMIZERS, ids=["adam", "adagrad", "rmsprop", "centered"])
def test_workers_in_turn_are_one_optimizer_of_torchs(config: OptimizerConfig) -> None:
    setup = Setup(config, workers=3, initial=1.0)
    setup.master.step()
    alone = torch.nn.Parameter(torch.ones(SIZE))
    optimizer = make_optimizer(config, [alone])
    for i, gradient in enumerate(gradients(12)):
        setup.channels[i % 3].send(gradient, 0.0)
        alone.grad = torch.from_numpy(gradient)
        optimizer.step()
    torch.testing.assert_close(torch.tensor(setup.read()), alone.detach())
    for name, statistic in zip(statistics_of(config), setup.shared_parameters.rows[1:], strict=True):
        torch.testing.assert_close(torch.from_numpy(statistic), optimizer.state_dict()["state"][0][name])
    assert setup.updates.total() == 12


def test_there_is_no_version_before_the_master_has_opened_the_shared_parameters() -> None:
    setup = Setup(CONSTANT, initial=2.0)
    assert setup.channels[0].version() == -1
    setup.master.step()
    assert setup.channels[0].version() == 0 and setup.read() == [2.0] * SIZE


def test_staleness_is_what_others_did_since_the_weights_were_read() -> None:
    setup = Setup(CONSTANT, workers=2)
    setup.master.step()
    one, other = setup.channels
    gradient = np.ones(SIZE, np.float32)
    setup.read(0)
    setup.read(1)
    assert [other.send(gradient, 0.0), other.send(gradient, 0.0)] == [0, 1], "its own do not know of each other"
    assert one.send(gradient, 0.0) == 2
    setup.read(0)
    assert one.send(gradient, 0.0) == 0 and one.version() == 4


def test_the_step_size_falls_with_the_steps_of_all() -> None:
    setup = Setup(OptimizerConfig("rmsprop", 0.1, anneal=True, decay=0.0, momentum=0.0, epsilon=0.0), workers=2)
    setup.master.step()
    setup.steps.counter(1).add(STEPS // 2)
    setup.channels[0].send(np.ones(SIZE, np.float32), 0.0)
    assert setup.read() == pytest.approx([-0.05] * SIZE)


def test_workers_that_write_at_once_lose_no_count_and_break_no_number() -> None:
    workers, times = 4, 500
    setup = Setup(OptimizerConfig("adam", 1e-3, anneal=False), workers)
    setup.master.step()

    def work(worker: int) -> None:
        into = np.empty(SIZE, np.float32)
        for _ in range(times):
            setup.channels[worker].read(into)
            assert np.isfinite(into).all()
            setup.channels[worker].send(np.ones(SIZE, np.float32), 0.0)

    with ThreadPoolExecutor(workers) as threads:
        list(threads.map(work, range(workers)))
    assert setup.updates.total() == workers * times
    assert all(-1.1 * workers * times * 1e-3 < value < -0.9 * times * 1e-3 for value in setup.read())


def test_it_takes_none_after_the_master_was_told_to_finish() -> None:
    setup = Setup(CONSTANT, workers=2)
    setup.master.step()
    assert [channel.full() for channel in setup.channels] == [None, None]
    setup.master.receive("finish", 0)
    assert setup.master.finished and all(channel.full() is IDLE for channel in setup.channels)


def test_it_takes_gradients_until_the_run_has_its_steps() -> None:
    setup = Setup(CONSTANT, workers=2)
    assert setup.channels[0].full() is None
    setup.steps.counter(1).add(STEPS)
    assert setup.channels[0].full() is not None
