"""The inner loops of replay, compiled if numba is installed; otherwise NumPy versions, several times slower.

In a sum tree, `nodes` has 2·size entries: `nodes[size:]` are the leaves, and `nodes[i]` is the sum of `nodes[2·i]` and
`nodes[2·i + 1]`. A node is always computed from its children and never adjusted by differences, so rounding errors do
not accumulate: the same leaves give the same tree, bit by bit, in any order of updates.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from pappus.types import Array


class Kernels(NamedTuple):
    """`length` is that of a chunk; `following[chunk]` is the chunk that continues it."""

    locate: Callable[[Array, int, Array, Array, Array], None]
    """(following, length, bases `[n]`, positions `[n, m]`, rows `[n, m]`): the rows of positions counted from bases."""
    add: Callable[[Array, Array, int], None]
    """(counts, places, by): add `by` to the count of each place, once per occurrence."""
    update: Callable[[Array, Array, Array], None]
    """(nodes, places, weights): set leaves and all sums above them; the last one counts if a place occurs twice."""
    find: Callable[[Array, Array, Array], None]
    """(nodes, targets, places): for each target in [0, root), the leaf at which the running sum passes it."""


@cache
def fastest() -> Kernels:
    """The compiled loops if numba is installed, otherwise the NumPy versions."""
    return compiled(LOOPS) if importlib.util.find_spec("numba") is not None else NUMPY


@cache
def compiled(loops: Kernels) -> Kernels:
    """The loops as machine code. It is cached on disk, so only the first call ever waits for the compiler."""
    import numba

    compile_loop: Any = numba.njit(cache=True, nogil=True)
    return Kernels(*map(compile_loop, loops))


def _locate_with_numpy(following: Array, length: int, bases: Array, positions: Array, rows: Array) -> None:
    chunk = bases // length
    reached = (bases % length)[:, None] + positions
    hops, within = np.divmod(reached, length)
    rows[:] = within + (chunk * length)[:, None]
    for hop in range(1, int(hops.max(initial=0)) + 1):
        chunk = following[chunk]
        np.copyto(rows, within + (chunk * length)[:, None], where=hops == hop)


def _add_with_numpy(counts: Array, places: Array, by: int) -> None:
    np.add.at(counts, places, by)


def _update_with_numpy(nodes: Array, places: Array, weights: Array) -> None:
    size = len(nodes) // 2
    nodes[size + places] = weights
    parents = np.unique((size + places) >> 1)
    while len(parents) and parents[0] >= 1:
        nodes[parents] = nodes[2 * parents] + nodes[2 * parents + 1]
        parents = np.unique(parents >> 1)


def _find_with_numpy(nodes: Array, targets: Array, places: Array) -> None:
    size = len(nodes) // 2
    at, rest = np.ones(len(targets), np.int64), targets.copy()
    for _ in range(size.bit_length() - 1):
        left = nodes[2 * at]
        # Rounding may leave a rest as large as the node's own sum: an empty side is never entered.
        right = ((rest >= left) & (nodes[2 * at + 1] > 0)) | (left <= 0)
        rest = np.where(right, rest - left, rest)
        at = 2 * at + right
    places[:] = at - size


def _locate(following: Array, length: int, bases: Array, positions: Array, rows: Array) -> None:
    for i in range(len(bases)):
        first, offset = bases[i] // length, bases[i] % length
        for j in range(positions.shape[1]):
            chunk, within = first, offset + positions[i, j]
            while within >= length:
                chunk = following[chunk]
                within -= length
            rows[i, j] = chunk * length + within


def _add(counts: Array, places: Array, by: int) -> None:
    for i in range(len(places)):
        counts[places[i]] += by


def _update(nodes: Array, places: Array, weights: Array) -> None:
    size = len(nodes) // 2
    for i in range(len(places)):
        node = size + places[i]
        nodes[node] = weights[i]
        node >>= 1
        while node >= 1:
            nodes[node] = nodes[2 * node] + nodes[2 * node + 1]
            node >>= 1


def _find(nodes: Array, targets: Array, places: Array) -> None:
    size = len(nodes) // 2
    for i in range(len(targets)):
        rest = targets[i]
        node = 1
        while node < size:
            left = nodes[2 * node]
            if (rest >= left and nodes[2 * node + 1] > 0) or left <= 0:
                rest -= left
                node = 2 * node + 1
            else:
                node = 2 * node
        places[i] = node - size


NUMPY = Kernels(_locate_with_numpy, _add_with_numpy, _update_with_numpy, _find_with_numpy)
LOOPS = Kernels(_locate, _add, _update, _find)
