from __future__ import annotations

import numpy as np

from pappus.edges.counters import SharedCounters
from pappus.transports.memory import ALIGNMENT, HeapBlock, SharedBlock


def fresh_counters(writers: int) -> SharedCounters:
    return SharedCounters("steps", writers, HeapBlock(*SharedCounters.footprint(writers)))


def test_all_see_what_all_have_added() -> None:
    steps = fresh_counters(3)
    counters = [steps.counter(i) for i in range(3)]
    for i, counter in enumerate(counters):
        counter.add(10**i)
        counter.add(10**i)
    assert steps.total() == 222 and all(counter.total() == 222 for counter in counters)


def test_a_successor_counts_on() -> None:
    steps = fresh_counters(2)
    steps.counter(1).add(5)
    steps.counter(1).add(2)
    assert steps.total() == 7


def test_a_resumed_count_goes_on_from_where_it_was() -> None:
    steps = fresh_counters(2)
    steps.counter(0).add(3)
    steps.set_total(1000)
    steps.counter(1).add(4)
    assert steps.total() == 1004


def test_writers_do_not_share_cache_lines() -> None:
    block = HeapBlock(*SharedCounters.footprint(3))
    steps = SharedCounters("steps", 3, block)
    for i in range(3):
        steps.counter(i).add(1)
    steps.set_total(10)
    lines = np.flatnonzero(block.memory.view(np.int64)) * 8 // ALIGNMENT
    assert lines.tolist() == [0, 1, 2, 3]


def test_two_mappings_of_one_memory_are_one_counters() -> None:
    block = SharedBlock.create(*SharedCounters.footprint(2))
    there = SharedBlock(block.nbytes, block.descriptors)
    one, other = SharedCounters("steps", 2, block), SharedCounters("steps", 2, there)
    one.counter(0).add(2**40)
    other.counter(1).add(1)
    assert one.total() == other.total() == 2**40 + 1
    block.close()
