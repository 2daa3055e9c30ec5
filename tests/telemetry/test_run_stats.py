from __future__ import annotations

import os

import pytest
from helpers import FakeTime, report, run_stats

from pappus.kinds import ACTOR, LEARNER
from pappus.telemetry.run_stats import MANY, MAX_EVENTS, RunStats


def test_env_steps_are_those_the_learner_trained_on():
    subject = run_stats(FakeTime())
    subject.add(report("actor-0", counts={"env_steps": 500}))
    subject.add(report("learner", counts={"env_steps": 300, "updates": 3}))
    assert (subject.env_steps, subject.updates, subject.progress) == (300, 3, 0.3)


def test_steps_of_all_learners_count_and_each_of_them_is_shown():
    subject = run_stats(FakeTime())
    subject.add(report("learner", 0.5, counts={"env_steps": 300, "updates": 3}))
    subject.add(report("learner-1", 0.1, {"other learners": 0.4}, counts={"env_steps": 200}))
    assert (subject.env_steps, subject.updates) == (500, 3)
    assert [(view.role, view.state) for view in subject.views()] == [
        ("learner", "busy"), ("learner-1", "waits for other learners")
    ]
    assert subject.scalars()["learner/waiting_for_other_learners"] == pytest.approx(0.4)


def test_progress_is_that_of_the_limit_that_ends_the_run_first():
    time = FakeTime()
    subject = run_stats(time)
    assert subject.seconds_left is None
    subject.add(report("learner", counts={"env_steps": 0}, start=time.now))
    time.pass_(1.0)
    subject.add(report("learner", counts={"env_steps": 100, "updates": 1}))
    assert subject.seconds_left == pytest.approx(900 / subject.steps_per_second)
    subject.limits_used, subject.limits_seconds = {"money": 0.0, "seconds": 0.25}, 2.0
    assert (subject.progress, subject.seconds_left) == (0.25, 6.0)
    subject.training_ended()
    assert (subject.progress, subject.seconds_left) == (0.25, None)


def test_a_resumed_run_counts_on():
    subject = run_stats(FakeTime())
    subject.resume(env_steps=600, updates=6)
    subject.add(report("learner", counts={"env_steps": 100, "updates": 1}))
    assert (subject.env_steps, subject.updates) == (700, 7)


def test_rates_cover_the_window_and_forget_what_came_before():
    time = FakeTime()
    subject = run_stats(time)
    subject.add(report("learner", busy=1.0, counts={"env_steps": 9_000_000}))
    for _ in range(12):
        time.pass_(0.5)
        subject.add(report("learner", busy=0.3, waiting={"unrolls": 0.2}, counts={"env_steps": 500, "updates": 5}))
    assert subject.steps_per_second == pytest.approx(1000)
    assert subject.updates_per_second == pytest.approx(10)


def test_what_a_brief_report_counts_belongs_to_the_time_of_the_next_whole_one():
    subject = run_stats(FakeTime())
    subject.add(report("learner", 1.0, counts={"env_steps": 10, "updates": 1}, start=2.0))
    subject.add(report("learner", 0.0, counts={"env_steps": 90}, brief=True))
    assert (subject.env_steps, subject.steps_per_second) == (100, 10.0)
    subject.add(report("learner", 1.0))
    assert (subject.env_steps, subject.steps_per_second) == (100, 50.0)
    assert subject.rate("env_steps", whole_run=True) == 50.0


def test_with_parameter_servers_steps_are_those_that_the_leading_one_counts():
    subject = run_stats(FakeTime())
    subject.add(report("bundle-0", busy=1.0, counts={"env_steps": 700, "gradients": 9}))
    waiting = {"gradients": 0.5}
    subject.add(report("parameter-server-0", waiting=waiting, counts={"env_steps": 600, "updates": 8}))
    subject.add(report("parameter-server-1", waiting=waiting))
    assert (subject.env_steps, subject.updates) == (600, 8)
    assert subject.steps_per_second == subject.scalars()["charts/SPS"] == pytest.approx(600)
    assert subject.updates_per_second == pytest.approx(8)


