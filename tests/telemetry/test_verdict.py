from __future__ import annotations

import re
from typing import Any

import pytest
from helpers import KINDS, FakeTime, report, run_stats

from pappus.settings import option_names, override
from pappus.systems import find_system
from pappus.telemetry.run_stats import RunStats
from pappus.topologies.impala import ImpalaConfig


def _with(subject: RunStats, **shares: tuple[float, dict[str, float]]) -> str:
    for role, (busy, waiting) in shares.items():
        subject.add(report(role.replace("_", "-"), busy=busy, waiting=waiting))
    return subject.verdict()


def test_busy_actors_and_a_waiting_learner_ask_for_more_actors():
    verdict = _with(run_stats(FakeTime()), actor_0=(0.97, {"slots": 0.03}), learner=(0.59, {"unrolls": 0.41}))
    assert verdict == (
        "actor-0 is the bottleneck: busy 97 %, the learner waits for unrolls 41 % of its time; add actors or envs"
    )


def test_more_actors_are_not_advised_where_no_core_is_free():
    verdict = _with(run_stats(FakeTime(), cores=2), actor_0=(0.97, {"slots": 0.03}), learner=(0.59, {"unrolls": 0.41}))
    assert verdict.endswith("no core of 2 is free for another actor, so add envs (--envs-per-actor) or cores")


def test_a_busy_learner_throttles_its_actors():
    verdict = _with(run_stats(FakeTime()), actor_0=(0.4, {"slots": 0.6}), learner=(0.99, {"unrolls": 0.01}))
    assert verdict == (
        "the learner is the bottleneck: busy 99 %, actor-0 waits for slots 60 % of its time; "
        "use a larger batch, a faster device or a smaller network"
    )


def test_central_inference_can_be_the_bottleneck():
    verdict = _with(
        run_stats(FakeTime()), actor_0=(0.2, {"actions": 0.8}), inference=(1.0, {}), learner=(0.5, {"unrolls": 0.5})
    )
    assert verdict.startswith("the inference is the bottleneck: busy 100 %, actor-0 waits for actions 80 %")
    assert "larger batches" in verdict


def test_the_busier_side_is_the_bottleneck_even_with_some_latency():
    verdict = _with(run_stats(FakeTime()), actor_0=(0.84, {"weights": 0.16}), learner=(0.45, {"unrolls": 0.55}))
    assert verdict.startswith("actor-0 is the bottleneck: busy 84 %, the learner waits for unrolls 55 %")


def test_both_sides_busy_is_balance():
    verdict = _with(run_stats(FakeTime(), cores=2), actor_0=(0.95, {"slots": 0.05}), learner=(0.9, {"unrolls": 0.1}))
    assert verdict.startswith("balanced: actor-0 is busy 95 % and the learner 90 %")


def test_waiting_on_all_sides_is_latency():
    subject = run_stats(FakeTime(), topology=ImpalaConfig())
    verdict = _with(subject, actor_0=(0.5, {"slots": 0.5}), learner=(0.6, {"unrolls": 0.4}))
    assert verdict.startswith("no role is the bottleneck: the busiest, the learner, is busy 60 %")
    assert "actor-0 waits for slots 50 % of its time" in verdict and "--queue-size" in verdict


@pytest.mark.parametrize(
    ("system", "settings", "advice"),
    [
        ("impala", {}, "let actors run further ahead (--queue-size) or give"),
        ("seed-vtrace", {}, "let actors run further ahead (--queue-size) or give"),
        ("apex-dqn", {}, "let actors run further ahead (--topology.replay.tolerance) or give"),
        ("seed-r2d2", {}, "let actors run further ahead (--topology.replay.tolerance) or give"),
        ("gorila-dqn", {"topology.replay_memory": "central"}, "(--topology.replay.tolerance) or give"),
        ("gorila-dqn", {}, "; give each step more work (--envs-per-actor)"),
        ("a3c", {}, "; give each step more work (--envs-per-actor)"),
    ],
)
def test_advice_names_options_that_the_topology_has(system: str, settings: dict[str, str], advice: str):
    config = override(find_system(system).defaults, {**settings, "runtime": "local"})
    subject = RunStats(config, KINDS, clock=FakeTime(), cores=64)
    verdict = _with(subject, actor_0=(0.5, {"slots": 0.5}), learner=(0.6, {"unrolls": 0.4}))
    assert advice in verdict and verdict.endswith("(--envs-per-actor)")
    named = [option.strip("-") for option in re.findall(r"\((--[a-z.-]+)\)", verdict)]
    assert named and set(named) <= set(option_names(config))


def test_busy_bundles_ask_for_more_of_them_where_a_core_is_free():
    shares: dict[str, Any] = {"bundle_0": (0.96, {}), "parameter_server_0": (0.08, {"gradients-0": 0.92})}
    assert _with(run_stats(FakeTime(), cores=8), **shares).endswith("; add bundles (--actors)")
    assert "no core of 1 is free for another bundle" in _with(run_stats(FakeTime(), cores=1), **shares)


def test_busy_workers_ask_for_more_of_them_and_their_master_is_no_part_of_it():
    shares: dict[str, Any] = {"worker_0": (0.96, {"its last gradient": 0.04}), "master": (0.99, {})}
    verdict = _with(run_stats(FakeTime(), cores=8), **shares)
    assert verdict == "worker-0 is the bottleneck: busy 96 %; add workers (--actors)"


def test_a_busy_replay_asks_for_fewer_and_larger_requests():
    verdict = _with(run_stats(FakeTime(), cores=8), replay=(0.96, {}), learner=(0.5, {"replay": 0.5}))
    assert verdict.endswith("; make fewer, larger requests (--batch-size, --envs-per-actor)"), "a run has one replay"


def test_a_busy_evaluator_is_nobodys_bottleneck():
    verdict = _with(
        run_stats(FakeTime()), evaluator=(1.0, {}), actor_0=(0.9, {"slots": 0.1}), learner=(0.5, {"unrolls": 0.5})
    )
    assert verdict.startswith("actor-0 is the bottleneck")


def test_one_thread_is_named_as_the_limit_of_the_inline_runtime():
    subject = run_stats(FakeTime(), runtime="inline")
    assert _with(subject, actor_0=(0.3, {"its turn": 0.7}), learner=(0.7, {"its turn": 0.3})) == (
        "one thread does everything, the learner takes 70 % of it; --runtime local runs the roles side by side"
    )


def test_a_silent_role_is_named_before_anything_else():
    time = FakeTime()
    subject = run_stats(time)
    _with(subject, learner=(0.5, {"unrolls": 0.5}), actor_3=(1.0, {}))
    time.pass_(12)
    assert _with(subject, learner=(0.5, {"unrolls": 0.5})) == (
        "actor-3 has not reported for 12 s: one step takes long, or is stuck"
    )


def test_before_the_first_report_there_is_no_verdict():
    assert run_stats(FakeTime()).verdict() == "nothing measured yet"
