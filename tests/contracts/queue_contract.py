"""What every queue of unrolls must do, whatever memory it lies in. Subclasses provide `make(producers, capacity)`."""

from __future__ import annotations

import numpy as np
import pytest

from pappus.edges.queue import RingQueue
from pappus.types import ArraySpec, Unroll

SPEC = Unroll(
    observation={"a": ArraySpec((3, 2, 4), "float32"), "b": ArraySpec((3, 2), "uint8")},
    first=ArraySpec((3, 2), "bool"), action=ArraySpec((2, 2), "int64"), reward=ArraySpec((2, 2), "float32"),
    discount=ArraySpec((2, 2), "float32"), valid=ArraySpec((2, 2), "bool"),
    behaviour={"log_prob": ArraySpec((2, 2), "float32")}, version=ArraySpec((2, 2), "int64"), state=(),
)


def put(queue: RingQueue, producer: int, mark: int) -> None:
    slot = queue.sink(producer).acquire()
    assert slot is not None
    slot.reward[:] = mark
    queue.sink(producer).commit()


def mark_of(slot: Unroll) -> int:
    return int(slot.reward[0, 0])


class QueueContract:
    def make(self, producers: int, capacity: int) -> RingQueue:
        raise NotImplementedError

    def test_slots_have_the_shapes_and_dtypes_of_the_spec(self) -> None:
        slot = self.make(1, 1).sink(0).acquire()
        assert slot is not None
        assert slot.observation["a"].shape == (3, 2, 4) and slot.observation["b"].dtype == np.uint8
        assert slot.first.dtype == bool and slot.version.dtype == np.int64 and slot.state == ()

    def test_items_of_one_producer_arrive_in_order(self) -> None:
        queue, marks = self.make(1, 2), []
        source = queue.source()
        for mark in range(7):
            put(queue, 0, mark)
            taken = source.take(1)
            assert taken is not None
            marks.append(mark_of(taken[0]))
            source.release()
        assert marks == list(range(7))

    def test_a_full_ring_keeps_its_producer_waiting_until_a_slot_is_released(self) -> None:
        queue = self.make(1, 2)
        source, sink = queue.source(), queue.sink(0)
        put(queue, 0, 1)
        put(queue, 0, 2)
        assert sink.acquire() is None and "2 slots are full" in sink.explain()
        assert source.take(1) is not None
        assert sink.acquire() is None, "a slot that is being read is not free"
        source.release()
        assert sink.acquire() is not None

    def test_a_batch_is_taken_whole_or_not_at_all(self) -> None:
        queue = self.make(2, 2)
        source = queue.source()
        put(queue, 0, 1)
        assert source.take(2) is None and source.explain() == "1 of 2 unrolls are ready"
        put(queue, 1, 2)
        taken = source.take(2)
        assert taken is not None and {mark_of(slot) for slot in taken} == {1, 2}

    def test_no_producer_is_starved_by_a_faster_one(self) -> None:
        queue = self.make(2, 2)
        source = queue.source()
        put(queue, 0, 1)
        put(queue, 0, 1)
        put(queue, 1, 2)
        first_two = []
        for _ in range(2):
            taken = source.take(1)
            assert taken is not None
            first_two.append(mark_of(taken[0]))
            source.release()
        assert sorted(first_two) == [1, 2]

    def test_what_a_dead_producer_left_uncommitted_is_written_again_by_its_successor(self) -> None:
        queue = self.make(1, 2)
        dying = queue.sink(0)
        abandoned = dying.acquire()
        assert abandoned is not None
        abandoned.reward[:] = 13
        put(queue, 0, 7)  # the successor's sink is a new object over the same memory
        taken = queue.source().take(1)
        assert taken is not None and mark_of(taken[0]) == 7

    def test_depth_counts_what_is_ready(self) -> None:
        queue = self.make(2, 2)
        assert queue.source().depth() == 0
        put(queue, 0, 1)
        put(queue, 1, 1)
        assert queue.source().depth() == 2


@pytest.fixture
def spec() -> Unroll:
    return SPEC
