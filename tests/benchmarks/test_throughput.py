"""What the benchmarks of throughput derive from what they measure."""

from __future__ import annotations

import pytest

from benchmarks.peers.measuring import Window
from benchmarks.replay_throughput import PEERS_WORK, Parts, updates_per_step
from benchmarks.throughput import second_half
from pappus.api import configure


def test_the_limit_is_the_cores_over_the_summed_costs_of_a_step_and_its_share_of_an_update():
    parts = Parts(env=1_000.0, acting=500.0, updates=250.0, precision="float32")
    seconds_per_step = 1 / 1_000 + 1 / 500 + (1 / 4) / 250
    assert parts.limits(updates_per_step=1 / 4, cores=2).together == pytest.approx(2 / seconds_per_step)


def test_the_peers_work_is_an_update_for_every_four_steps():
    assert updates_per_step(configure("apex-dqn", "CartPole-v1", PEERS_WORK), items_per_step=1.0) == 1 / 4


def test_updates_per_step_follow_the_items_that_a_step_makes():
    config = configure("seed-r2d2", "CartPole-v1", {"batch_size": 32, "topology.replay.samples_per_insert": 8.0})
    assert updates_per_step(config, items_per_step=0.1) == pytest.approx(0.1 * 8 / 32)


def test_only_the_second_half_of_a_run_counts():
    rows = [
        {"step": step, "time": time, "charts/updates": updates}
        for step, time, updates in ((10, 0.0, 1), (50, 8.0, 10), (80, 9.0, 20), (100, 10.0, 30), (100, 99.0, 30))
    ]
    measured = second_half(rows, 100)
    assert (measured.steps, measured.updates) == (25.0, 10.0)


def test_a_peers_window_counts_steps_and_updates_from_where_it_opened():
    times = iter([0.0, 5.0, 10.0, 15.0])
    window = Window(warmup=5.0, seconds=10.0, clock=lambda: next(times))
    full = [window.observe(steps, updates) for steps, updates in ((100, 10), (200, 20), (300, 40), (500, 90))]
    assert full == [False, False, False, True]
    assert (window.elapsed, window.steps, window.updates) == (10.0, 300, 70)
