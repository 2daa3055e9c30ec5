"""What counts as a run's time."""

from __future__ import annotations

from pappus.telemetry.run_seconds import RunSeconds


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def run_of_ten_seconds() -> tuple[Clock, RunSeconds]:
    """Its command was given at 100, its first env step came at 103, its first update began at 104."""
    clock = Clock()
    seconds = RunSeconds(clock, began=100.0)
    clock.now = 103.0
    seconds.stepped()
    clock.now = 105.0
    seconds.updated_first(took=1.0)
    clock.now = 110.0
    seconds.stepped()
    return clock, seconds


def test_each_count_begins_with_its_own_event() -> None:
    _, seconds = run_of_ten_seconds()
    assert seconds.to_dict() == {"wall_seconds": 10.0, "train_seconds": 6.0, "env_seconds": 7.0}


def test_when_training_is_over_only_the_command_goes_on() -> None:
    clock, seconds = run_of_ten_seconds()
    seconds.ended()
    clock.now = 120.0
    assert seconds.to_dict() == {"wall_seconds": 20.0, "train_seconds": 6.0, "env_seconds": 7.0}


def test_a_first_update_that_is_told_of_after_the_end_took_its_time_before_it() -> None:
    clock = Clock()
    seconds = RunSeconds(clock, began=100.0)
    clock.now = 110.0
    seconds.ended()
    clock.now = 112.0
    seconds.updated_first(took=1.0)
    assert seconds.to_dict()["train_seconds"] == 1.0


def test_training_that_goes_on_after_all_counts_the_time_between() -> None:
    clock, seconds = run_of_ten_seconds()
    seconds.ended()
    clock.now = 112.0
    seconds.go_on()
    assert seconds.to_dict() == {"wall_seconds": 12.0, "train_seconds": 8.0, "env_seconds": 9.0}


def test_a_resumed_run_counts_all_its_parts_and_knows_this_one() -> None:
    _, seconds = run_of_ten_seconds()
    seconds.resume({"wall_seconds": 50.0, "train_seconds": 40.0, "env_seconds": 45.0})
    assert seconds.to_dict() == {"wall_seconds": 60.0, "train_seconds": 46.0, "env_seconds": 52.0}
    assert seconds.of_training_here == 6.0


def test_a_part_without_an_env_step_adds_nothing_to_their_time() -> None:
    clock = Clock()
    seconds = RunSeconds(clock)
    clock.now = 150.0
    assert not seconds.has_stepped and seconds.of_envs == 0.0
