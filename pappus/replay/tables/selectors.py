"""Which item of a table comes next: to be sampled, or to be removed.

Selectors know items by their *places*, numbers below the table's capacity that the table hands out and takes back. All
work on batches. `sample` draws with replacement where the rule leaves a choice, and says how likely each draw was.
"""

from __future__ import annotations

import heapq
from typing import Protocol

import numpy as np

from pappus.types import Array


class Selector(Protocol):
    """A rule over the places that are in use."""

    def insert(self, places: Array, priorities: Array) -> None:
        """Places come into use."""

    def update(self, places: Array, priorities: Array) -> None:
        """Priorities change."""

    def delete(self, places: Array) -> None:
        """Places go out of use."""

    def sample(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Places and the probabilities with which they were drawn; there must be some in use."""

    def next(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """The same, as if each place were deleted before the next is drawn: no place comes twice."""

    @property
    def mass(self) -> float:
        """What all places together weigh, where one's share of it is its probability."""

    @property
    def drawable(self) -> int:
        """How many places can be drawn: all that are in use, but for those of priority 0 where that counts."""

    def in_use(self) -> Array:
        """All places, in an order in which inserting them anew makes the same selector."""

    def __len__(self) -> int: ...


class Uniform:
    """Every place is as likely as any other."""

    def __init__(self, capacity: int) -> None:
        self._used = np.zeros(capacity, np.int64)
        """The places in use, in a row, in no order."""
        self._position = np.full(capacity, -1, np.int64)
        """Where in that row a place stands."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def insert(self, places: Array, priorities: Array) -> None:
        row = np.arange(self._count, self._count + len(places))
        self._used[row], self._position[places] = places, row
        self._count += len(places)

    def update(self, places: Array, priorities: Array) -> None: ...

    def delete(self, places: Array) -> None:
        holes = self._position[places]
        self._position[places] = -1
        left = self._count - len(places)
        last = self._used[left : self._count]
        moved, holes = last[self._position[last] >= 0], holes[holes < left]  # as many: the last in the row fill up
        self._used[holes], self._position[moved] = moved, holes
        self._count = left

    def sample(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        places: Array = self._used[rng.integers(0, self._count, count)]
        return places, np.full(count, 1.0 / self._count)

    def next(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        places: Array = self._used[rng.choice(self._count, count, replace=False)]
        return places, 1.0 / np.arange(self._count, self._count - count, -1)

    @property
    def mass(self) -> float:
        return float(self._count)

    @property
    def drawable(self) -> int:
        return self._count

    def in_use(self) -> Array:
        return self._used[: self._count].copy()


class InOrder:
    """The oldest place (first in, first out), or with `newest` the youngest one; always the same until it is gone."""

    def __init__(self, capacity: int, newest: bool = False) -> None:
        self._newest = newest
        self._log = np.full(2 * capacity, -1, np.int64)
        """Places as they came in; those that went left a −1."""
        self._position = np.full(capacity, -1, np.int64)
        """Where in the log a place stands."""
        self._begin = self._end = self._count = 0

    def __len__(self) -> int:
        return self._count

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

    def sample(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        return np.repeat(self.next(1, rng)[0], count), np.ones(count)

    def next(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        found, reach = self._log[:0], count
        while len(found) < count:  # gaps: look further
            near = self._log[max(self._begin, self._end - reach) : self._end][::-1] if self._newest else (
                self._log[self._begin : min(self._end, self._begin + reach)]
            )
            found, reach = near[near >= 0], 2 * reach
        if self._newest:  # beyond what was found there are only gaps
            self._end = int(self._position[found[0]]) + 1
        else:
            self._begin = int(self._position[found[0]])
        return found[:count].copy(), np.ones(count)

    @property
    def mass(self) -> float:
        return float(self._count)

    @property
    def drawable(self) -> int:
        return self._count

    def in_use(self) -> Array:
        log = self._log[self._begin : self._end]
        return log[log >= 0]

    def _close_gaps(self) -> None:
        used = self._log[self._begin : self._end]
        used = used[used >= 0]
        self._begin, self._end = 0, len(used)
        self._log[: len(used)], self._position[used] = used, np.arange(len(used))
        self._log[len(used) :] = -1


class Heap:
    """The place of the lowest priority, or with `highest` of the highest one; of equal ones the oldest."""

    def __init__(self, highest: bool = False) -> None:
        self._sign = -1.0 if highest else 1.0
        self._entries: list[tuple[float, int, int]] = []
        """(signed priority, age, place); entries that are out of date stay until they come up."""
        self._current: dict[int, tuple[float, int]] = {}
        self._age = 0

    def __len__(self) -> int:
        return len(self._current)

    def insert(self, places: Array, priorities: Array) -> None:
        for place, priority in zip(places.tolist(), np.asarray(priorities, np.float64).tolist(), strict=True):
            self._age += 1
            self._put(place, priority, self._age)

    def update(self, places: Array, priorities: Array) -> None:
        for place, priority in zip(places.tolist(), np.asarray(priorities, np.float64).tolist(), strict=True):
            self._put(place, priority, self._current[place][1])

    def delete(self, places: Array) -> None:
        for place in places.tolist():
            del self._current[place]

    def sample(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        return np.full(count, self._top()[2]), np.ones(count)

    def next(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        if count == 1:
            return self.sample(1, rng)
        taken: dict[int, tuple[float, int, int]] = {}  # a priority that changed and changed back left two entries
        while len(taken) < count:
            top = self._top()
            taken[top[2]] = top
            heapq.heappop(self._entries)
        for entry in taken.values():
            heapq.heappush(self._entries, entry)
        return np.array(list(taken)), np.ones(count)

    @property
    def mass(self) -> float:
        return float(len(self._current))

    @property
    def drawable(self) -> int:
        return len(self._current)

    def in_use(self) -> Array:
        count = len(self._current)
        places = np.fromiter(self._current, np.int64, count)
        ages = np.fromiter((age for _, age in self._current.values()), np.int64, count)
        return places[np.argsort(ages)]

    def _top(self) -> tuple[float, int, int]:
        while self._current.get(self._entries[0][2]) != self._entries[0][:2]:
            heapq.heappop(self._entries)
        return self._entries[0]

    def _put(self, place: int, priority: float, age: int) -> None:
        self._current[place] = (self._sign * priority, age)
        heapq.heappush(self._entries, (self._sign * priority, age, place))
        if len(self._entries) > 2 * len(self._current) + 64:  # mostly out of date
            self._entries = [(*key, place) for place, key in self._current.items()]
            heapq.heapify(self._entries)
