from __future__ import annotations

import pytest
from helpers import FakeTime

from pappus.telemetry.machine_facts import MachineFacts, MachineWatch, cores_busy, memory_free


class Readings:
    """What a machine would say."""

    def __init__(self, time: FakeTime, busy_cores: float = 0.0, free: int = 1 << 34, falls: float = 0.0) -> None:
        self._time, self._began, self._busy, self._free, self._falls = time, time(), busy_cores, free, falls

    def __call__(self) -> tuple[float | None, int | None]:
        passed = self._time() - self._began
        return self._busy * passed, int(self._free - self._falls * passed)


def watch(time: FakeTime, **readings: float) -> MachineWatch:
    return MachineWatch(2, time, Readings(time, **readings))  # type: ignore[arg-type]


def test_cores_of_other_programs_are_those_that_the_run_does_not_use():
    time = FakeTime()
    subject = watch(time, busy_cores=1.75)
    subject.look()
    time.pass_(4)
    assert subject.facts(used=0.5).others == pytest.approx(1.25, abs=0.05)
    assert subject.facts(used=3.0).others == 0.0


def test_a_run_can_have_what_others_leave_and_what_it_has_and_half_of_all():
    assert MachineFacts(4.0, others=1.0).capacity == 3.0
    assert MachineFacts(4.0, others=3.5).capacity == 2.0
    assert MachineFacts(4.0, others=3.5, used=2.5).capacity == 2.5


def test_what_was_before_the_training_does_not_count_for_the_whole_run():
    time = FakeTime()
    subject = watch(time)
    time.pass_(100)
    subject.begin()
    assert subject.facts(used=0.0, whole_run=True).others is None, "nothing has been seen yet"
    time.pass_(2)
    assert subject.facts(used=0.0, whole_run=True).others == pytest.approx(0.0, abs=0.05)


def test_memory_that_shrinks_all_the_time_has_an_end():
    time = FakeTime()
    subject = watch(time, free=8 << 30, falls=float(16 << 20))
    assert subject.facts(0.0).memory_seconds is None, "one look is no trend"
    for _ in range(90):
        time.pass_(1)
        subject.look()
    facts = subject.facts(0.0)
    assert facts.memory_growth == pytest.approx(16 << 20, rel=0.05)
    assert facts.memory_seconds == pytest.approx((8 << 30) / (16 << 20) - 90, rel=0.05)


def test_memory_that_stays_has_none():
    assert MachineFacts(2.0, memory_free=1 << 30).memory_seconds is None
    assert MachineFacts(2.0, memory_growth=1.0).memory_seconds is None


def test_this_machine_says_something():
    assert (memory_free() or 1) > 0
    assert (cores_busy() or 0.0) >= 0.0
