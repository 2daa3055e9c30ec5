"""What the doctor says of runs whose truth is known: shares of time as an unloaded machine measures them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from helpers import KINDS, FakeTime, report, run_stats

from pappus.config import AUTO, RunConfig
from pappus.settings import option_names, override
from pappus.systems import find_system
from pappus.telemetry.case import Case
from pappus.telemetry.diagnosis import RULES, diagnose
from pappus.telemetry.doctor_file import report as report_of
from pappus.telemetry.findings import WORTH, Change, Diagnosis, Finding
from pappus.telemetry.machine_facts import MachineFacts
from pappus.telemetry.role_view import RoleView
from pappus.telemetry.speed import Load, possible_speed

TWO_CORES = MachineFacts(2.0, others=0.0, memory_free=16 << 30)
CHEAP, SLOW, ASLEEP = (30e-6, 50e-6), (64e-3, 70e-3), (0.3, 0.32)
"""Median and p99 of steps of 64 envs."""


def view(role: str, computing: float, *, waits: dict[str, float] | None = None, **more: Any) -> RoleView:
    """A role whose thread computes so much of the time; the rest is `waits`, `asleep` or `queued`."""
    known = {"asleep": 0.0, "queued": 0.0, "helpers": 0.0} | more
    busy = computing + known["asleep"] + known["queued"]
    cpu = known.pop("cpu", computing + (known["helpers"] or 0.0))
    return RoleView(role, KINDS[role], "busy", busy, waits or {}, computing=computing, cpu=cpu, **known)


def config_of(system: str = "impala", **settings: Any) -> RunConfig:
    settings = {"runtime": "local", "actors": 1, "device": "cpu"} | settings
    return override(find_system(system).defaults, {"env": "CartPole-v1", **settings})


def diagnosis(
    *views: RoleView, system: str = "impala", machine: MachineFacts = TWO_CORES, updates: float = 100.0,
    one_by_one: bool = False, **settings: Any
) -> Diagnosis:
    usual = dataclasses.replace(config_of(system), actors=AUTO)
    return diagnose(Case(views, config_of(system, **settings), machine, usual, 1_000.0, updates, one_by_one))


def envs(share: float, asleep: float = 0.0, steps: tuple[float, float] = CHEAP, slow: float = 0.0) -> dict[str, Any]:
    return {"in_envs": share, "env_asleep": asleep, "step_seconds": steps, "slow_steps": slow}


LEARNER_WAITS = view("learner", 0.05, waits={"unrolls": 0.95})


def test_a_sleeping_env_asks_for_more_actors_though_no_core_is_free_for_them_all():
    found = diagnosis(view("actor-0", 0.02, asleep=0.97, **envs(0.98, 0.97, ASLEEP)), LEARNER_WAITS)
    assert found.top.what == "sleeping env" and found.change is not None
    assert found.change.options == (("actors", "8"),)
    assert found.change.gain == pytest.approx(0.8 * 8 + 0.2, rel=0.1)
    assert found.text.startswith("the envs wait for something outside: actor-0 sleeps 97 % of its time in their steps")


def test_envs_that_sleep_and_are_stepped_one_by_one_get_threads():
    actor = view("actor-0", 0.02, asleep=0.97, **envs(0.98, 0.97, ASLEEP))
    found = diagnosis(actor, LEARNER_WAITS, one_by_one=True, envs_per_actor=8)
    assert found.change is not None and found.change.options == (("env-options.threads", "8"),)
    assert found.change.gain == pytest.approx(1 + 0.8 * (1 / (0.99 - 0.97 * 7 / 8 + 0.02) - 1), rel=0.01)
    few = diagnosis(actor, LEARNER_WAITS, one_by_one=True, envs_per_actor=2)
    assert few.change is not None and few.change.options[0][0] == "actors", "two threads are half as many as it takes"
    given = {"env_options.threads": 8, "envs_per_actor": 8}
    told = diagnosis(actor, LEARNER_WAITS, one_by_one=True, **given).change
    assert told is not None and told.options[0][0] == "actors"


@pytest.mark.parametrize(("system", "settings", "costs"), [
    ("impala", {"envs_per_actor": 8},
     "64 unrolls per update instead of 8 and as many fewer updates per step: it learns less per step"),
    ("impala", {"envs_per_actor": 64, "batch_size": 64}, "a policy lag of at most about 24 updates instead of 3"),
    ("apex-dqn", {"envs_per_actor": 16}, "a policy lag of at most about 50 updates instead of 6.25"),
    ("ppo", {"envs_per_actor": 16, "runtime": "auto"},
     "128 unrolls per update instead of 16 and as many fewer updates per step: it learns less per step; "
     "one seed no longer gives the same run to the bit: that needs one thread"),
])
def test_more_actors_cost_what_they_change_in_learning(system: str, settings: dict[str, Any], costs: str):
    actor = view("actor-0", 0.02, asleep=0.97, **envs(0.98, 0.97, ASLEEP))
    change = diagnosis(actor, LEARNER_WAITS, system=system, **settings).change
    assert change is not None and change.options == (("actors", "8"),)
    assert change.costs == costs


def test_threads_are_what_remains_where_there_can_be_one_actor():
    actor = view("actor-0", 0.02, asleep=0.9, waits={"its turn": 0.08}, **envs(0.92, 0.9, ASLEEP))
    learner = view("learner", 0.08, waits={"its turn": 0.92})
    found = diagnosis(actor, learner, system="dqn", runtime="auto", one_by_one=True, envs_per_actor=8)
    assert found.change is not None and found.change.options == (("env-options.threads", "8"),)


def test_other_programs_that_are_the_reason_for_silence_are_named():
    busy = dataclasses.replace(TWO_CORES, cores=8.0, others=7.0)
    waits = {"unrolls slots": 0.1}
    actors = [view(f"actor-{i}", 0.9, waits=waits, **envs(0.95, steps=SLOW)) for i in range(4)]
    found = diagnosis(*actors, LEARNER_WAITS, actors=4, machine=busy)
    assert found.change is None
    assert found.silence == "other programs use 7.0 of 8 cores; without them --actors 8 would help"
    assert diagnosis(view("actor-0", 0.95), view("learner", 0.93)).silence == ""


def test_more_actors_are_not_promised_more_than_the_learner_takes():
    learner = view("learner", 0.4, waits={"unrolls": 0.6})
    change = diagnosis(view("actor-0", 0.02, asleep=0.97, **envs(0.98, 0.97, ASLEEP)), learner).change
    assert change is not None and change.options == (("actors", "3"),)
    assert change.gain == pytest.approx(1 + 0.8 * 1.5, rel=0.01)


def test_envs_that_compute_get_the_core_that_is_free():
    found = diagnosis(view("actor-0", 0.97, **envs(0.95, steps=SLOW)), LEARNER_WAITS)
    assert (found.top.what, found.change and found.change.options) == ("slow env", (("actors", "2"),))


def test_envs_that_compute_get_nothing_where_all_cores_compute():
    shares = envs(0.95, steps=SLOW)
    found = diagnosis(view("actor-0", 0.97, **shares), view("actor-1", 0.97, **shares), LEARNER_WAITS, actors=2)
    assert (found.top.what, found.change) == ("slow env", None)


def test_an_env_that_is_slow_now_and_then_is_not_a_slow_env():
    found = diagnosis(view("actor-0", 0.2, asleep=0.79, **envs(0.98, 0.79, (4e-4, 5e-2), 0.81)), LEARNER_WAITS)
    assert found.top.what == "uneven env" and found.change is not None
    assert "81 % of the time in envs" in found.evidence[0]


def test_actors_of_one_thread_need_processes_of_their_own():
    actor = view("actor-0", 0.02, asleep=0.9, waits={"its turn": 0.08}, helpers=None, **envs(0.92, 0.9, ASLEEP))
    found = diagnosis(actor, view("learner", 0.08, helpers=None, waits={"its turn": 0.92}), runtime="inline")
    assert found.change is not None and dict(found.change.options)["runtime"] == "local"
    assert int(dict(found.change.options)["actors"]) > 1


def test_a_system_with_one_actor_gets_no_advice_that_it_would_refuse():
    actor = view("actor-0", 0.02, asleep=0.9, waits={"its turn": 0.08}, **envs(0.92, 0.9, ASLEEP))
    found = diagnosis(actor, view("learner", 0.08, waits={"its turn": 0.92}), system="dqn", runtime="auto")
    assert (found.top.what, found.change) == ("sleeping env", None)


def test_a_learner_that_computes_gets_a_second_one_where_cores_are_free():
    actor, learner = view("actor-0", 0.3, waits={"unrolls slots": 0.7}), view("learner", 0.98)
    assert diagnosis(actor, learner, actors=2).top.what == "slow learner"
    assert diagnosis(actor, learner, actors=2).change is None
    found = diagnosis(actor, learner, actors=2, machine=MachineFacts(8.0, others=0.0))
    assert found.change is not None and found.change.options == (("learners", "2"),)
    assert "actor-0 waits for unrolls slots 70 % of its time" in found.evidence


def test_a_learner_that_sleeps_is_told_from_one_that_computes():
    found = diagnosis(view("actor-0", 0.1, waits={"unrolls slots": 0.9}), view("learner", 0.1, asleep=0.88))
    assert found.text.startswith("the learner waits for something outside")


def test_a_learner_on_a_gpu_is_not_told_to_get_one():
    actor, learner = view("actor-0", 0.1, waits={"unrolls slots": 0.9}), view("learner", 0.1, asleep=0.88)
    machine = MachineFacts(16.0, others=0.0, gpu_busy=0.97)
    found = diagnosis(actor, learner, device="cuda", machine=machine)
    assert (found.top.what, found.change) == ("slow learner", None)
    assert "the GPU computes 97 % of the time" in found.evidence
    machine = dataclasses.replace(machine, gpu_busy=0.1)
    launches = diagnosis(actor, learner, device="cuda", batch_size=64, machine=machine)
    assert launches.change is not None and launches.change.options == (("batch-size", "128"),)


def test_a_queue_that_lets_nobody_get_ahead_is_made_as_long_as_usual():
    actor, learner = (view("actor-0", 0.5, waits={"unrolls slots": 0.5}), view("learner", 0.5, waits={"unrolls": 0.5}))
    found = diagnosis(actor, learner, queue_size=1)
    assert (found.top.what, found.change and found.change.options) == ("tiny queue", (("queue-size", "2"),))
    assert found.change is not None and found.change.gain == pytest.approx(1.8)
    assert diagnosis(actor, learner).change is None, "it is as long as usual"


def test_a_limiter_that_lets_nobody_get_ahead_gets_its_usual_tolerance():
    settings = {"topology.replay.tolerance": 1.0}
    actor, learner = (view("actor-0", 0.5, waits={"replay": 0.5}), view("learner", 0.5, waits={"replay": 0.5}))
    found = diagnosis(actor, learner, system="apex-dqn", **settings)
    assert found.top.what == "tight limiter" and found.change is not None
    assert found.change.options == (("topology.replay.tolerance", "8"),)


def test_a_limiter_that_holds_the_actors_back_says_what_would_balance():
    actor, learner = view("actor-0", 0.1, waits={"replay": 0.9}), view("learner", 0.98)
    found = diagnosis(actor, learner, system="apex-dqn", **{"topology.replay.samples_per_insert": 64.0})
    assert found.top.what == "rate limiter" and found.change is not None
    assert found.change.options == (("topology.replay.samples-per-insert", "8"),)
    assert "every item is sampled 64 times; both sides would be busy at 6.53" in found.evidence
    assert "learnt from 8 times instead of 64" in found.change.costs
    turns = diagnosis(actor, learner, system="sac", runtime="inline", **{"topology.replay.samples_per_insert": 256.0})
    assert "every item is sampled 256 times" in turns.evidence, "in one thread no ratio keeps both sides busy"
    idle = view("learner", 0.01, waits={"replay": 0.99})
    slow = diagnosis(view("actor-0", 0.9, waits={"replay": 0.1}), idle, system="apex-dqn")
    assert "rate limiter" not in [finding.what for finding in slow.findings], "it waits for slow actors"
    usual = diagnosis(actor, learner, system="apex-dqn")
    assert (usual.top.what, usual.change) == ("rate limiter", None), "the ratio of a preset is not for the doctor"


def test_steps_of_few_envs_are_made_as_large_as_usual():
    found = diagnosis(
        view("actor-0", 0.9, **envs(0.5, steps=(25e-6, 40e-6))), view("learner", 0.3, waits={"unrolls": 0.7}),
        envs_per_actor=2,
    )
    assert found.top.what == "small steps" and found.change is not None
    assert found.change.options == (("envs-per-actor", "64"),) and found.change.gain is not None
    assert "64 unrolls per update instead of 2 and as many fewer updates per step" in str(found.change)


def test_steps_that_more_envs_make_no_cheaper_are_not_small_though_larger_batches_spare_the_learner():
    shares = {"queued": 0.3, **envs(0.9, steps=(2e-3, 3e-3))}
    busy = dataclasses.replace(TWO_CORES, others=1.5)
    found = diagnosis(
        view("actor-0", 0.6, **shares), view("learner", 0.4, waits={"unrolls": 0.6}), machine=busy, envs_per_actor=2
    )
    assert found.top.what == "slow env"
    assert "small steps" not in [finding.what for finding in found.findings]


def test_one_thread_is_left_only_where_the_shares_say_that_it_pays():
    waits = {"its turn": 0.5}
    balanced = [view("actor-0", 0.5, waits=waits), view("learner", 0.48, waits=waits)]
    found = diagnosis(*balanced, runtime="inline")
    assert found.change is not None and found.change.options == (("runtime", "local"),)
    lopsided = [view("actor-0", 0.1, waits=waits), view("learner", 0.88, waits=waits)]
    assert diagnosis(*lopsided, runtime="inline").change is None
    busy = dataclasses.replace(TWO_CORES, others=1.0)
    assert diagnosis(*balanced, runtime="inline", machine=busy).change is None, "there is no second core"
    assert diagnosis(*balanced, runtime="inline", updates=3000).change is None, "handing over takes the time"
    assert diagnosis(*balanced, system="ppo", runtime="auto").change is None, "actor and learner take turns"


EVERY_1000 = {"evaluation.every_steps": 1000}


def test_an_evaluator_that_steals_a_core_is_asked_less_often():
    shares = [view("actor-0", 0.6, queued=0.35, waits={}), view("learner", 0.55, queued=0.35, waits={"unrolls": 0.1})]
    found = diagnosis(*shares, view("evaluator", 0.8), **EVERY_1000)
    assert found.top.what == "evaluator" and found.change is not None
    assert found.change.options == (("evaluation.every-steps", "16000"),)
    before, after = (0.6 + 0.55) / (2 - 0.8), 0.6  # of the time: what the other cores need, then what the actor needs
    assert found.change.gain == pytest.approx(1 + 0.8 * (before / after - 1), rel=0.01)
    waits = view("actor-0", 0.2, queued=0.35, waits={"unrolls slots": 0.45})
    little = diagnosis(waits, view("learner", 0.3, waits={"unrolls": 0.7}), view("evaluator", 0.8), **EVERY_1000)
    assert little.change is not None and little.change.gain is not None
    assert little.change.gain == pytest.approx(1 + 0.8 * (1 / (1 - 0.35 * 15 / 16) - 1), rel=0.01), "of its own waits"


def test_checkpoints_that_stall_are_written_less_often():
    actor, learner = view("actor-0", 0.6, waits={"slots": 0.4}), view("learner", 0.6, waits={"its checkpoint": 0.4})
    found = diagnosis(actor, learner, **{"checkpoint.every_seconds": 5.0})
    assert found.top.what == "checkpoints" and found.change is not None
    assert found.change.options == (("checkpoint.every-seconds", "200"),)


def test_more_actors_than_cores_are_made_fewer():
    actors = [view(f"actor-{i}", 0.13, queued=0.2, waits={"unrolls slots": 0.67}) for i in range(4)]
    found = diagnosis(*actors, view("learner", 0.5, queued=0.49), actors=4)
    assert found.top.what == "starved cores" and found.change is not None
    assert found.change.options == (("actors", "1"),)


def test_threads_of_libraries_that_take_cores_are_named():
    found = diagnosis(
        view("actor-0", 0.4, queued=0.59, helpers=1.3, **envs(0.1)), view("learner", 0.3, queued=0.4)
    )
    assert found.top.what == "threads" and found.change is not None
    assert found.change.words == "OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1" and found.change.settings == {}


def test_processes_of_envs_are_no_threads_of_libraries():
    shares = {"asleep": 0.2, **envs(0.7, 0.2, steps=SLOW)}
    actor = view("actor-0", 0.2, queued=0.5, helpers=1.3, children=1.25, **shares)
    found = diagnosis(actor, view("learner", 0.3, queued=0.4))
    assert "threads" not in [finding.what for finding in found.findings]


def test_threads_are_not_blamed_for_what_other_programs_take():
    busy = dataclasses.replace(TWO_CORES, others=1.4)
    found = diagnosis(view("actor-0", 0.2, queued=0.7, helpers=0.4), view("learner", 0.1, queued=0.4), machine=busy)
    assert found.top.sentence.startswith("other programs take cores")
    assert "threads" not in [finding.what for finding in found.findings]


def test_what_waiting_for_cores_costs_is_no_merit_of_more_actors():
    busy = dataclasses.replace(TWO_CORES, others=1.5)
    waits = {"queued": 0.6, **envs(0.9, steps=SLOW)}
    found = diagnosis(view("actor-0", 0.39, **waits), LEARNER_WAITS, machine=busy)
    assert (found.top.what, found.change, found.silence) == ("slow env", None, "other programs use 1.5 of 2 cores; "
            "without them --actors 2 would help")
    workers = [view(f"worker-{i}", 0.24, queued=0.75) for i in range(2)]
    found = diagnosis(*workers, system="a3c", actors=2, machine=busy)
    assert (found.change, found.silence) == (None, ""), "without other programs two of them fill both cores"
    assert "the workers do everything" in [finding.sentence for finding in found.findings]


def test_no_more_cores_are_needed_than_there_are():
    found = diagnosis(view("actor-0", 0.95, helpers=1.2), view("learner", 0.93))
    assert found.text.startswith("all cores compute: 2.0 of 2 cores are needed")


def test_other_programs_are_no_fault_of_the_config():
    busy = dataclasses.replace(TWO_CORES, others=1.5)
    found = diagnosis(view("actor-0", 0.3, queued=0.6), view("learner", 0.2, queued=0.4), machine=busy)
    assert (found.top.what, found.change) == ("starved cores", None)
    assert found.text.startswith("other programs take cores from this run: they use 1.5 of 2 cores")


def test_where_all_cores_compute_nothing_is_advised():
    found = diagnosis(view("actor-0", 0.95), view("learner", 0.93))
    assert (found.top.what, found.change) == ("full cores", None)


def test_memory_that_ends_is_told_before_anything_else():
    machine = MachineFacts(2.0, others=0.0, memory_free=4 << 30, memory_growth=32 * 2.0**20)
    actor = view("actor-0", 0.02, asleep=0.97, memory=3 << 30, **envs(0.98, 0.97, ASLEEP))
    found = diagnosis(actor, view("learner", 0.1), system="apex-dqn", machine=machine)
    assert found.text.startswith("memory is over in 2 min: 4.0 GiB are left, and 32 MiB go every second")
    assert found.change is not None and found.change.gain is None
    assert "actor-0 holds the most: 3.0 GiB" in found.evidence
    lasting = diagnosis(actor, view("learner", 0.1), machine=dataclasses.replace(machine, memory_growth=1.0))
    assert lasting.top.what != "memory"


def test_a_silent_role_is_named_before_anything_else():
    quiet = dataclasses.replace(view("actor-0", 1.0), silent_seconds=12.0)
    found = diagnosis(quiet, view("learner", 0.5, waits={"unrolls": 0.5}))
    assert found.text == "actor-0 has not reported for 12 s: one step takes long, or is stuck"


def test_a_stall_says_who_is_silent_and_promises_nothing(tmp_path: Path):
    quiet = dataclasses.replace(view("learner", 0.0), silent_seconds=12.0)
    acting = view("actor-0", 0.1, waits={"unrolls slots": 0.9}, queued=0.4)
    others = dataclasses.replace(TWO_CORES, others=1.5)
    found = diagnosis(acting, quiet, machine=others).stalled("nothing moves for 12 s: the learner has been stopped")
    assert [finding.what for finding in found.findings] == ["stall", "starved cores"]
    (tmp_path / "doctor.json").write_text(json.dumps(found.to_dict()))
    advice = report_of(tmp_path)[report_of(tmp_path).index("what to change") + 1]
    assert advice == "  nothing: while it stands still, nobody can say what a setting would gain"


def test_that_no_update_was_made_is_said_before_that_all_roles_wait():
    waits = view("actor-0", 0.01, waits={"unrolls slots": 0.9})
    still = view("learner", 0.01, waits={"unrolls": 0.9})
    assert diagnosis(waits, still, updates=0.0).top.sentence == "no update was made lately"
    assert diagnosis(waits, still).top.sentence == "no role is the bottleneck"


def test_where_the_kernel_says_nothing_busy_time_counts_as_computing():
    subject = run_stats(FakeTime())
    subject.add(report("actor-0", 0.97, {"slots": 0.03}))
    subject.add(report("learner", 0.59, {"unrolls": 0.41}, counts={"updates": 2}))
    assert subject.diagnosis().top.what == "slow actors"
    assert run_stats(FakeTime()).verdict() == "nothing measured yet"


def test_only_one_change_is_proposed_and_it_is_the_best():
    waits = {"unrolls slots": 0.3}
    actor = view("actor-0", 0.5, waits=waits, queued=0.2, **envs(0.7, steps=SLOW))
    learner = view("learner", 0.3, waits={"unrolls": 0.4, "its checkpoint": 0.3})
    found = diagnosis(actor, learner, queue_size=1)
    assert [finding.what for finding in found.findings][:2] == ["tiny queue", "checkpoints"]
    assert [finding.change is not None for finding in found.findings].count(True) == 1


def test_a_change_that_is_not_worth_it_is_not_proposed():
    small = Finding("small", "it is small", (), Change((("actors", "2"),), WORTH - 0.01))
    assert not small.worth and dataclasses.replace(small, change=Change((), None)).worth


def test_a_diagnosis_comes_back_from_its_file_as_it_was():
    found = diagnosis(view("actor-0", 0.02, asleep=0.97, **envs(0.98, 0.97, ASLEEP)), LEARNER_WAITS)
    assert Diagnosis.from_dict(found.to_dict()) == found
    assert found.to_dict()["text"] == found.text


def test_options_that_are_proposed_exist():
    known = {option for system in ("impala", "apex-dqn", "seed-vtrace") for option in option_names(config_of(system))}
    named = {
        "actors", "runtime", "learners", "batch-size", "queue-size", "envs-per-actor", "topology.replay.tolerance",
        "topology.replay.samples-per-insert", "topology.replay.capacity", "evaluation.every-steps",
        "evaluation.every-seconds", "checkpoint.every-seconds", "env-options.threads",
    }
    assert named <= known


def test_no_more_can_be_done_than_the_slowest_side_or_all_cores_allow():
    loads = [Load(0.5, 0.5), Load(0.25, 0.25)]
    assert possible_speed(loads, 8) == 2.0
    assert possible_speed(loads, 8, turns=True) == pytest.approx(4 / 3)
    assert possible_speed(loads, 1) == pytest.approx(4 / 3)


def test_every_rule_says_what_it_looks_for():
    assert all(rule.__doc__ for rule in RULES)
