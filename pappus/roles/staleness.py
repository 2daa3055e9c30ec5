"""How old the priorities are by which items are drawn."""

from __future__ import annotations

import numpy as np

from pappus.types import Array


class Staleness:
    """When each item's priority was written last, as far as this learner wrote it.

    A key encodes the place of its item in a table of `capacity` (docs/concepts/replay.md), so two numbers per place
    are enough.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._keys = np.full(capacity, -1, np.int64)
        self._updates = np.zeros(capacity, np.int64)

    def of(self, keys: Array, update: int) -> tuple[float | None, float]:
        """Updates since the priorities of drawn items were written, on average, and the share that never were.

        The latter have the priority that their actor gave them; None if all have.
        """
        places = keys % self._capacity
        written = self._keys[places] == keys
        if not written.any():
            return None, 1.0
        return float(np.mean(update - self._updates[places[written]])), float(1 - written.mean())

    def written(self, keys: Array, update: int) -> None:
        """New priorities are on their way."""
        places = keys % self._capacity
        self._keys[places], self._updates[places] = keys, update
