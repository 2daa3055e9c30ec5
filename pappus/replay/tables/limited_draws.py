"""Drawing a batch from a table whose items go when they were sampled so often, as if draw by draw.

Draws are made all at once, as if nothing went; those of items that would have gone by then are passed over. This is
exact: a distribution of which some items are passed over is that of the others. A draw that counts was as likely as its
share of what was still there:

    probability = p / (1 − Σ p of the items that went before)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pappus.types import Array


class Draws(NamedTuple):
    """Draws in a row, all `[n]`."""

    places: Array
    probabilities: Array
    times: Array
    """How often each was sampled, this time included."""


def at_random(places: Array, probabilities: Array, before: Array, most: int, spare: int) -> Draws:
    """Of items that were sampled `before` so often and go after `most` times, until more than `spare` went."""
    times = before + _ordinal(places) + 1
    counts = times <= most
    places, probabilities, times = places[counts], probabilities[counts], times[counts]
    going = np.where(times == most, probabilities, 0.0)
    remain = 1.0 - (np.cumsum(going) - going)
    shares = probabilities / np.maximum(remain, probabilities)  # what remains may be lost in rounding
    return _until(Draws(places, shares, times), most, spare)


def in_turn(places: Array, before: Array, most: int, spare: int, count: int) -> Draws:
    """The same, `count` draws at most, where the next comes when the one before it went: each as often as it may."""
    left = np.minimum(most - before, count)
    drawn, times = np.repeat(places, left)[:count], np.repeat(before, left)[:count]
    return _until(Draws(drawn, np.ones(len(drawn)), times + _ordinal(drawn) + 1), most, spare)


def _until(draws: Draws, most: int, spare: int) -> Draws:
    """Those before which no more than `spare` items went."""
    goes = draws.times == most
    count = int(np.count_nonzero(np.cumsum(goes) - goes <= spare))
    return Draws(*(field[:count] for field in draws))


def _ordinal(places: Array) -> Array:
    """How often each place came before, in this row."""
    order = np.argsort(places, kind="stable")
    ordered = places[order]
    found = np.empty(len(places), np.int64)
    found[order] = np.arange(len(places)) - np.searchsorted(ordered, ordered)
    return found
