from __future__ import annotations

import json

import numpy as np
import pytest
from helpers import FakeTime

from pappus.telemetry.metrics import MAX_EPISODES, MAX_EVENTS, Meter, Metrics, RoleClock


def test_a_report_survives_json_unchanged():
    metrics = Metrics("actor-0", RoleClock(FakeTime()), wall_time=lambda: 5.0)
    metrics.count("env_steps", np.int32(64))
    metrics.mean("losses/policy", np.float32(0.5))
    metrics.maximum("policy_lag", np.int64(3))
    metrics.gauge("queue/depth", np.uint8(2))
    metrics.episodes(np.array([1.0, 2.0], np.float32), np.array([10, 20]))
    metrics.event("started")
    report = metrics.drain()
    assert json.loads(json.dumps(report)) == report
    assert (report["role"], report["time"], report["events"]) == ("actor-0", 5.0, ["started"])
    assert report["episodes"] == [[1.0, 10.0], [2.0, 20.0]]


def test_counts_of_small_integer_types_do_not_overflow():
    metrics = Metrics("learner")
    for _ in range(3):
        metrics.count("env_steps", np.uint8(200))
    assert metrics.drain()["counts"]["env_steps"] == 600


def test_means_are_weighted():
    metrics = Metrics("learner")
    metrics.mean("losses/value", 1.0, weight=3)
    metrics.mean("losses/value", 5.0)
    assert metrics.drain()["means"]["losses/value"] == [8.0, 4.0]


def test_a_maximum_may_be_negative():
    metrics = Metrics("learner")
    metrics.maximum("value", -3.0)
    metrics.maximum("value", -5.0)
    assert metrics.drain()["maxima"] == {"value": -3.0}


def test_a_drained_report_starts_the_next_one_empty():
    metrics = Metrics("actor-0")
    metrics.count("env_steps", 5)
    metrics.gauge("depth", 1)
    first = metrics.drain()
    metrics.count("env_steps", 7)
    assert first["counts"] == {"env_steps": 5}
    second = metrics.drain()
    assert second["counts"] == {"env_steps": 7} and second["gauges"] == {}


def test_episodes_beyond_the_bound_stay_in_counts_and_means():
    metrics = Metrics("actor-0")
    total = MAX_EPISODES + 500
    metrics.episodes(np.arange(total), np.full(total, 2))
    report = metrics.drain()
    assert len(report["episodes"]) == MAX_EPISODES and report["episodes"][-1] == [total - 1, 2]
    assert report["counts"]["episodes"] == total
    assert report["means"]["episodes/return"] == [pytest.approx(sum(range(total))), total]
    assert report["means"]["episodes/length"] == [2 * total, total]


def test_no_finished_episode_leaves_no_trace():
    metrics = Metrics("actor-0")
    metrics.episodes([], [])
    assert metrics.drain()["counts"] == {}


def test_a_flood_of_events_is_bounded_and_counted():
    metrics = Metrics("actor-0")
    for index in range(MAX_EVENTS + 7):
        metrics.event(f"event {index}")
    events = metrics.drain()["events"]
    assert len(events) == MAX_EVENTS + 1 and events[-1] == "7 more events"
    assert metrics.drain()["events"] == []


def test_time_is_split_into_busy_and_waiting_for_what():
    time = FakeTime()
    clock = RoleClock(time)
    time.pass_(1)
    clock.waiting("unrolls")
    time.pass_(2)
    clock.waiting("weights")
    time.pass_(3)
    clock.busy()
    time.pass_(4)
    assert clock.drain() == (5.0, {"unrolls": 2.0, "weights": 3.0})


def test_a_wait_that_spans_reports_is_split_between_them():
    time = FakeTime()
    clock = RoleClock(time)
    clock.waiting("unrolls")
    time.pass_(2)
    assert clock.drain() == (0.0, {"unrolls": 2.0})
    time.pass_(3)
    clock.busy()
    time.pass_(1)
    assert clock.drain() == (1.0, {"unrolls": 3.0})


def test_metrics_report_the_time_of_their_clock():
    time = FakeTime()
    metrics = Metrics("learner", RoleClock(time))
    time.pass_(1)
    metrics.clock.waiting("unrolls")
    time.pass_(2)
    report = metrics.drain()
    assert (report["busy"], report["waiting"]) == (1.0, {"unrolls": 2.0})


def test_what_a_meter_counts_is_reported_once_and_only_beside_progress():
    metrics, meter = Metrics("actor-0"), Meter()
    metrics.watch("unrolls_bytes", meter)
    meter.total += 100
    assert metrics.drain()["counts"] == {}
    metrics.count("env_steps")
    assert metrics.drain()["counts"] == {"env_steps": 1, "unrolls_bytes": 100}
    metrics.count("env_steps")
    assert metrics.drain()["counts"] == {"env_steps": 1}


def test_meters_that_share_a_name_add_up():
    metrics, meters = Metrics("worker-0"), (Meter(), Meter())
    for meter in meters:
        metrics.watch("gradients_bytes", meter)
    for first, second in ((100, 70), (10, 7)):
        meters[0].total += first
        meters[1].total += second
        metrics.count("gradients")
        assert metrics.drain()["counts"]["gradients_bytes"] == first + second
