"""A learner's end between processes: batches that a thread fetches ahead, and priorities that go back."""

from __future__ import annotations

import dataclasses
import select
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pappus.experience import ItemBatch
from pappus.recording import prefetched
from pappus.recording.prefetched import PrefetchedSource
from pappus.recording.shared import SharedReplay
from pappus.recording.transitions import TABLE
from pappus.replay.clients.client import Client
from tests.recording.test_ports import SECONDS, record, spec, steps, taken

PREFETCH, BATCH = 6, 16


@pytest.fixture
def replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedReplay]:
    """A table that has something to draw, kept beside."""
    monkeypatch.setattr("pappus.recording.transitions.SEND_ITEMS", 1)
    shared = SharedReplay(
        dataclasses.replace(spec(str(tmp_path / "socket")), prefetch=PREFETCH), np.zeros(1, np.int64)
    )
    replay_server = shared.host()
    replay_server.open()
    sink = shared.sink(2)
    while not sink.ready():
        pass
    record(sink, steps(40))
    yield shared
    sink.close()
    replay_server.close()


def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Items of every fetch from here on."""
    counts: list[int] = []
    original = Client.sample

    def sample(self: Client, table: str, count: int, *rest: Any) -> Any:
        counts.append(count)
        return original(self, table, count, *rest)

    monkeypatch.setattr(Client, "sample", sample)
    return counts


def test_small_batches_are_fetched_several_at_once(replay: SharedReplay, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = fetched(monkeypatch)
    source = replay.source()
    batches = [taken(source) for _ in range(20)]
    source.close()
    assert counts[0] == BATCH, "how large they are is not known before the first"
    assert set(counts[1:]) == {BATCH * PREFETCH // 2}
    for batch in batches:
        assert batch.keys.shape == batch.items.reward.shape == (BATCH,)
        assert batch.weight.max() == 1.0, "weights are relative to the largest of their own batch"
        assert np.isfinite(batch.age)
    assert len({batch.keys.tobytes() for batch in batches}) == 20, "each is another draw"


def test_large_batches_are_fetched_one_by_one(replay: SharedReplay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetched, "GROUP_BYTES", 1)
    counts = fetched(monkeypatch)
    source = replay.source()
    for _ in range(20):
        taken(source)
    source.close()
    assert set(counts) == {BATCH}


def test_no_more_is_fetched_ahead_than_was_asked_for(replay: SharedReplay) -> None:
    source = replay.source()
    for _ in range(10):
        taken(source)
    while source._room._value:  # until the thread waits for room
        source.info()
    assert len(source._ready) <= PREFETCH and source.info()["samples"] <= BATCH * (10 + PREFETCH)
    source.close()
    assert not source._thread.is_alive(), "one that waits for room for a whole group ends, too"


def test_two_large_batches_are_fetched_ahead(replay: SharedReplay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetched, "AHEAD_BYTES", 1)
    source = replay.source()
    for _ in range(10):
        taken(source)
    while source._room._value:
        source.info()
    assert source._together == 1 and len(source._ready) <= 2
    source.close()


@pytest.mark.parametrize("prefetch", [1, 2, 3])
def test_few_ahead_are_fetched_one_by_one(prefetch: int, replay: SharedReplay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "_spec", dataclasses.replace(replay._spec, prefetch=prefetch))
    counts = fetched(monkeypatch)
    source = replay.source()
    for _ in range(10):
        taken(source)
    source.close()
    assert set(counts) == {BATCH}


@pytest.mark.parametrize(("tolerance", "ratio"), [(1.0, 0.25), (2.0, 0.5), (8.0, 4.0)])
def test_a_group_never_deadlocks_with_the_writers(
    tolerance: float, ratio: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that a half-drawn group held would be missing to the writers whose items the rest of it waits for."""
    monkeypatch.setattr("pappus.recording.transitions.SEND_ITEMS", 1)
    settings = spec(str(tmp_path / "socket"), tolerance=tolerance, samples_per_insert=ratio, capacity=200)
    shared = SharedReplay(dataclasses.replace(settings, prefetch=16, max_steps=400), np.zeros(1, np.int64))
    replay_server = shared.host()
    replay_server.open()
    sink, source = shared.sink(2), shared.source()
    while not sink.ready():
        pass
    ended = threading.Event()

    def act() -> None:
        while not ended.is_set():
            for step in steps(50):
                while not sink.ready() and not ended.is_set():
                    select.select([sink.fileno()], [], [], 0.05)
                    sink.clear()
                if not ended.is_set():
                    sink.record(*step)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    for _ in range(60):
        assert len(taken(source).keys) == BATCH
    ended.set()
    thread.join(SECONDS)
    assert not thread.is_alive()
    source.close()
    sink.close()
    replay_server.close()


def change_all(source: PrefetchedSource, heavy: Any) -> None:
    """Two keys are worth drawing from now on."""
    nothing = ItemBatch(np.arange(500), None, None, 0.0, source._life)
    source.update(nothing, np.full(500, 1e-9))
    source.update(nothing._replace(keys=heavy), np.array([3.0, 1.0]))


def test_a_waiting_learner_sends_its_priorities(replay: SharedReplay) -> None:
    source, looking = replay.source(), Client(replay._reach)
    heavy = taken(source).keys[:2]
    while source._together <= 1:
        taken(source)
    change_all(source, heavy)
    assert set(looking.sample(TABLE, BATCH).keys) != set(heavy), "those of a whole group go at once"
    while source.take() is not None:
        pass
    source.info()  # an answer: all that was sent before has arrived
    assert set(looking.sample(TABLE, BATCH).keys) <= set(heavy)
    source.close()
    looking.close()


def test_priorities_that_are_left_are_sent_at_the_end(replay: SharedReplay) -> None:
    source, looking = replay.source(), Client(replay._reach)
    heavy = taken(source).keys[:2]
    while source._together <= 1:
        taken(source)
    change_all(source, heavy)
    source.close()
    deadline = 200
    while not set(looking.sample(TABLE, BATCH).keys) <= set(heavy):
        deadline -= 1
        assert deadline, "they never arrived"
    looking.close()


def test_priorities_for_a_lost_service_are_dropped(replay: SharedReplay) -> None:
    source, looking = replay.source(), Client(replay._reach)
    heavy = taken(source).keys[:2]
    while source._together <= 1:
        taken(source)
    earlier = ItemBatch(np.arange(500), None, None, 0.0, source._life - 1)
    for _ in range(PREFETCH):
        source.update(earlier._replace(keys=heavy), np.full(2, 1e9))
    source.info()
    assert len(set(looking.sample(TABLE, 8 * BATCH).keys)) > 2
    source.close()
    looking.close()
