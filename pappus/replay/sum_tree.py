"""Drawing places in proportion to their priorities, a batch at a time.

Leaves are priorities, every inner node is the sum of its two children, the root the sum of all:

                 7.0                    nodes[1]
            3.0       4.0               nodes[2], nodes[3]
         1.0   2.0   0.0   4.0          nodes[4] … nodes[7]: places 0 … 3

A node is always computed from its children and never adjusted by differences, so no error builds up: the same
priorities give the same tree, to the bit, in whatever order they were set. The loops are compiled where numba is
installed; without it NumPy walks all places of a batch down (or up) together, several times slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pappus.replay.compiling import fastest
from pappus.types import Array


class TreeKernels(NamedTuple):
    """The two loops. `nodes` has 2·size entries, of which `nodes[size:]` are the leaves."""

    update: Callable[[Array, Array, Array], None]
    """(nodes, places, priorities): set leaves and all sums above them; of equal places the last one counts."""
    find: Callable[[Array, Array, Array], None]
    """(nodes, targets, places): for each target in [0, root), the leaf at which the running sum passes it."""


class SumTree:
    """Priorities of `capacity` places, all 0 at the start. A place of priority 0 is never drawn."""

    def __init__(self, capacity: int, kernels: TreeKernels | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"capacity={capacity} holds nothing; use 1 or more")
        self.capacity = capacity
        self._size = 1 << (capacity - 1).bit_length()
        self._nodes = np.zeros(2 * self._size, np.float64)
        self._kernels = kernels or fastest(LOOPS, NUMPY)

    @property
    def total(self) -> float:
        """The sum of all priorities."""
        return float(self._nodes[1])

    def priorities(self, places: Array) -> Array:
        """The priorities of some places."""
        self._check(places)
        found: Array = self._nodes[self._size + places]
        return found

    def update(self, places: Array, priorities: Array) -> None:
        """Set priorities; where a place comes twice, its last one counts. One that is no priority changes nothing."""
        self._check(places)
        priorities = np.asarray(priorities, np.float64)
        if not (np.isfinite(priorities) & (priorities >= 0)).all():
            wrong = priorities[~(np.isfinite(priorities) & (priorities >= 0))][0]
            raise ValueError(f"priority={wrong} is not a finite number of at least 0; clip what you compute them from")
        self._kernels.update(self._nodes, np.asarray(places, np.int64), priorities)

    def sample(self, uniforms: Array) -> tuple[Array, Array]:
        """For each number in [0, 1) a place, and the probability with which it is drawn."""
        if self.total <= 0:
            raise ValueError("nothing can be drawn: all priorities are 0; insert items or raise their priorities")
        places = np.empty(len(uniforms), np.int64)
        self._kernels.find(self._nodes, np.asarray(uniforms, np.float64) * self.total, places)
        return places, self._nodes[self._size + places] / self.total

    def _check(self, places: Array) -> None:
        if len(places) and not (places.min() >= 0 and places.max() < self.capacity):
            raise IndexError(f"places {places.min()} … {places.max()} lie outside 0 … {self.capacity - 1}")


def _update_with_numpy(nodes: Array, places: Array, priorities: Array) -> None:
    size = len(nodes) // 2
    nodes[size + places] = priorities
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


def _update(nodes: Array, places: Array, priorities: Array) -> None:
    size = len(nodes) // 2
    for i in range(len(places)):
        node = size + places[i]
        nodes[node] = priorities[i]
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


NUMPY = TreeKernels(_update_with_numpy, _find_with_numpy)
LOOPS = TreeKernels(_update, _find)
