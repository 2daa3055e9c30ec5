from __future__ import annotations

import select

import numpy as np

from pappus.edges.shared_parameters import ParameterMemory, SharedParametersEdge
from pappus.transports.memory import ALIGNMENT, HeapBlock, SharedBlock

SIZE, ROWS = 5, 3


def test_fresh_shared_parameters_are_closed_and_hold_zeros() -> None:
    edge = SharedParametersEdge("shared parameters", SIZE, ROWS)
    shared = edge.open(edge.new_block(HeapBlock))
    assert not shared.ready() and shared.rows.shape == (ROWS, SIZE) and not shared.rows.any()
    assert shared.counted.tolist() == [0, 0] and not shared.resting()


def test_rows_and_counts_do_not_overlap_and_rows_begin_on_cache_lines() -> None:
    block = HeapBlock(*ParameterMemory.footprint(SIZE, ROWS))
    shared_parameters = ParameterMemory("shared_parameters", SIZE, ROWS, block)
    shared_parameters.open()
    shared_parameters.counted[:] = 7, 8
    for i, row in enumerate(shared_parameters.rows):
        row[:] = i + 1
        assert (row.__array_interface__["data"][0] - block.memory.__array_interface__["data"][0]) % ALIGNMENT == 0
    assert shared_parameters.ready() and shared_parameters.counted.tolist() == [7, 8]
    assert shared_parameters.rows.tolist() == [[i + 1.0] * SIZE for i in range(ROWS)]


def test_two_mappings_of_one_memory_are_one_shared_parameters_and_opening_wakes_who_waits() -> None:
    block = SharedBlock.create(*ParameterMemory.footprint(SIZE, ROWS))
    there = SharedBlock(block.nbytes, block.descriptors)
    one, other = (ParameterMemory("shared_parameters", SIZE, ROWS, memory) for memory in (block, there))
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
