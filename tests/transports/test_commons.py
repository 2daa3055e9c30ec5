from __future__ import annotations

import select

import numpy as np

from pappus.transports.commons import SharedCommons
from pappus.transports.memory import ALIGNMENT, HeapBlock, SharedBlock

SIZE, ROWS = 5, 3


def test_fresh_commons_are_closed_and_hold_zeros() -> None:
    commons = SharedCommons("commons", SIZE, ROWS, HeapBlock(*SharedCommons.footprint(SIZE, ROWS)))
    assert not commons.ready() and commons.rows.shape == (ROWS, SIZE) and not commons.rows.any()
    assert commons.counted.tolist() == [0, 0] and not commons.resting()


def test_rows_and_counts_do_not_overlap_and_rows_begin_on_cache_lines() -> None:
    block = HeapBlock(*SharedCommons.footprint(SIZE, ROWS))
    commons = SharedCommons("commons", SIZE, ROWS, block)
    commons.open()
    commons.counted[:] = 7, 8
    for i, row in enumerate(commons.rows):
        row[:] = i + 1
        assert (row.__array_interface__["data"][0] - block.memory.__array_interface__["data"][0]) % ALIGNMENT == 0
    assert commons.ready() and commons.counted.tolist() == [7, 8]
    assert commons.rows.tolist() == [[i + 1.0] * SIZE for i in range(ROWS)]


def test_two_mappings_of_one_memory_are_one_commons_and_opening_wakes_who_waits() -> None:
    block = SharedBlock.create(*SharedCommons.footprint(SIZE, ROWS))
    there = SharedBlock(block.nbytes, block.descriptors)
    one, other = (SharedCommons("commons", SIZE, ROWS, memory) for memory in (block, there))
    assert not select.select([other], [], [], 0)[0], other.explain()
    one.rows[0] = np.arange(SIZE)
    one.open()
    other.rows[1] += 2
    assert select.select([other], [], [], 0)[0] and other.ready()
    assert other.rows[0].tolist() == list(range(SIZE)) and one.rows[1].tolist() == [2] * SIZE
    other.rest()
    assert one.resting()
    other.clear()
    assert select.select([other], [], [], 0)[0], "whoever comes later need not wait either"
    block.close()
