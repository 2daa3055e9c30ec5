from __future__ import annotations

from helpers import FakeTime, board, report

from pappus.telemetry.board import Board


def _with(subject: Board, **shares: tuple[float, dict[str, float]]) -> str:
    for role, (busy, waiting) in shares.items():
        subject.add(report(role.replace("_", "-"), busy=busy, waiting=waiting))
    return subject.verdict()


def test_busy_actors_and_a_waiting_learner_ask_for_more_actors():
    verdict = _with(board(FakeTime()), actor_0=(0.97, {"slots": 0.03}), learner=(0.59, {"unrolls": 0.41}))
    assert verdict == (
        "actor-0 is the bottleneck: busy 97 %, the learner waits for unrolls 41 % of its time; add actors or envs"
    )


def test_more_actors_are_not_advised_where_no_core_is_free():
    verdict = _with(board(FakeTime(), cores=2), actor_0=(0.97, {"slots": 0.03}), learner=(0.59, {"unrolls": 0.41}))
    assert verdict.endswith("no core of 2 is free for another actor, so add envs (--envs-per-actor) or cores")


def test_a_busy_learner_throttles_its_actors():
    verdict = _with(board(FakeTime()), actor_0=(0.4, {"slots": 0.6}), learner=(0.99, {"unrolls": 0.01}))
    assert verdict == (
        "the learner is the bottleneck: busy 99 %, actor-0 waits for slots 60 % of its time; "
        "use a larger batch, a faster device or a smaller network"
    )


def test_central_inference_can_be_the_bottleneck():
    verdict = _with(
        board(FakeTime()), actor_0=(0.2, {"actions": 0.8}), inference=(1.0, {}), learner=(0.5, {"unrolls": 0.5})
    )
    assert verdict.startswith("the inference is the bottleneck: busy 100 %, actor-0 waits for actions 80 %")
    assert "larger batches" in verdict


def test_the_busier_side_is_the_bottleneck_even_with_some_latency():
    verdict = _with(board(FakeTime()), actor_0=(0.84, {"weights": 0.16}), learner=(0.45, {"unrolls": 0.55}))
    assert verdict.startswith("actor-0 is the bottleneck: busy 84 %, the learner waits for unrolls 55 %")


def test_both_sides_busy_is_balance():
    verdict = _with(board(FakeTime(), cores=2), actor_0=(0.95, {"slots": 0.05}), learner=(0.9, {"unrolls": 0.1}))
    assert verdict.startswith("balanced: actor-0 is busy 95 % and the learner 90 %")


def test_waiting_on_all_sides_is_latency():
    verdict = _with(board(FakeTime()), actor_0=(0.5, {"slots": 0.5}), learner=(0.6, {"unrolls": 0.4}))
    assert verdict.startswith("no role is the bottleneck: the busiest, the learner, is busy 60 %")
    assert "actor-0 waits for slots 50 % of its time" in verdict and "--queue-size" in verdict


def test_a_busy_evaluator_is_nobodys_bottleneck():
    verdict = _with(
        board(FakeTime()), evaluator=(1.0, {}), actor_0=(0.9, {"slots": 0.1}), learner=(0.5, {"unrolls": 0.5})
    )
    assert verdict.startswith("actor-0 is the bottleneck")


def test_one_thread_is_named_as_the_limit_of_the_inline_runtime():
    subject = board(FakeTime(), runtime="inline")
    assert _with(subject, actor_0=(0.3, {"its turn": 0.7}), learner=(0.7, {"its turn": 0.3})) == (
        "one thread does everything, the learner takes 70 % of it; --runtime local runs the roles side by side"
    )


def test_a_silent_role_is_named_before_anything_else():
    time = FakeTime()
    subject = board(time)
    _with(subject, learner=(0.5, {"unrolls": 0.5}), actor_3=(1.0, {}))
    time.pass_(12)
    assert _with(subject, learner=(0.5, {"unrolls": 0.5})) == (
        "actor-3 has not reported for 12 s: one step takes long, or is stuck"
    )


def test_before_the_first_report_there_is_no_verdict():
    assert board(FakeTime()).verdict() == "nothing measured yet"