def test_a_learner_that_stopped_reporting_has_no_rate():
    time = FakeTime()
    subject = run_stats(time)
    subject.add(report("learner", counts={"env_steps": 500}))
    time.pass_(60)
    assert subject.steps_per_second == 0.0
    assert subject.scalars()["charts/SPS"] == 0.0


def test_rates_of_several_actors_add_up_and_their_shares_average():
    subject = run_stats(FakeTime())
    subject.add(report("actor-0", busy=0.5, counts={"env_steps": 100}))
    subject.add(report("actor-1", busy=0.1, waiting={"slots": 0.4}, counts={"env_steps": 50}))
    scalars = subject.scalars()
    assert scalars["actor/env_steps_per_second"] == pytest.approx(300)
    assert scalars["actor/busy"] == pytest.approx(0.6)
    assert scalars["actor/waiting"] == scalars["actor/waiting_for_slots"] == pytest.approx(0.4)


def test_no_return_is_known_before_an_episode_ends():
    subject = run_stats(FakeTime())
    subject.add(report("actor-0", counts={"env_steps": 100}))
    assert subject.episodic_return is None and subject.episodic_length is None
    assert "charts/episodic_return" not in subject.scalars()


def test_returns_are_the_mean_of_the_last_hundred_training_episodes():
    subject = run_stats(FakeTime())
    subject.add(report("actor-0", episodes=[[0.0, 1.0]] * 50, counts={"episodes": 50}))
    subject.add(report("actor-1", episodes=[[2.0, 5.0]] * 100, counts={"episodes": 300}))
    assert (subject.episodic_return, subject.episodic_length, subject.episodes) == (2.0, 5.0, 350)


def test_evaluations_are_kept_apart_from_training():
    subject = run_stats(FakeTime())
    assert subject.eval_return is None
    subject.add(report("actor-0", episodes=[[2.0, 5.0]], counts={"episodes": 1}))
    gauges = {"eval/episodic_return": 99.0}
    subject.add(report("evaluator", episodes=[[99.0, 9.0]], counts={"episodes": 1}, gauges=gauges))
    assert (subject.episodic_return, subject.episodes) == (2.0, 1)
    assert subject.eval_return == subject.scalars()["eval/episodic_return"] == 99.0


def test_scalars_carry_the_names_that_users_know():
    subject = run_stats(FakeTime())
    subject.process("learner", os.getpid())
    subject.add(report("actor-0", busy=0.5, episodes=[[3.0, 4.0]]))
    subject.add(report(
        "learner", busy=0.3, waiting={"full batches": 0.2}, counts={"env_steps": 50, "updates": 5},
        means={"losses/policy": [4.0, 2.0], "learner/policy_lag": [6.0, 4.0]}, maxima={"policy_lag": 4.0},
        gauges={"queue/depth": 3.0, "learning_rate": 0.1},
    ))
    scalars = subject.scalars()
    assert scalars.pop("memory/learner") > 1
    assert scalars == pytest.approx({
        "charts/SPS": 100.0, "charts/updates": 5.0, "charts/episodic_return": 3.0, "charts/episodic_length": 4.0,
        "losses/policy": 2.0,
        "learner/env_steps_per_second": 100.0, "learner/updates_per_second": 10.0,
        "learner/policy_lag": 1.5, "learner/policy_lag_max": 4.0, "learner/learning_rate": 0.1,
        "learner/busy": 0.6, "learner/waiting": 0.4, "learner/waiting_for_full_batches": 0.4,
        "actor/busy": 1.0, "actor/waiting": 0.0, "queue/depth": 3.0,
        "doctor/promised_gain": subject.diagnosis().change.gain,
    })
    assert subject.policy_lag == (1.5, 4.0) and subject.queue_depth == 3.0


