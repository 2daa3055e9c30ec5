"""The selector that draws in proportion to priorities, and its sum tree.

Leaves are weights, every inner node is the sum of its two children, and the root is the sum of all:

                 7.0                    nodes[1]
            3.0       4.0               nodes[2], nodes[3]
         1.0   2.0   0.0   4.0          nodes[4] … nodes[7]: places 0 … 3

A node is always computed from its children and never adjusted by differences, so rounding errors do not accumulate: the
same priorities give the same tree, bit by bit, in any order of updates. The loops are compiled if numba is installed;
otherwise NumPy processes all places of a batch level by level, several times slower.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import numpy as np

from pappus.errors import UserError
from pappus.replay.storage.compiling import fastest
from pappus.replay.tables.limited_draws import at_random
from pappus.types import Array


class TreeKernels(NamedTuple):
    """The two loops of a sum tree. `nodes` has 2·size entries; `nodes[size:]` are the leaves."""

    update: Callable[[Array, Array, Array], None]
    """(nodes, places, priorities): set leaves and all sums above them; the last one counts if a place occurs twice."""
    find: Callable[[Array, Array, Array], None]
    """(nodes, targets, places): for each target in [0, root), the leaf at which the running sum passes it."""


class SumTree:
    """Priorities of `capacity` places, initially 0. A place of priority 0 is never drawn."""

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
        """Set priorities; the last one counts if a place occurs twice. An illegal priority changes nothing."""
        self._check(places)
        priorities = np.asarray(priorities, np.float64)
        if not (np.isfinite(priorities) & (priorities >= 0)).all():
            wrong = priorities[~(np.isfinite(priorities) & (priorities >= 0))][0]
            raise ValueError(f"priority={wrong} is not a finite number of at least 0; clip what you compute them from")
        self._kernels.update(self._nodes, np.asarray(places, np.int64), priorities)

    def sample(self, uniforms: Array) -> tuple[Array, Array]:
        """For each number in [0, 1) a place and its probability."""
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


class Prioritized:
    """Draws a place of priority p with a probability proportional to p^α (Schaul et al. 2015), never if p is 0."""

    random: ClassVar[bool] = True
    oldest_first: ClassVar[bool] = False

    def __init__(self, capacity: int, alpha: float = 1.0) -> None:
        if not 0 <= alpha < np.inf:
            raise UserError(f"alpha={alpha} must be a number of at least 0; the papers use 0.6 to 0.9")
        self._alpha, self._tree = alpha, SumTree(capacity)
        self._used = np.zeros(capacity, bool)
        self._positive = 0
        """Places with a priority above 0."""

    def insert(self, places: Array, priorities: Array) -> None:
        self.update(places, priorities)
        self._used[places] = True

    def update(self, places: Array, priorities: Array) -> None:
        priorities = np.asarray(priorities, np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            weights = np.where(priorities > 0, priorities**self._alpha, 0.0)
        if not (np.isfinite(weights) & (priorities >= 0)).all():
            raise UserError("a priority (or its power) is negative or not finite; give absolute values")
        self._set(places, weights)

    def delete(self, places: Array) -> None:
        self._set(places, np.zeros(len(places)))
        self._used[places] = False

    def _set(self, places: Array, weights: Array) -> None:
        before = self._tree.priorities(places) > 0
        if before.all() and (weights > 0).all():  # the usual case: the number of positive ones stays the same
            self._tree.update(places, weights)
            return
        distinct = np.unique(places)
        self._positive -= int(np.count_nonzero(self._tree.priorities(distinct)))
        self._tree.update(places, weights)
        self._positive += int(np.count_nonzero(self._tree.priorities(distinct)))

    def sample(self, count: int, rng: np.random.Generator, distinct: bool = False) -> tuple[Array, Array]:
        """As `Selector.sample`; distinct draws fall back to priorities of 0 when nothing else is left."""
        if not distinct or (count == 1 and self._positive):
            return self._tree.sample(rng.random(count))
        places, probabilities = self._distinct(min(count, self._positive), rng)
        if (zeros := count - len(places)) > 0:
            others = np.setdiff1d(np.flatnonzero(self._used), places)
            places = np.concatenate([places, others[:zeros]])
            probabilities = np.concatenate([probabilities, np.ones(zeros)])
        return places, probabilities

    def _distinct(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Places of priorities above 0: drawn ones get weight 0 until enough are drawn, then their weights back."""
        places, probabilities, weights = np.empty(count, np.int64), np.empty(count), np.empty(count)
        done = 0
        while done < count:
            drawn, likely = self._tree.sample(rng.random(count - done))
            draws = at_random(drawn, likely, np.zeros(len(drawn), np.int64), 1, count)
            new = slice(done, done + len(draws.places))
            places[new], probabilities[new] = draws.places, draws.probabilities
            weights[new] = self._tree.priorities(draws.places)
            self._tree.update(draws.places, np.zeros(len(draws.places)))
            done = new.stop
        self._tree.update(places, weights)
        return places, probabilities

    def accepts(self, priorities: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.isfinite(priorities) & (priorities >= 0) & np.isfinite(priorities**self._alpha)

    def total(self) -> tuple[float, int]:
        return self._tree.total, self._positive

    def in_use(self) -> Array:
        return np.flatnonzero(self._used)
