from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest
from helpers import FakeTime, config, report, run_stats

from pappus.telemetry.doctor import own_seconds
from pappus.telemetry.env_timer import MOST_BETWEEN, EnvTimer, bucket_of, quantile, share_beyond
from pappus.telemetry.metrics import Metrics, RoleClock
from pappus.telemetry.usage import RoleUsage, SharedUsage, ThreadClock, descendants


@pytest.mark.parametrize(
    ("computing", "queued", "waits"), [(0.3, 0.2, 0.5), (0.3, 0.4, 0.3), (0.2, 0.8, 0.0)],
    ids=["while it was busy", "partly after it was woken", "always"],
)
def test_who_waits_for_a_core_after_it_was_woken_waits_for_nobody_else(
    computing: float, queued: float, waits: float
) -> None:
    stats, usage = run_stats(FakeTime()), {"computing": computing, "queued": queued}
    stats.add(report("actor-0", 0.5, {"unrolls slots": 0.4, "weights": 0.1}, usage=usage, counts={"env_steps": 1}))
    (view,) = stats.views()
    assert view.waiting == pytest.approx({"unrolls slots": 0.8 * waits, "weights": 0.2 * waits})
    assert computing + queued + view.idle == pytest.approx(1.0), "nothing is counted twice"


class NeverQueued(ThreadClock):
    """A thread that always has a core."""

    def read(self) -> tuple[float, float | None]:
        return 0.0, 0.0


