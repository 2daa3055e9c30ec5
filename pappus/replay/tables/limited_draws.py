"""Drawing a batch from a table whose items are removed after a number of samples, as if draw by draw.

All draws are made at once, as if nothing were removed; draws of items that would be gone by then are discarded. This is
exact: conditioning a distribution on not drawing some items leaves the proportions of the others. The probability of a
draw that counts is its share of what was left:

    probability = p / (1 − Σ p of the items that were removed before)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pappus.types import Array


class Draws(NamedTuple):
    """Consecutive draws, all `[n]`."""

    places: Array
    probabilities: Array
    times: Array
    """Times that each was sampled, including this one."""


def at_random(places: Array, probabilities: Array, before: Array, most: int, spare: int) -> Draws:
    """Draws of items that were sampled `before` times and are removed after `most`, until over `spare` are gone."""
    times = before + _ordinal(places) + 1
    counts = times <= most
    places, probabilities, times = places[counts], probabilities[counts], times[counts]
    going = np.where(times == most, probabilities, 0.0)
    remain = 1.0 - (np.cumsum(going) - going)
    shares = probabilities / np.maximum(remain, probabilities)  # what remains may be lost in rounding
    return _until(Draws(places, shares, times), most, spare)


def in_turn(places: Array, before: Array, most: int, spare: int, count: int) -> Draws:
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
