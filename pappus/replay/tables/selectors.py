"""Which item of a table is drawn next: as a sample, or to be removed.

A table numbers the places that its items occupy, 0 … capacity − 1. A selector knows places only, and works on many at a
time. Anybody can write one: derive from `RandomSelector`, write `draw`, and name it as `module:name` wherever a sampler
or a remover is chosen (examples/own_selector.py), or install it as an entry point of the group
`pappus.replay_selectors`.
"""

from __future__ import annotations

import heapq
import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import ClassVar, Protocol, TypeAlias

import numpy as np

from pappus.errors import UserError, closest
from pappus.replay.tables.limited_draws import at_random
from pappus.replay.tables.prioritized import Prioritized
from pappus.types import Array

GROUP = "pappus.replay_selectors"
"""Entry points of this group are selectors by name."""


class Selector(Protocol):
    """A rule that chooses among the places in use. `places` and `priorities` are arrays `[n]`, int64 and float64."""

    @property
    def random(self) -> bool:
        """Whether draws are independent of each other. Otherwise every draw is the first place of an order, and the
        next place comes only after that one was deleted."""

    @property
    def oldest_first(self) -> bool:
        """Whether distinct draws come in the order of insertion. A table then removes many items at once."""

    def insert(self, places: Array, priorities: Array) -> None:
        """Places come into use."""

    def update(self, places: Array, priorities: Array) -> None:
        """Priorities change; if a place occurs twice, its last priority counts."""

    def delete(self, places: Array) -> None:
        """Places are no longer in use."""

    def sample(self, count: int, rng: np.random.Generator, distinct: bool = False) -> tuple[Array, Array]:
        """Draw places `[count]`, and the probability of each draw `[count]`. At least one place is in use.

        With `distinct`, each place is drawn as if those before it had been deleted; nothing is deleted by that.
        """

    def accepts(self, priorities: Array) -> Array:
        """Which priorities are legal, `[n]` bool. Illegal ones are refused before anything changes."""

    def total(self) -> tuple[float, int]:
        """The weight of all places (a place's probability is its share of it), and how many can be drawn."""

    def in_use(self) -> Array:
        """All places in use, in an order in which inserting them again restores the selector (for checkpoints)."""


SelectorFactory: TypeAlias = Callable[[int, float], Selector]
"""(capacity, α) → selector. α is the exponent of priorities; rules without priorities ignore it."""


class RandomSelector(ABC):
    """Base of selectors with independent draws: keeps the places and priorities; a subclass writes `draw`."""

    random: ClassVar[bool] = True
    oldest_first: ClassVar[bool] = False

    def __init__(self, capacity: int, alpha: float = 1.0) -> None:
        self.alpha = alpha
        self.priorities = np.zeros(capacity)
        """By place."""
        self._used = np.zeros(capacity, np.int64)
        """The places in use come first, in no particular order."""
        self._position = np.full(capacity, -1, np.int64)
        """Where in `_used` a place stands."""
        self._count = 0

    @abstractmethod
    def draw(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Draw `count` of `self.places` with replacement; the places `[count]` and their probabilities `[count]`.

        Every place in use must have a probability above 0.
        """

    @property
    def places(self) -> Array:
        """The places in use."""
        return self._used[: self._count]

    def insert(self, places: Array, priorities: Array) -> None:
        row = np.arange(self._count, self._count + len(places))
        self._used[row], self._position[places] = places, row
        self._count += len(places)
        self.priorities[places] = priorities

    def update(self, places: Array, priorities: Array) -> None:
        self.priorities[places] = priorities

    def delete(self, places: Array) -> None:
        holes = self._position[places]
        self._position[places] = -1
        left = self._count - len(places)
        last = self._used[left : self._count]
        moved, holes = last[self._position[last] >= 0], holes[holes < left]  # the last ones fill the holes
        self._used[holes], self._position[moved] = moved, holes
        self._count = left

    def sample(self, count: int, rng: np.random.Generator, distinct: bool = False) -> tuple[Array, Array]:
        return self._distinct(count, rng) if distinct else self.draw(count, rng)

    def _distinct(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        """Draw, delete what was drawn, draw the rest; then insert all again."""
        places, probabilities = np.empty(count, np.int64), np.empty(count)
        done = 0
        while done < count:
            drawn, likely = self.draw(count - done, rng)
            draws = at_random(drawn, likely, np.zeros(len(drawn), np.int64), 1, count)
            new = slice(done, done + len(draws.places))
            places[new], probabilities[new] = draws.places, draws.probabilities
            self.delete(draws.places)
            done = new.stop
        self.insert(places, self.priorities[places])
        return places, probabilities

    def accepts(self, priorities: Array) -> Array:
        return np.isfinite(priorities)

    def total(self) -> tuple[float, int]:
        return float(self._count), self._count

    def in_use(self) -> Array:
        return self.places.copy()


class Uniform(RandomSelector):
    """All places have the same probability."""

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        places: Array = self._used[rng.integers(0, self._count, count)]
        return places, np.full(count, 1.0 / self._count)

    def _distinct(self, count: int, rng: np.random.Generator) -> tuple[Array, Array]:
        places: Array = self._used[rng.choice(self._count, count, replace=False)]
        return places, 1.0 / np.arange(self._count, self._count - count, -1)


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
        for place, priority in zip(places.tolist(), np.asarray(priorities, np.float64).tolist(), strict=True):
            self._age += 1
            self._put(place, priority, self._age)

    def update(self, places: Array, priorities: Array) -> None:
        for place, priority in zip(places.tolist(), np.asarray(priorities, np.float64).tolist(), strict=True):
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


BUILT_IN: dict[str, SelectorFactory] = {
    "uniform": Uniform, "prioritized": Prioritized, "fifo": Fifo, "lifo": Lifo, "min_heap": MinHeap,
    "max_heap": MaxHeap,
}


def find_selector(name: str) -> SelectorFactory:
    """The selector of a name: a built-in one, an installed entry point, or `module:name`."""
    if name in BUILT_IN:
        return BUILT_IN[name]
    installed = {entry.name: entry for entry in entry_points(group=GROUP)}
    module, colon, attribute = name.partition(":")
    try:
        if name in installed:
            found = installed[name].load()
        elif colon:
            found = getattr(importlib.import_module(module), attribute)
        else:
            names = [*BUILT_IN, *installed]
            near = closest(name, names)
            raise UserError(
                f"no selector is called {name!r}{near}; use {', '.join(names)}, or your own as module:name"
            )
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"selector {name!r} cannot be imported ({error}); write module:name") from None
    if not callable(found):
        raise UserError(f"selector {name!r} is {found!r:.60}; it must be a class or a function (capacity, alpha)")
    factory: SelectorFactory = found
    return factory
