"""Who hangs, told from who works long; time is injected."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pappus.config import EnvOptions, SupervisionConfig
from pappus.kinds import ACTOR, EVALUATOR, LEARNER, REPLAY, RoleKind
from pappus.runtimes.heartbeats import LONG_SECONDS, REPORT_SECONDS, Heartbeats, WatchClock, env_of, report_seconds
from pappus.topologies.program import RoleSpec


def spec_of(kind: RoleKind, step_timeout: float = 0.0) -> RoleSpec:
    config = SimpleNamespace(env="Slow-v0", env_options=EnvOptions(step_timeout=step_timeout))
    arguments = {"run": SimpleNamespace(config=config)}
    return RoleSpec(kind.name, kind, None, lambda **_: None, arguments, kind.name, False)  # type: ignore[arg-type]


def said(role: str, *counts: str) -> dict[str, Any]:
    return {"report": {"role": role, "counts": dict.fromkeys(counts, 1)}}


def watched(kind: RoleKind, floor: float = 30.0, step_timeout: float = 0.0, began: bool = True) -> Heartbeats:
    """A process with one role, which made its first piece of work at 0 s."""
    heartbeats = Heartbeats([spec_of(kind, step_timeout)], SupervisionConfig(hang_seconds=floor))
    heartbeats.begin(0.0)
    if began:
        heartbeats.hear(said(kind.name, "env_steps"), 0.0)
    return heartbeats


def test_a_role_that_is_silent_for_its_deadline_hangs() -> None:
    heartbeats = watched(ACTOR)
    assert heartbeats.hang(30.0) is None
    assert str(heartbeats.hang(31.0)) == "hung: actor gave no sign of life for 31 s, and had 30 s"
    heartbeats.hear(said("actor"), 31.0)
    assert heartbeats.hang(32.0) is None


def test_of_a_thousand_actors_each_reports_less_often_and_has_as_much_longer() -> None:
    assert report_seconds([spec_of(ACTOR)], 20) == report_seconds([spec_of(LEARNER)], 1000) == REPORT_SECONDS
    rhythm = report_seconds([spec_of(ACTOR)], 1000)
    assert rhythm == 2.5
    for specs, allowed in (([spec_of(ACTOR)], 32.25), ([spec_of(ACTOR, step_timeout=1.0)], 3.25)):
        heartbeats = Heartbeats(specs, SupervisionConfig(), rhythm)
        heartbeats.begin(0.0)
        heartbeats.hear(said("actor", "env_steps"), 0.0)
        assert heartbeats.hang(allowed) is None and heartbeats.hang(allowed + 0.1) is not None


def test_a_role_whose_steps_take_long_has_a_longer_deadline() -> None:
    heartbeats = watched(LEARNER)
    heartbeats.hear(said("learner", "updates"), 10.0)
    assert heartbeats.hang(10.0 + 200.0) is None
    assert heartbeats.hang(10.0 + 201.0) is not None


@pytest.mark.parametrize("kind", [ACTOR, LEARNER, EVALUATOR])
def test_the_first_work_of_a_role_may_take_long_though_it_reported_while_it_waited(kind: RoleKind) -> None:
    heartbeats = watched(kind, began=False)
    heartbeats.hear(said(kind.name), 1.0)
    assert heartbeats.hang(LONG_SECONDS) is None
    assert heartbeats.hang(LONG_SECONDS + 2.0) is not None


def test_a_role_that_counts_nothing_has_started_with_its_first_report() -> None:
    heartbeats = watched(REPLAY, began=False)
    heartbeats.hear(said("replay"), 1.0)
    assert heartbeats.hang(32.0) is not None


def test_a_process_has_started_when_all_its_roles_have() -> None:
    heartbeats = Heartbeats([spec_of(LEARNER), spec_of(REPLAY)], SupervisionConfig())
    heartbeats.begin(0.0)
    heartbeats.hear(said("replay"), 0.0)
    assert heartbeats.hang(100.0) is None, "the learner's first update may keep the other thread from reporting"


def test_an_env_that_took_a_minute_for_its_first_reset_may_do_so_again() -> None:
    heartbeats = watched(ACTOR, began=False)
    heartbeats.hear(said("actor", "env_steps"), 60.0)
    assert heartbeats.hang(60.0 + 119.0) is None
    assert heartbeats.hang(60.0 + 121.0) is not None


def test_a_role_that_saves_has_its_own_allowance_which_is_not_taken_for_its_usual_silence() -> None:
    heartbeats = watched(LEARNER)
    heartbeats.asked_to_save()
    heartbeats.hear(said("learner"), 1.0)
    assert heartbeats.hang(600.0) is None
    heartbeats.hear({"saved": "step-1", "progress": None}, 600.0)
    assert heartbeats.hang(629.0) is None
    assert heartbeats.hang(631.0) is not None


def test_a_limit_for_env_steps_is_kept_to_the_letter_and_only_by_who_steps_envs() -> None:
    actor, learner = watched(ACTOR, step_timeout=2.0), watched(LEARNER, step_timeout=2.0)
    actor.hear(said("actor", "env_steps"), 1.0)
    assert actor.hang(3.5) is not None and learner.hang(3.5) is None
    assert watched(ACTOR, floor=0.0, step_timeout=2.0).hang(3.0) is not None, "also where no other role is watched"


def test_nobody_hangs_where_that_is_switched_off() -> None:
    assert watched(LEARNER, floor=0.0).hang(1e9) is None


def test_a_thread_that_hangs_is_found_though_others_of_its_process_report() -> None:
    heartbeats = Heartbeats([spec_of(LEARNER), spec_of(REPLAY)], SupervisionConfig())
    heartbeats.begin(0.0)
    for now in range(60):
        heartbeats.hear(said("learner", "updates"), float(now))
    heartbeats.hear(said("replay"), 0.0)
    hang = heartbeats.hang(60.0)
    assert hang is not None and hang.role == "replay"


def test_time_in_which_the_watcher_itself_was_stopped_counts_against_nobody() -> None:
    times = iter([0.0, 0.1, 500.0, 500.1])
    clock = WatchClock(lambda: next(times))
    assert [clock.look() for _ in range(3)] == pytest.approx([0.1, 1.1, 1.2])


def test_the_env_is_named_where_the_stack_leads_into_it() -> None:
    specs = [spec_of(ACTOR)]
    assert env_of(specs, 'File "/somewhere/pappus/envs/gym_vector.py", line 7 in step') == "Slow-v0"
    assert env_of(specs, 'File "/somewhere/pappus/roles/learner.py", line 7 in step') == ""


def test_a_process_that_a_signal_has_stopped_neither_starts_nor_saves() -> None:
    heartbeats = watched(EVALUATOR, floor=5.0, began=False)
    assert heartbeats.hang(10.0) is None and heartbeats.hang(10.0, stopped=True) is not None
    saving = watched(LEARNER, floor=5.0)
    saving.asked_to_save()
    assert saving.hang(10.0) is None and saving.hang(10.0, stopped=True) is not None
