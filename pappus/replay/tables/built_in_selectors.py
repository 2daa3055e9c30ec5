"""The selectors that come with the package.

`Prioritized` keeps its weights in a sum tree. Leaves are weights, every inner node is the sum of its two children, and
the root is the sum of all:

                 7.0                    nodes[1]
            3.0       4.0               nodes[2], nodes[3]
         1.0   2.0   0.0   4.0          nodes[4] … nodes[7]: places 0 … 3
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from pappus.errors import UserError
from pappus.replay.storage.chunks import Kernels, fastest
from pappus.replay.tables.heap_selectors import MaxHeap, MinHeap
from pappus.replay.tables.selectors import RandomSelector, SelectorFactory, distinct_draws
from pappus.types import Array


class Uniform(RandomSelector):
    """All places have the same probability."""

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        places: Array = self._used[rng.integers(0, self._count, count)]
        return places, np.full(count, 1.0 / self._count)

    def sample(self, count: int, rng: np.random.Generator, distinct: bool = False) -> tuple[Array, Array]:
        if not distinct:
            return self.draw(count, rng)
        places: Array = self._used[rng.choice(self._count, count, replace=False)]
        return places, 1.0 / np.arange(self._count, self._count - count, -1)


class SumTree:
    """Priorities of `capacity` places, initially 0. A place of priority 0 is never drawn."""

    def __init__(self, capacity: int, kernels: Kernels | None = None) -> None:
        if capacity < 1:
            raise ValueError(f"capacity={capacity} must be at least 1")
        self.capacity = capacity
        self._size = 1 << (capacity - 1).bit_length()
        self._nodes = np.zeros(2 * self._size, np.float64)
        self._kernels = kernels or fastest()

    @property
    def total(self) -> float:
        return float(self._nodes[1])

    def priorities(self, places: Array) -> Array:
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
        weights = [np.zeros(0)]

        def hide(places: Array) -> None:
            weights.append(self._tree.priorities(places))
            self._tree.update(places, np.zeros(len(places)))

        places, probabilities = distinct_draws(count, lambda left: self._tree.sample(rng.random(left)), hide)
        self._tree.update(places, np.concatenate(weights))
        return places, probabilities

    def accepts(self, priorities: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            return np.isfinite(priorities) & (priorities >= 0) & np.isfinite(priorities**self._alpha)

    def total(self) -> tuple[float, int]:
        return self._tree.total, self._positive

    def in_use(self) -> Array:
        return np.flatnonzero(self._used)


class Fifo:
    """The oldest place."""

    random: ClassVar[bool] = False
    oldest_first: ClassVar[bool] = True

    def __init__(self, capacity: int, alpha: float = 1.0) -> None:
        self._log = np.full(2 * capacity, -1, np.int64)
        """Places in the order of insertion; deleted ones leave a −1."""
        self._position = np.full(capacity, -1, np.int64)
        """Where in the log a place stands."""
        self._begin = self._end = self._count = 0

    def insert(self, places: Array, priorities: Array) -> None:
        if self._end + len(places) > len(self._log):
            self._close_gaps()
        there = np.arange(self._end, self._end + len(places))
        self._log[there], self._position[places] = places, there
        self._end += len(places)
        self._count += len(places)

    def update(self, places: Array, priorities: Array) -> None: ...

    def delete(self, places: Array) -> None:
        self._log[self._position[places]] = -1
        self._position[places] = -1
        self._count -= len(places)

    def sample(self, count: int, rng: np.random.Generator, distinct: bool = False) -> tuple[Array, Array]:
        found = self._first(count if distinct else 1)
        return (found if distinct else np.repeat(found, count)), np.ones(count)

    def _first(self, count: int) -> Array:
        found, reach = self._log[:0], count
        while len(found) < count:  # gaps: look further
            near = self._log[self._begin : min(self._end, self._begin + reach)]
            found, reach = near[near >= 0], 2 * reach
        self._begin = int(self._position[found[0]])  # there are only gaps before it
        return found[:count].copy()

    def accepts(self, priorities: Array) -> Array:
        return np.isfinite(priorities)

    def total(self) -> tuple[float, int]:
        return float(self._count), self._count

    def in_use(self) -> Array:
        log = self._log[self._begin : self._end]
        return log[log >= 0]

    def _close_gaps(self) -> None:
        used = self._log[self._begin : self._end]
        used = used[used >= 0]
        self._begin, self._end = 0, len(used)
        self._log[: len(used)], self._position[used] = used, np.arange(len(used))
        self._log[len(used) :] = -1


class Lifo(Fifo):
    """The newest place."""

    oldest_first: ClassVar[bool] = False

    def _first(self, count: int) -> Array:
        found, reach = self._log[:0], count
        while len(found) < count:
            near = self._log[max(self._begin, self._end - reach) : self._end][::-1]
            found, reach = near[near >= 0], 2 * reach
        self._end = int(self._position[found[0]]) + 1
        return found[:count].copy()


BUILT_IN: dict[str, SelectorFactory] = {
    "uniform": Uniform, "prioritized": Prioritized, "fifo": Fifo, "lifo": Lifo, "min_heap": MinHeap,
    "max_heap": MaxHeap,
}
