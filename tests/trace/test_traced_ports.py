"""Ports give a replayed role what it met in the run, in whatever order the others go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pappus.edges.counters import CounterEdge
from pappus.edges.edge import Edge
from pappus.edges.queue import QueueEdge
from pappus.edges.weights import WeightsEdge
from pappus.kinds import ACTOR, EVALUATOR, LEARNER
from pappus.trace.log import TraceEnded, TraceError, load_lives
from pappus.trace.recorded import RecordedTrace
from pappus.trace.replayed import ReplayedTrace
from pappus.transports.memory import HeapBlock
from pappus.types import Array
from tests.contracts.queue_contract import SPEC, mark_of

UNROLLS, WEIGHTS, STEPS = QueueEdge("unrolls", SPEC, 2, 2), WeightsEdge("weights", 3), CounterEdge("steps", 2)


class World:
    """The edges of a program, as the lives of its roles see them: in a run, or in its replay."""

    def __init__(self, trace: RecordedTrace | ReplayedTrace) -> None:
        self._trace = trace
        self._blocks = {edge.name: edge.new_block(HeapBlock) for edge in (UNROLLS, WEIGHTS, STEPS)}
        self._openers: dict[tuple[str, int], Any] = {}

    def end(self, edge: Edge, role: str, incarnation: int = 0) -> Any:
        if (role, incarnation) not in self._openers:
            kind = LEARNER if role == "learner" else ACTOR
            self._openers[role, incarnation] = self._trace.opener(role, kind, incarnation)
        return self._openers[role, incarnation].open(edge, self._blocks[edge.name])


class Recorded(World):
    """A run, of which the learner has published one version."""

    def __init__(self, folder: Path) -> None:
        self.recording, self.folder = RecordedTrace(folder), folder
        super().__init__(self.recording)
        self.weights = self.end(WEIGHTS, "learner")
        self.publish(0)

    def publish(self, version: int) -> None:
        self.weights.publish(np.full(3, version, np.float32), version)

    def act(self, actors: int) -> None:
        """Each actor hands over an unroll: one of which others saw nothing would not be replayed."""
        for i in range(actors):
            put_all(self.end(UNROLLS, f"actor-{i}").sink(i), 1)

    def replayed(self) -> Replayed:
        self.recording.close()
        return Replayed(self.folder)


class Replayed(World):
    """Its replay."""

    def __init__(self, folder: Path) -> None:
        self.compared_updates: list[int] = []
        self.trace = ReplayedTrace(load_lives(folder), self)
        super().__init__(self.trace)
        self.weights = self.end(WEIGHTS, "learner")
        self.publish(0)

    def publish(self, version: int) -> None:
        self.weights.publish(np.full(3, version, np.float32), version)

    def about_to_update(self) -> None: ...

    def compared(self, flat: Array, update: int, hashed: bool) -> None:
        self.compared_updates.append(update)


def test_a_batch_is_made_of_the_slots_that_it_was_made_of(tmp_path: Path) -> None:
    run = Recorded(tmp_path)
    source = run.end(UNROLLS, "learner").source()
    one, two = (run.end(UNROLLS, f"actor-{i}") for i in range(2))
    put_all(one.sink(0), 1, 2)
    put_all(two.sink(1), 11)
    assert [mark_of(slot) for slot in source.take(2)] == [1, 11]
    source.release()
    assert [mark_of(slot) for slot in source.take(1)] == [2]
    run.publish(1)
    replay = run.replayed()
    source = replay.end(UNROLLS, "learner").source()
    first = replay.end(UNROLLS, "actor-0").sink(0)
    put_all(first, 1, 2)
    assert source.take(2) is None, "two slots are there, but not these"
    put_all(replay.end(UNROLLS, "actor-1").sink(1), 11)
    assert [mark_of(slot) for slot in source.take(2)] == [1, 11]


def test_a_version_is_read_when_it_is_published_and_also_after_others_are(tmp_path: Path) -> None:
    run = Recorded(tmp_path)
    early, late = (run.end(WEIGHTS, f"actor-{i}").reader() for i in range(2))
    assert early.version() == 0
    run.publish(1)
    assert late.version() == early.version() == 1
    run.publish(2)
    run.act(2)
    replay = run.replayed()
    early, late = (replay.end(WEIGHTS, f"actor-{i}").reader() for i in range(2))
    assert late.version() == -1, "it read version 1"
    replay.publish(1)
    replay.publish(2)
    into = np.zeros(3, np.float32)
    assert early.version() == 0 and early.read(into) == 0 and into.tolist() == [0, 0, 0]
    assert early.version() == 1 and late.version() == 1 and late.read(into) == 1 and into.tolist() == [1, 1, 1]


def test_version_and_read_are_one_version_in_a_traced_run(tmp_path: Path) -> None:
    run, into = Recorded(tmp_path), np.zeros(3, np.float32)
    reader = run.end(WEIGHTS, "actor-0").reader()
    assert reader.version() == 0
    run.publish(1)
    assert reader.read(into) == 0 and into.tolist() == [0, 0, 0]


def test_a_sum_is_what_it_was_though_others_count_at_other_times(tmp_path: Path) -> None:
    run = Recorded(tmp_path)
    counter = run.end(STEPS, "actor-0").counter(0)
    counter.add(5)
    assert counter.total() == 5
    run.act(1)
    replay = run.replayed()
    assert replay.end(STEPS, "actor-0").counter(0).total() == 5


def test_other_weights_are_named_by_the_first_update_that_has_them(tmp_path: Path) -> None:
    run = Recorded(tmp_path)
    run.publish(1)
    run.publish(2)
    replay = run.replayed()
    replay.publish(1)
    with pytest.raises(TraceError, match="update 2: other weights than in the run; all before it were the same"):
        replay.weights.publish(np.zeros(3, np.float32), 2)
    assert replay.compared_updates == [0, 1]


def test_the_last_weights_are_hashed_once_the_run_ends(tmp_path: Path) -> None:
    run = Recorded(tmp_path)
    run.publish(1)
    run.publish(1)  # a run that ends publishes what it has
    replay = run.replayed()
    assert replay.trace.published == [0, 1] and sorted(replay.trace.hashes) == [0, 1]


def test_another_unroll_names_the_life_that_made_it(tmp_path: Path) -> None:
    run = Recorded(tmp_path)
    put_all(run.end(UNROLLS, "actor-0", 3).sink(0), 1)
    replay = run.replayed()
    sink = replay.end(UNROLLS, "actor-0", 3).sink(0)
    with pytest.raises(TraceError, match=r"actor-0 \(incarnation 3\) made another unroll 0 than in the run"):
        put_all(sink, 2)


def test_a_life_ends_with_what_its_successor_found_and_not_with_its_last_entry(tmp_path: Path) -> None:
    """It may be killed between the entry and the slot that belongs to it."""
    run = Recorded(tmp_path)
    killed = run.end(UNROLLS, "actor-0").sink(0)
    put_all(killed, 1)
    slot = killed.acquire()
    slot.action[:], slot.reward[:] = 0, 2
    killed._log.write("commit", 12345)
    put_all(run.end(UNROLLS, "actor-0", 1).sink(0), 3)
    source = run.end(UNROLLS, "learner").source()
    assert [mark_of(slot) for slot in source.take(2)] == [1, 3]
    run.publish(1)
    replay = run.replayed()
    life = replay.trace.lives["actor-0"][0]
    sink = replay.end(UNROLLS, "actor-0").sink(0)
    assert not all(spent() for spent in life.spent)
    put_all(sink, 1)
    assert all(spent() for spent in life.spent)
    put_all(replay.end(UNROLLS, "actor-0", 1).sink(0), 3)
    assert [mark_of(slot) for slot in replay.end(UNROLLS, "learner").source().take(2)] == [1, 3]


def test_what_is_left_in_queues_when_a_run_ends_is_no_batch(tmp_path: Path) -> None:
    run = Recorded(tmp_path)
    put_all(run.end(UNROLLS, "actor-0").sink(0), 1)
    source = run.end(UNROLLS, "learner").source()
    source.take(1)
    replay = run.replayed()
    put_all(replay.end(UNROLLS, "actor-0").sink(0), 1)
    with pytest.raises(TraceEnded):
        replay.end(UNROLLS, "learner").source().take(1)


def test_a_life_of_which_others_saw_nothing_is_left_out(tmp_path: Path) -> None:
    """Its env may have ended it at once, and would do so again."""
    run = Recorded(tmp_path)
    put_all(run.end(UNROLLS, "actor-0").sink(0), 1)
    run.end(UNROLLS, "actor-0", 1).sink(0)
    put_all(run.end(UNROLLS, "actor-0", 2).sink(0), 2)
    lives = run.replayed().trace.lives["actor-0"]
    assert [life.incarnation for life in lives] == [0, 2]


def test_a_run_whose_replay_died_is_refused(tmp_path: Path) -> None:
    run = Recorded(tmp_path)
    run.recording.close()
    for incarnation in range(2):
        (tmp_path / f"replay.{incarnation}.log").write_text("pid 1\ninsert actor-0.0 1 5\n")
    with pytest.raises(TraceError, match="replay died in the run, and the trace does not hold the tables"):
        Replayed(tmp_path)


def test_nothing_is_written_of_an_evaluator(tmp_path: Path) -> None:
    assert RecordedTrace(tmp_path).opener("evaluator", EVALUATOR, 0) is None and not list(tmp_path.iterdir())


def put_all(sink: Any, *marks: int) -> None:
    for mark in marks:
        slot = sink.acquire()
        slot.action[:], slot.reward[:] = 0, mark
        sink.commit()