def compute(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_a_thread_that_computes_is_told_from_one_that_sleeps() -> None:
    clock = ThreadClock()
    before, _ = clock.read()
    compute(0.05)
    computed = clock.read()[0] - before
    time.sleep(0.05)
    assert computed >= 0.04
    assert clock.read()[0] - before - computed < 0.04


def test_other_threads_of_a_process_count_for_its_only_role() -> None:
    usage = RoleUsage(alone=True)
    helper = threading.Thread(target=compute, args=(0.1,))
    helper.start()
    helper.join()
    assert usage.take()["helpers"] >= 0.08
    assert "helpers" not in RoleUsage(alone=False).take()


def test_processes_of_an_env_are_found() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = descendants(child.pid), child.pid in descendants(os.getpid())
        child.communicate(b"\n")
    assert found == ([], True)


def test_what_a_process_computed_before_its_role_began_belongs_to_the_start() -> None:
    spin = "import time\nfor end in .2, .4:\n  input()\n  while time.process_time() < end: pass\n  print(flush=True)"
    usage = RoleUsage(alone=True)
    with subprocess.Popen([sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None and child.stdout is not None
        for turn in (usage.begin, usage.take):
            child.stdin.write(b"\n")
            child.stdin.flush()
            child.stdout.readline()
            taken = turn()
        child.stdin.close()
    assert taken is not None
    assert taken["children"] == pytest.approx(0.2, abs=0.1)
    assert taken["helpers"] == pytest.approx(taken["children"], abs=0.1), "its own threads do nothing"


def test_what_went_into_polling_is_not_computing() -> None:
    polled = [0.0]
    usage = RoleUsage(alone=True, polled=lambda: polled[0])
    compute(0.05)
    polled[0] = 1000.0
    taken = usage.take()
    assert (taken["computing"], taken["polling"]) == (0.0, 1000.0)


def test_roles_of_one_thread_sleep_only_in_steps_of_envs() -> None:
    env = {"env": 0.5, "env_computing": 0.1, "env_queued": 0.0}
    actor, learner = SharedUsage(NeverQueued()).take([0.6, 0.4], [env, {}])
    assert actor["computing"] == pytest.approx(0.2, abs=0.01)
    assert learner["computing"] == pytest.approx(0.4, abs=0.01)
    assert actor["helpers"] == pytest.approx(0.0, abs=0.05) and "helpers" not in learner


def test_envs_of_one_thread_do_not_sleep_while_threads_compute_for_them() -> None:
    usage, env = SharedUsage(), {"env": 0.5, "env_computing": 0.1, "env_queued": 0.0}
    helper = threading.Thread(target=compute, args=(0.3,))
    helper.start()
    helper.join()
    actor, _ = usage.take([0.6, 0.4], [env, {}])
    assert actor["helpers"] == pytest.approx(0.3, abs=0.05)
    subject = run_stats(FakeTime())
    subject.add(report("actor-0", 0.6, {"its turn": 0.4}, counts={"env_steps": 1}, usage=env | actor))
    (view,) = subject.views()
    assert view.env_asleep == pytest.approx(0.1, abs=0.05)


def test_envs_of_one_thread_do_not_sleep_while_processes_compute_for_them() -> None:
    spin = "import time\ninput()\nwhile time.process_time() < 0.4: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", spin], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        usage, own = SharedUsage(), own_seconds(config(runtime="inline"))
        before = own()
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
        child.stdout.readline()
        actor, _ = usage.take([0.6, 0.4], [{"env": 0.5, "env_computing": 0.0, "env_queued": 0.0}, {}])
        counted = own() - before
        child.communicate(b"\n")
    assert actor["helpers"] >= 0.2 and counted >= 0.2, "the run's own, and no other program"


def test_short_steps_are_timed_now_and_then_and_each_counts_for_all() -> None:
    clock, steps = FakeTime(), []

    def step(action: object) -> None:
        steps.append(action)
        clock.pass_(10e-6)

    timer = EnvTimer(step, clock, NeverQueued())  # type: ignore[arg-type]
    for action in range(2000):
        timer(action)  # type: ignore[arg-type]
    usage, durations = timer.take()
    assert steps == list(range(2000))
    assert usage["env"] == pytest.approx(2000 * 10e-6, rel=0.1)
    assert durations == {bucket_of(10e-6): pytest.approx(2000, rel=0.1)}
    assert timer.take() == ({}, {})


def test_a_step_that_is_never_short_is_always_timed() -> None:
    clock = FakeTime()
    timer = EnvTimer(lambda action: clock.pass_(0.01), clock, NeverQueued())  # type: ignore[arg-type, func-returns-value]
    for _ in range(10):
        timer(None)  # type: ignore[arg-type]
    assert sum(timer.take()[1].values()) == 10 < MOST_BETWEEN


def test_quantiles_are_those_of_the_buckets() -> None:
    durations = {bucket_of(1e-4): 985.0, bucket_of(0.1): 15.0}
    assert quantile(durations, 0.5) == pytest.approx(1e-4, rel=0.2)
    assert quantile(durations, 0.99) == pytest.approx(0.1, rel=0.2)
    assert quantile({}, 0.5) is None
    assert share_beyond(durations, 1e-3) == pytest.approx(1.5 / (1.5 + 0.0985), rel=0.1)


def test_the_start_of_a_role_is_not_busy_time() -> None:
    clock = FakeTime()
    metrics = Metrics("learner", RoleClock(clock))
    clock.pass_(30)  # imports, and the first update
    metrics.count("updates")
    clock.pass_(1)
    first = metrics.drain()
    clock.pass_(1)
    metrics.count("updates")
    second = metrics.drain()
    assert (first["start"], first["busy"]) == (30, 1)
    assert (second["start"], second["busy"]) == (None, 1)


def test_busy_time_is_computing_or_waiting_for_a_core_or_asleep() -> None:
    subject = run_stats(FakeTime())
    usage = {"computing": 0.2, "queued": 0.1, "polling": 0.0, "helpers": 0.05, "env": 0.4, "env_computing": 0.1}
    subject.add(report("actor-0", 0.8, {"unrolls slots": 0.2}, counts={"env_steps": 1}, usage=usage))
    (view,) = subject.views()
    assert (view.computing, view.queued, view.in_envs) == pytest.approx((0.2, 0.1, 0.4))
    assert view.asleep == pytest.approx(0.8 - 0.2 - 0.1 - 0.05)
    assert view.env_asleep == pytest.approx(0.4 - 0.1 - 0.05)
    assert view.cpu == pytest.approx(0.25)
    scalars = subject.scalars()
    assert scalars["actor/computing"] == pytest.approx(0.2)
    assert scalars["actor/waiting_for_a_core"] == pytest.approx(0.1)
    assert scalars["actor/asleep"] == pytest.approx(0.45)
    assert scalars["actor/in_envs"] == pytest.approx(0.4)


def test_what_the_kernel_does_not_say_is_not_known() -> None:
    subject = run_stats(FakeTime())
    subject.add(report("actor-0", 0.8, counts={"env_steps": 1}, usage={"computing": 0.2}))
    (view,) = subject.views()
    assert (view.queued, view.asleep) == (None, None)
