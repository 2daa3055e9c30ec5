"""Which item of a table is drawn next: as a sample, or to be removed.

A table numbers the places that its items occupy, 0 … capacity − 1. A selector knows places only, and works on many at a
time. Anybody can write one: derive from `RandomSelector`, write `draw`, and name it as `module:name` wherever a sampler
or a remover is chosen (examples/own_selector.py), or install it as an entry point of the group
`pappus.replay_selectors`.

Draws of items that are removed after a number of samples (`draw_at_random`) are made all at once, as if nothing were
removed; draws of items that would be gone by then are discarded. This is exact: conditioning a distribution on not
drawing some items leaves the proportions of the others. The probability of a draw that counts is its share of what was
left:

    probability = p / (1 − Σ p of the items that were removed before)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, NamedTuple, Protocol, TypeAlias

import numpy as np

from pappus.types import Array


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
        if not distinct:
            return self.draw(count, rng)
        places, probabilities = distinct_draws(count, lambda left: self.draw(left, rng), self.delete)
        self.insert(places, self.priorities[places])
        return places, probabilities

    def accepts(self, priorities: Array) -> Array:
        return np.isfinite(priorities)

    def total(self) -> tuple[float, int]:
        return float(self._count), self._count

    def in_use(self) -> Array:
        return self.places.copy()


class Draws(NamedTuple):
    """Consecutive draws, all `[n]`."""

    places: Array
    probabilities: Array
    times: Array
    """Times that each was sampled, including this one."""


def draw_at_random(places: Array, probabilities: Array, before: Array, most: int, spare: int) -> Draws:
    """Draws of items that were sampled `before` times and are removed after `most`, until over `spare` are gone."""
    times = before + _ordinal(places) + 1
    counts = times <= most
    places, probabilities, times = places[counts], probabilities[counts], times[counts]
    going = np.where(times == most, probabilities, 0.0)
    remain = 1.0 - (np.cumsum(going) - going)
    shares = probabilities / np.maximum(remain, probabilities)  # what remains may be lost in rounding
    return _until(Draws(places, shares, times), most, spare)


def distinct_draws(
    count: int, draw: Callable[[int], tuple[Array, Array]], hide: Callable[[Array], None]
) -> tuple[Array, Array]:
    """`count` different places: draw, hide what was drawn, draw the rest. All are hidden afterwards."""
    places, probabilities = [np.zeros(0, np.int64)], [np.zeros(0)]
    while count:
        drawn, likely = draw(count)
        draws = draw_at_random(drawn, likely, np.zeros(len(drawn), np.int64), 1, count)
        places.append(draws.places)
        probabilities.append(draws.probabilities)
        hide(draws.places)
        count -= len(draws.places)
    return np.concatenate(places), np.concatenate(probabilities)


def draw_in_order(places: Array, before: Array, most: int, spare: int, count: int) -> Draws:
    """The same for selectors with an order, at most `count` draws: each item until it is removed, then the next."""
    left = np.minimum(most - before, count)
    drawn, times = np.repeat(places, left)[:count], np.repeat(before, left)[:count]
    return _until(Draws(drawn, np.ones(len(drawn)), times + _ordinal(drawn) + 1), most, spare)


def _until(draws: Draws, most: int, spare: int) -> Draws:
    """The draws before which at most `spare` items were removed."""
    goes = draws.times == most
    count = int(np.count_nonzero(np.cumsum(goes) - goes <= spare))
    return Draws(*(field[:count] for field in draws))


def _ordinal(places: Array) -> Array:
    """How often each place occurred before, within these draws."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    found = np.empty(len(places), np.int64)
    found[order] = np.arange(len(places)) - np.searchsorted(ordered, ordered)
    return found