def test_limits_say_what_each_side_could_do_alone():
    subject = run_stats(FakeTime())
    subject.add(report("actor-0", busy=0.5, counts={"env_steps": 100}))
    subject.add(report("learner", busy=0.1, waiting={"unrolls": 0.4}, counts={"env_steps": 100}))
    assert subject.limits() == pytest.approx({"actor": 200, "learner": 1000})


def test_rates_of_the_whole_run_do_not_fade_while_it_ends():
    clock = FakeTime()
    subject = run_stats(clock)
    subject.add(report("actor-0", busy=1.0, waiting={"slots": 1.0}, counts={"env_steps": 100, "unrolls_bytes": 4000}))
    for _ in range(10):
        clock.pass_(1.0)
        subject.add(report("actor-0", busy=0.0, waiting={"slots": 1.0}))
    assert subject.byte_rates(whole_run=True) == {"actor/unrolls_bytes_per_second": 2000.0}
    assert subject.limits(whole_run=True) == {"actor": 100.0} and subject.byte_rates() == {}


def test_the_speed_does_not_fade_while_the_last_evaluation_plays():
    clock = FakeTime()
    subject = run_stats(clock)
    subject.add(report("learner", busy=1.0, counts={"env_steps": 100, "updates": 2}))
    subject.training_ended()
    for _ in range(10):
        clock.pass_(1.0)
        subject.add(report("learner", busy=0.0, waiting={"commands": 1.0}))
    assert subject.scalars()["charts/SPS"] == subject.steps_per_second == 100.0


def test_the_last_evaluation_is_not_blamed_for_taking_a_core():
    subject = run_stats(FakeTime(), cores=2)
    queued = {"usage": {"computing": 0.5, "queued": 0.5, "polling": 0.0, "helpers": 0.0}}
    for role in ("learner", "actor-0"):
        subject.add(report(role, busy=1.0, counts={"env_steps": 10, "updates": 5}, **queued))
    subject.training_ended()
    usage = {"computing": 1.0, "queued": 0.0, "polling": 0.0, "helpers": 0.0}
    subject.add(report("evaluator", busy=1.0, counts={"episodes": 1}, usage=usage))
    assert subject.trained and subject.diagnosis() is subject.diagnosis(whole_run=True)
    assert "evaluator" not in [finding.what for finding in subject.diagnosis().findings]


def test_shares_of_an_evaluator_that_outlasts_the_training_sum_to_one():
    subject = run_stats(FakeTime())
    subject.add(report("learner", busy=2.0, counts={"updates": 1}))
    subject.add(report("evaluator", busy=1.0, waiting={"commands": 3.0}, counts={"episodes": 1}))
    learner, evaluator = subject.views(whole_run=True)
    assert (learner.busy, evaluator.busy, evaluator.idle) == (1.0, 0.25, 0.75)


def test_what_progress_is_a_share_of_is_told():
    subject = run_stats(FakeTime())
    subject.env_steps, subject.limits_used = 100, {"seconds": 0.05}
    assert (subject.nearest_limit, subject.progress) == ("steps", 0.1)
    subject.limits_used = {"seconds": 0.5, "money": 0.7}
    assert (subject.nearest_limit, subject.progress) == ("money", 0.7)


def test_another_process_of_a_known_role_is_a_restart():
    subject = run_stats(FakeTime())
    subject.process("actor-0", 10)
    subject.process("actor-0", 10)
    assert subject.restarts == 0
    subject.process("actor-0", 11)
    assert subject.restarts == subject.views()[0].restarts == 1


def test_memory_of_a_dead_process_is_unknown():
    subject = run_stats(FakeTime())
    subject.process("actor-0", 2**22 + 1)
    assert subject.views()[0].memory is None
    assert "memory/actor-0" not in subject.scalars()


