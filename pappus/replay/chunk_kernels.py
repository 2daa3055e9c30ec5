"""The loops over rows and chunks that every batch goes through, as loops and in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pappus.types import Array


class ChunkKernels(NamedTuple):
    """`length` is that of a chunk, `following[chunk]` the one that goes on where it ends."""

    locate: Callable[[Array, int, Array, Array, Array], None]
    """(following, length, bases `[n]`, positions `[n, m]`, rows `[n, m]`): the rows of positions counted from bases."""
    add: Callable[[Array, Array, int], None]
    """(holders, chunks, by): add to each chunk's count, for each time that it is named."""


def _locate_with_numpy(following: Array, length: int, bases: Array, positions: Array, rows: Array) -> None:
    chunk = bases // length
    reached = (bases % length)[:, None] + positions
    hops, within = np.divmod(reached, length)
    rows[:] = within + (chunk * length)[:, None]
    for hop in range(1, int(hops.max(initial=0)) + 1):
        chunk = following[chunk]
        np.copyto(rows, within + (chunk * length)[:, None], where=hops == hop)


def _add_with_numpy(holders: Array, chunks: Array, by: int) -> None:
    np.add.at(holders, chunks, by)


def _locate(following: Array, length: int, bases: Array, positions: Array, rows: Array) -> None:
    for i in range(len(bases)):
        first, offset = bases[i] // length, bases[i] % length
        for j in range(positions.shape[1]):
            chunk, within = first, offset + positions[i, j]
            while within >= length:
                chunk = following[chunk]
                within -= length
            rows[i, j] = chunk * length + within


def _add(holders: Array, chunks: Array, by: int) -> None:
    for i in range(len(chunks)):
        holders[chunks[i]] += by


NUMPY = ChunkKernels(_locate_with_numpy, _add_with_numpy)
LOOPS = ChunkKernels(_locate, _add)
