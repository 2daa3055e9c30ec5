"""Checkpoints that cannot be written: the run goes on, and the next one works."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from pappus.config import CheckpointConfig, StorageConfig, SupervisionConfig
from pappus.errors import RoleDied, StorageError
from pappus.runtimes import supervisor
from pappus.runtimes.heartbeats import Heartbeats
from pappus.runtimes.supervisor import ManagedProcess
from pappus.telemetry.checkpoint import CheckpointStore, save_state, verify
from pappus.topologies.program import Program
from tests.contracts.runtime_contract import CONSUMER, PRODUCER, Consumer, FakeController, Producer, program
from tests.runtimes.test_controller import Play
from tests.runtimes.test_local import run


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def events(play: Play) -> list[str]:
    play.controller.decide()
    return [str(event) for event in play.run_stats.events if "no update for" not in str(event)]


def test_attempts_become_rarer_until_one_works_and_both_are_told_once(tmp_path: Path) -> None:
    play = Play(tmp_path, checkpoint=CheckpointConfig(every_seconds=10.0))
    for second in range(200):
        play.now = float(second)
        play.controller.decide()
        if len(play.saves) > len(list(tmp_path.glob("tried-*"))):
            (tmp_path / f"tried-{second:03d}").touch()
            play.controller.save_failed("the disk is full")
    assert [path.name[6:] for path in sorted(tmp_path.glob("tried-*"))] == ["010", "020", "040", "080", "160"]
    assert not any((tmp_path / "checkpoints").iterdir()), "what was half written is removed"
    play.now = 320.0
    play.controller.decide()
    play.finish_save()
    told = events(play)
    assert len(told) == 2 and "the disk is full" in told[0] and "checkpoints are written again" in told[1]
    play.now = 330.0
    play.controller.decide()
    assert len(play.saves) == 7, "all is as before"


def test_a_commit_that_fails_keeps_the_checkpoint_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play = Play(tmp_path)
    play.now = 61.0
    play.controller.decide()
    play.finish_save()
    before = play.store.latest()
    play.learn()
    play.now = 122.0
    play.controller.decide()
    with monkeypatch.context() as patch:
        patch.setattr("pappus.telemetry.checkpoint.write_json", full)
        play.finish_save()
    assert play.store.latest() == before and before is not None and verify(before)
    assert any("No space left on device; the one before it is kept" in text for text in events(play))


def test_half_written_state_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pathlib.Path.write_text", full)
    with pytest.raises(StorageError, match=r"learner cannot be written to .* No space left"):
        save_state(tmp_path, "learner", {"steps": 1})
    assert not any(tmp_path.iterdir())


def test_a_run_whose_last_checkpoint_fails_is_evaluated_and_says_what_it_lost(tmp_path: Path) -> None:
    play = Play(tmp_path)
    play.controller.role_finished("learner")
    play.controller.decide()
    play.controller.save_failed("the disk is full")
    play.evaluated(7.0)
    assert play.controller.decide()
    summary = play.controller.summary()
    assert (summary.exit_reason, summary.eval_return) == ("steps done", 7.0)
    assert summary.extras["storage"] == {"failures": {"checkpoints": 1}, "lost": {"checkpoints": 1}}


def test_with_stop_the_run_saves_where_it_can_and_ends(tmp_path: Path) -> None:
    play = Play(tmp_path, storage=StorageConfig(on_failure="stop"))
    play.now = 61.0
    play.controller.decide()
    play.controller.save_failed("the disk is full")
    play.controller.decide()
    assert len(play.saves) == 2, "there may be room now"
    play.finish_save()
    assert play.controller.decide() and play.controller.exit_reason == "storage failed"


class WithFallback(Play):
    """Has a second place for checkpoints."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.fallback = CheckpointStore(directory / "spare" / "run" / "checkpoints", keep_last=2)
        super().__init__(directory / "run", **settings)


def test_a_checkpoint_goes_to_the_fallback_until_there_is_room(tmp_path: Path) -> None:
    play = WithFallback(tmp_path)
    play.now = 61.0
    play.controller.decide()
    play.controller.save_failed("the disk is full")
    assert play.saves[-1].is_relative_to(tmp_path / "spare") and len(play.saves) == 2, "at once"
    play.finish_save()
    play.learn()
    play.now = 122.0
    play.controller.decide()
    play.finish_save()
    assert play.fallback.latest() is not None and play.store.latest() is not None
    told = events(play)
    assert f"new ones go to {str(tmp_path / 'spare' / 'run')!r}" in told[0] and "written again" in told[1]


class Poor(Consumer):
    """Cannot write its state."""

    def save(self) -> Any:
        raise StorageError("the consumer cannot be written: No space left on device")


class Hears(FakeController):
    """Notes why a save failed, and ends the run."""

    reason = ""

    def save_failed(self, reason: str) -> None:
        self.reason, self.is_over = reason, True


def poor_program() -> Program:
    made = program(1)
    made.roles[-1] = made.roles[-1].__class__(**{**vars(made.roles[-1]), "build": Poor})
    return made


def test_a_role_that_cannot_save_says_so_and_lives(tmp_path: Path) -> None:
    controller = Hears(save_into=tmp_path)
    run(poor_program(), controller)
    assert controller.reason == "consumer: the consumer cannot be written: No space left on device"
    assert len(controller.pids["consumer"]) == 1 and controller.saved_in is None


def managed(saved: bool) -> ManagedProcess:
    made = Program("toy")
    made.add(CONSUMER if saved else PRODUCER, Consumer if saved else Producer, durable=saved)
    (group,) = made.groups().items()
    return ManagedProcess(*group, Heartbeats(group[1], SupervisionConfig()))


def die_often(process: ManagedProcess, clock: list[float], life: float, times: int, *, asked: bool = False) -> int:
    for _ in range(times):
        process.born, process.answered_a_save = clock[0], False
        clock[0] += life
        process.progressed()
        if asked:
            process.answered("the disk is full")
        process.record_death("it died")
    return process.deaths_in_a_row


def test_a_row_of_deaths_ends_with_what_outlives_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: clock[0])
    assert die_often(managed(saved=False), clock, life=10.0, times=6) == 1, "an actor's steps are not lost with it"
    assert die_often(managed(saved=True), clock, life=10.0, times=6) == 6, "what the replay did since is lost"
    assert die_often(managed(saved=True), clock, life=300.0, times=6) == 6, "it may die of every save, however rare"
    assert die_often(managed(saved=True), clock, life=300.0, times=6, asked=True) == 1, "it does not die of saving"
    process = managed(saved=True)
    die_often(process, clock, life=10.0, times=3)
    process.answered("")
    assert process.deaths_in_a_row == 0, "its state is safe"


class DiesOfSaving(Consumer):
    """Has made progress, and dies when it is asked to save."""

    def save(self) -> Any:
        os._exit(9)


class SavesAtOnce(FakeController):
    """Asks for a checkpoint when the run begins, and never ends it."""

    def started(self, controls: Any) -> None:
        controls.save(Path("nowhere"))

    def decide(self) -> bool:
        return False


def test_a_role_that_dies_of_every_save_ends_the_run() -> None:
    made = program(1)
    spec = made.roles[-1]
    made.roles[-1] = spec.__class__(**{**vars(spec), "build": DiesOfSaving, "essential": False, "durable": True})
    with pytest.raises(RoleDied, match=r"consumer died 3 times in a row"):
        run(made, SavesAtOnce(), deaths=2)