def test_many_roles_of_a_kind_share_one_curve_of_memory():
    kinds = {f"actor-{i}": ACTOR for i in range(MANY + 1)} | {"learner": LEARNER}
    subject = RunStats(run_stats(FakeTime()).config, kinds, FakeTime())
    subject.process("actor-0", os.getpid())
    subject.process("learner", os.getpid())
    assert {name for name in subject.scalars() if name.startswith("memory/")} == {"memory/actor", "memory/learner"}


def test_roles_of_a_kind_that_do_the_same_are_told_together():
    subject = run_stats(FakeTime())
    for role in ("actor-0", "actor-1"):
        subject.add(report(role, busy=0.1, waiting={"weights": 0.9}))
    subject.add(report("learner", busy=0.9))
    assert subject.states() == "actor ×2 waits for weights; learner busy"


def test_the_state_of_a_role_is_what_it_mostly_did():
    subject = run_stats(FakeTime())
    subject.process("actor-1", 1)
    subject.add(report("actor-0", busy=0.4, waiting={"slots": 0.1}))
    subject.add(report("learner", busy=0.1, waiting={"unrolls": 0.3, "weights": 0.1}))
    states = {view.role: view.state for view in subject.views()}
    assert states == {"actor-1": "no report", "actor-0": "busy", "learner": "waits for unrolls"}


def test_every_event_is_handed_out_once_and_memory_of_them_is_bounded():
    subject = run_stats(FakeTime())
    subject.add(report("actor-0", events=["made 64 envs"], time=7.0))
    subject.event("saved a checkpoint")
    first, second = subject.new_events()
    assert (str(first), first.time, str(second)) == ("actor-0: made 64 envs", 7.0, "saved a checkpoint")
    assert subject.new_events() == []
    for index in range(2 * MAX_EVENTS):
        subject.event(str(index))
    assert len(subject.events) == len(subject.new_events()) == MAX_EVENTS


def test_starting_up_is_no_part_of_rates_and_shares():
    time = FakeTime()
    subject = run_stats(time)
    subject.add(report("learner", busy=0.1, waiting={"unrolls": 2.9}))
    time.pass_(0.5)
    subject.add(report("learner", busy=0.5, counts={"env_steps": 50}))
    assert subject.steps_per_second == pytest.approx(100)
    assert subject.views()[0].busy == subject.views(whole_run=True)[0].busy == 1.0


def test_a_role_that_was_done_early_takes_a_small_share_of_the_run():
    time = FakeTime()
    subject = run_stats(time)
    subject.add(report("actor-0", busy=2.0, counts={"env_steps": 1}))
    for _ in range(8):
        time.pass_(1.0)
        subject.add(report("learner", busy=1.0, counts={"updates": 1}))
    shares = {view.role: view.busy for view in subject.views(whole_run=True)}
    assert shares == pytest.approx({"actor-0": 0.25, "learner": 1.0})
    assert "the learner" in subject.verdict(whole_run=True)


def test_the_whole_run_ends_with_the_last_count():
    time = FakeTime()
    subject = run_stats(time)
    subject.add(report("learner", busy=0.5, counts={"updates": 1}))
    subject.add(report("learner", busy=0.0, waiting={"unrolls": 0.5}))
    subject.add(report("learner", busy=1.0, counts={"updates": 1}))
    time.pass_(60)
    subject.add(report("learner", busy=0.0, waiting={"unrolls": 20.0}))
    assert subject.views(whole_run=True)[0].busy == pytest.approx(0.75)
    assert subject.views()[0].busy == 0.0


def test_a_window_stays_small_however_many_reports_arrive():
    time = FakeTime()
    subject = run_stats(time)
    for _ in range(5000):
        time.pass_(0.01)
        subject.add(report("learner", busy=0.01, counts={"env_steps": 1}))
    assert len(subject._roles["learner"].window._buckets) <= 11
    assert subject.steps_per_second == pytest.approx(100)


