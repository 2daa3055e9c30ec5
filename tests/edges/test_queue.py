"""Both kinds of memory keep the queue contract, and processes can share one of them."""

from __future__ import annotations

import os
import select
from typing import Any

import numpy as np

from pappus.edges.queue import QueueEdge, RingQueue, poison
from pappus.transports.memory import Block, HeapBlock, SharedBlock
from tests.contracts.queue_contract import SPEC, QueueContract, mark_of, put


class TestHeapQueue(QueueContract):
    def make(self, producers: int, capacity: int) -> RingQueue:
        block: Block = HeapBlock(*RingQueue.footprint(SPEC, producers, capacity))
        return RingQueue("unrolls", SPEC, producers, capacity, block)


class TestSharedQueue(QueueContract):
    def make(self, producers: int, capacity: int) -> RingQueue:
        block = SharedBlock.create(*RingQueue.footprint(SPEC, producers, capacity))
        return RingQueue("unrolls", SPEC, producers, capacity, block)


def test_another_process_writes_in_place_and_rings() -> None:
    block = SharedBlock.create(*RingQueue.footprint(SPEC, 1, 2))
    queue = RingQueue("unrolls", SPEC, 1, 2, block)
    child = os.fork()
    if child == 0:
        put(RingQueue("unrolls", SPEC, 1, 2, SharedBlock(block.nbytes, block.descriptors)), 0, 5)
        os._exit(0)
    source = queue.source()
    assert select.select([source.fileno()], [], [], 10)[0], "the consumer is woken"
    os.waitpid(child, 0)
    taken = source.take(1)
    assert taken is not None and mark_of(taken[0]) == 5
    source.clear()
    assert not select.select([source.fileno()], [], [], 0)[0], "a cleared notifier is silent"


def test_a_notifier_that_rang_before_anybody_listened_is_heard() -> None:
    block = SharedBlock.create(64, 1)
    block.notifiers[0].notify()
    assert select.select([block.notifiers[0].fileno()], [], [], 0)[0]


def test_shared_memory_has_no_name_that_could_be_left_behind() -> None:
    before = set(os.listdir("/dev/shm"))
    block = SharedBlock.create(4096, 1)
    assert set(os.listdir("/dev/shm")) == before
    block.close()


def test_systems_without_memory_files_and_eventfds_work_too(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.delattr(os, "memfd_create", raising=False)
    monkeypatch.delattr(os, "eventfd", raising=False)
    queue = TestSharedQueue().make(1, 1)
    put(queue, 0, 3)
    source = queue.source()
    assert select.select([source.fileno()], [], [], 0)[0]
    taken = source.take(1)
    assert taken is not None and mark_of(taken[0]) == 3


def test_poisoned_slots_show_fields_that_nobody_wrote() -> None:
    queue = TestHeapQueue().make(1, 1)
    poison(queue.ring(0))
    slot = queue.sink(0).acquire()
    assert slot is not None
    assert np.isnan(slot.reward).all() and (slot.observation["b"] == 255).all()


def test_a_successor_of_the_consumer_goes_on_with_the_producer_whose_turn_it_is() -> None:
    block = HeapBlock(*RingQueue.footprint(SPEC, 3, 2))
    queue = RingQueue("unrolls", SPEC, 3, 2, block)
    for producer in range(3):
        put(queue, producer, producer)
        put(queue, producer, producer)
    source = queue.source()
    taken = source.take(2)
    assert taken is not None and list(map(mark_of, taken)) == [0, 1]
    source.release()
    assert source.take(1) is not None, "what is taken and not released is taken again"
    taken = RingQueue("unrolls", SPEC, 3, 2, block).source().take(2)
    assert taken is not None and list(map(mark_of, taken)) == [2, 0]


def test_a_commit_and_the_sum_of_its_steps_are_one() -> None:
    """A producer that is killed between the two has neither committed nor counted."""
    edge = QueueEdge("queue", SPEC, producers=1, capacity=4)
    sink: Any = edge.open(edge.new_block(HeapBlock)).sink(0)
    sink.commit(5)
    assert sink.handed_on() == 5
    ring = sink._ring
    ring.steps[0] = 5 + 3  # as far as the second commit came
    assert sink.handed_on() == 5
    sink.commit(4)
    assert sink.handed_on() == 9
