"""Selectors by lowest and highest priority, for priority queues."""

from __future__ import annotations

import heapq
from typing import ClassVar

import numpy as np

from pappus.types import Array


class MinHeap:
    """The place of the lowest priority; among equal ones the oldest."""

    random: ClassVar[bool] = False
    oldest_first: ClassVar[bool] = False
    _sign: ClassVar[float] = 1.0

    def __init__(self, capacity: int, alpha: float = 1.0) -> None:
        self._entries: list[tuple[float, int, int]] = []
        """(signed priority, age, place); outdated entries stay until they reach the top."""
        self._current: dict[int, tuple[float, int]] = {}
        self._age = 0

    def insert(self, places: Array, priorities: Array) -> None:
        for place, priority in zip(places.tolist(), priorities.tolist(), strict=True):
            self._age += 1
            self._put(place, priority, self._age)

    def update(self, places: Array, priorities: Array) -> None:
        for place, priority in zip(places.tolist(), priorities.tolist(), strict=True):
            self._put(place, priority, self._current[place][1])

    def delete(self, places: Array) -> None:
        for place in places.tolist():
            del self._current[place]

    def sample(self, count: int, rng: np.random.Generator, distinct: bool = False) -> tuple[Array, Array]:
        if not distinct or count == 1:
            return np.full(count, self._top()[2]), np.ones(count)
        taken: dict[int, tuple[float, int, int]] = {}  # a priority that changed and changed back left two entries
        while len(taken) < count:
            top = self._top()
            taken[top[2]] = top
            heapq.heappop(self._entries)
        for entry in taken.values():
            heapq.heappush(self._entries, entry)
        return np.array(list(taken)), np.ones(count)

    def accepts(self, priorities: Array) -> Array:
        return np.isfinite(priorities)

    def total(self) -> tuple[float, int]:
        return float(len(self._current)), len(self._current)

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
        if len(self._entries) > 2 * len(self._current) + 64:  # mostly outdated
            self._entries = [(*key, place) for place, key in self._current.items()]
            heapq.heapify(self._entries)


class MaxHeap(MinHeap):
    """The place of the highest priority; among equal ones the oldest."""

    _sign: ClassVar[float] = -1.0
