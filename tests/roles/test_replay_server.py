"""The role that keeps a run's experience, and what it brings over a restart."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pappus.config import ReplayConfig
from pappus.errors import StorageError
from pappus.recording.direct import DirectReplay, ReplaySpec, layout_for
from pappus.recording.transitions import TABLE
from pappus.roles.replay_server import KEPT, ReplayServer
from pappus.roles.role import IDLE
from tests.recording.streams import ENV, Streams, dqn

BATCH = 8


def full(*_: object) -> list[int]:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Memory(DirectReplay):
    """A service in this thread that says who can reach it."""

    def __init__(self) -> None:
        layout = layout_for(ENV, dqn(), ())
        table = layout.table(ReplayConfig(capacity=500, warm_up=BATCH, tolerance=1e3), BATCH)
        super().__init__(ReplaySpec(layout, table, 4000, BATCH, 1.0, seed=0))
        self.opened = self.closed = 0

    def open(self) -> None:
        self.opened += 1

    def close(self) -> None:
        self.closed += 1

    def fill(self, steps: int, seed: int = 0) -> None:
        sink = self.sink(2)
        for step in Streams((False, True), steps, seed).steps():
            assert sink.ready()
            sink.record(*step)

    def info(self) -> dict[str, Any]:
        return self.service.info(TABLE)

    def rewards(self) -> list[float]:
        batch = self.source().take()
        assert batch is not None
        found: list[float] = batch.items.reward.tolist()
        return found


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Items are handed over as soon as they are made."""
    monkeypatch.setattr("pappus.recording.transitions.SEND_ITEMS", 1)


def test_others_are_let_in_with_the_first_step_and_only_once() -> None:
    memory = Memory()
    replay_server = ReplayServer("replay", memory, None)
    assert memory.opened == 0, "a checkpoint may still be loaded"
    assert replay_server.step() is None and memory.opened == 1
    assert replay_server.step() is IDLE and memory.opened == 1 and replay_server.wake_at is not None
    replay_server.close()
    assert memory.closed == 1


def test_it_notes_how_many_items_have_come_whenever_it_looks() -> None:
    memory = Memory()
    replay_server = ReplayServer("replay", memory, None)
    replay_server.step()
    for seed in range(2):
        memory.fill(10, seed)
        replay_server.step()
        assert memory.inserted == memory.info()["inserts"] > 10 * seed


def test_a_successor_goes_on_with_the_items_of_the_checkpoint(tmp_path: Path) -> None:
    memory, successor = Memory(), Memory()
    memory.fill(30)
    saved = ReplayServer("replay", memory, tmp_path / "replay").save()
    ReplayServer("replay", successor, tmp_path / "replay").load(saved)
    assert successor.info()["size"] == memory.info()["size"] > 0
    assert successor.info()["inserts"] == memory.info()["inserts"]
    assert set(successor.rewards()) <= {row.reward for rows in Streams((False, True), 30, 0).rows for row in rows}


def test_what_came_after_the_checkpoint_is_counted_as_lost_once(tmp_path: Path) -> None:
    memory, successor = Memory(), Memory()
    replay_server = ReplayServer("replay", memory, tmp_path)
    replay_server.step()
    memory.fill(30)
    saved, there = replay_server.save(), memory.info()["inserts"]
    memory.fill(20, seed=1)
    replay_server.step()
    successor.inserted = memory.inserted
    back = ReplayServer("replay", successor, tmp_path)
    back.load(saved)
    back.step()
    back.step()
    lost = memory.info()["inserts"] - there
    report = back.metrics.drain()
    assert lost > 0 and report["counts"] == {"items_lost": lost}
    assert report["events"] == [f"back with {there:,} of {there + lost:,} inserted items: {lost:,} are lost"]


def test_nothing_is_lost_where_a_run_is_resumed_from_its_checkpoint(tmp_path: Path) -> None:
    memory, successor = Memory(), Memory()
    memory.fill(30)
    saved = ReplayServer("replay", memory, tmp_path).save()
    back = ReplayServer("replay", successor, tmp_path)
    back.load(saved)
    back.step()
    report = back.metrics.drain()
    assert report["counts"] == {} and report["events"] == []


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    memory = Memory()
    replay_server = ReplayServer("replay", memory, tmp_path)
    names = []
    for seed in range(KEPT + 2):
        memory.fill(3, seed)
        saved: Any = replay_server.save()
        replay_server.committed()
        names.append(saved["folder"])
    assert sorted(path.name for path in tmp_path.iterdir()) == names[-KEPT:]


def test_without_its_checkpoint_it_begins_empty_and_says_so(tmp_path: Path) -> None:
    memory = Memory()
    replay_server = ReplayServer("replay", memory, tmp_path)
    replay_server.load({"folder": "replay-00000000000000000007"})
    replay_server.step()
    (event,) = replay_server.metrics.drain()["events"]
    assert event.startswith("starts with empty tables: ") and "replay-00000000000000000007" in event
    memory.fill(10)
    assert memory.info()["size"] > 0 and np.isfinite(memory.rewards()).all()


def test_a_run_that_is_not_written_saves_nothing() -> None:
    assert ReplayServer("replay", Memory(), None).save() is None


def test_tables_survive_a_save_that_fails_and_the_next_save_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = Memory()
    memory.fill(30)
    replay_server = ReplayServer("replay", memory, tmp_path)
    before = memory.info()
    with monkeypatch.context() as patch:
        patch.setattr("pappus.replay.service.checkpoint._write_chunks", full)
        with pytest.raises(StorageError, match="No space left on device"):
            replay_server.save()
    assert not any(tmp_path.iterdir()), "half a checkpoint is removed"
    assert memory.info() == before
    successor = Memory()
    ReplayServer("replay", successor, tmp_path).load(replay_server.save())
    assert successor.info()["size"] == before["size"]


def test_tables_that_a_complete_checkpoint_refers_to_stay_while_later_ones_come_to_nothing(tmp_path: Path) -> None:
    memory = Memory()
    memory.fill(5)
    replay_server = ReplayServer("replay", memory, tmp_path)
    saved: Any = replay_server.save()
    replay_server.committed()
    for _ in range(KEPT + 2):
        later: Any = replay_server.save()  # and another role fails to write its part
    assert sorted(path.name for path in tmp_path.iterdir()) == [saved["folder"], later["folder"]]


def test_a_clock_that_goes_back_does_not_make_the_newest_tables_the_oldest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay_server, names = ReplayServer("replay", Memory(), tmp_path), []
    for hour in (9, 8, 7, 6):
        monkeypatch.setattr("time.time_ns", lambda hour=hour: hour * 3600 * 10**9)
        saved: Any = replay_server.save()
        replay_server.committed()
        names.append(saved["folder"])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names[-KEPT:])


def test_tables_go_where_the_checkpoint_goes_and_come_back_from_there(tmp_path: Path) -> None:
    memory, successor = Memory(), Memory()
    memory.fill(30)
    replay_server, back = (ReplayServer("replay", one, tmp_path / "run" / "replay") for one in (memory, successor))
    replay_server.stored_in(tmp_path / "spare")
    saved: Any = replay_server.save()
    assert (tmp_path / "spare" / "replay" / saved["folder"]).is_dir() and not (tmp_path / "run").exists()
    back.stored_in(tmp_path / "spare")
    back.load(saved)
    assert successor.info()["size"] == memory.info()["size"]