def test_bytes_add_up_over_the_roles_but_for_the_evaluator():
    subject = run_stats(FakeTime())
    for role, counts in (
        ("actor-0", {"unrolls_bytes": 10, "weights_bytes": 1}), ("actor-1", {"unrolls_bytes": 20}),
        ("learner", {"updates": 1}), ("inference", {"weights_bytes": 2}), ("evaluator", {"weights_bytes": 4}),
    ):
        subject.add(report(role, counts=counts))
    assert subject.bytes_moved() == {"unrolls": 30, "weights": 3}


def test_the_same_pid_on_another_node_is_a_restart():
    subject = run_stats(FakeTime())
    for node in ("10.0.0.1", "10.0.0.1", "10.0.0.2"):
        subject.process("actor-0", 7, node)
    assert subject.restarts == 1 and subject.views()[0].node == "10.0.0.2"


def test_processes_of_other_machines_count_with_what_they_say_of_themselves():
    subject = run_stats(FakeTime())
    for role in ("inference", "learner"):  # two roles of one process
        subject.process(role, 7, "10.0.0.1")
        subject.measured(role, 100, 1000.0)
    assert subject.elsewhere() == [(100, 1000.0)], "once for both"


def test_what_a_process_elsewhere_has_computed_outlives_it():
    subject = run_stats(FakeTime())
    for pid, memory, seconds in ((7, 100, 5.0), (8, 30, 1.0), (8, 20, 2.0)):
        subject.process("actor-0", pid, "10.0.0.1")
        subject.measured("actor-0", memory, seconds)
    assert subject.elsewhere() == [(0, 5.0), (30, 2.0)], "its memory is free, and of the other the most counts"


def test_restarts_and_their_reasons_are_counted_by_kind_of_role():
    subject = run_stats(FakeTime())
    assert subject.faults() == {"restarts": {}, "env_crashes": {}, "hangs": {}, "crashes": {}}
    for pid in (10, 11, 12):
        subject.process("actor-0", pid)
    subject.failed("actor-0", "env_crashes")
    subject.failed("actor-1", "env_crashes")
    subject.failed("learner", "hangs")
    assert subject.faults() == {
        "restarts": {"actor": 2}, "env_crashes": {"actor": 2}, "hangs": {"learner": 1}, "crashes": {}
    }
    assert subject.scalars()["actor/restarts"] == 2 and subject.scalars()["learner/hangs"] == 1


def test_what_all_roles_did_lately_is_found_once_a_second_and_memory_once_for_each_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time, asked = FakeTime(), list[int]()
    subject = run_stats(time)
    monkeypatch.setattr("pappus.telemetry.run_stats.resident_bytes", lambda pid: asked.append(pid) or 1 << 20)
    for role in ("actor-0", "actor-1", "learner"):
        subject.process(role, 7)
        subject.add(report(role, 0.5, {"unrolls": 0.5}))
    scalars = subject.scalars()
    assert scalars["memory/actor-0"] == scalars["memory/learner"] == 1.0
    views, diagnosis = subject.views(), subject.diagnosis()
    assert subject.views() is views and subject.diagnosis() is diagnosis and asked == [7]
    time.pass_(1)
    assert subject.views() is not views and asked == [7, 7]
    assert subject.views(whole_run=True) is not subject.views(whole_run=True), "what is written down is never old"


def test_nothing_is_said_of_a_run_with_one_update():
    time = FakeTime()
    subject = run_stats(time)
    subject.add(report("learner", busy=9.0, waiting={"unrolls": 1.0}, counts={"updates": 1}))
    assert subject.verdict() == subject.verdict(whole_run=True) == "too short to tell: there was no second update"
    time.pass_(1)
    subject.add(report("learner", busy=9.0, waiting={"unrolls": 1.0}, counts={"updates": 1}))
    assert "too short" not in subject.verdict() and "too short" not in subject.verdict(whole_run=True)
