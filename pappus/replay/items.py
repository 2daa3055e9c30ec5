"""Items: windows over the steps of a stream, as records in arrays, many at a time.

    base                        first                                  base + span
     │◀────────── lead ──────────▶│◀──────────── the item's steps ──────────▶│
     └ older steps of the episode └ column c: start[c] … start[c] + length[c] (counted from `first`)

A column that an item leaves out has length 0. The lead belongs to the item (its steps stay as long as it does), but is
seen only by what looks back, such as a stack of frames.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pappus.types import Array


class Windows(NamedTuple):
    """Where the steps of n items lie."""

    base: Array
    """int64 `[n]`: the row at which a window begins, lead included."""
    lead: Array
    """int32 `[n]`: steps before the item's own."""
    span: Array
    """int32 `[n]`: rows of the window, lead included."""
    start: Array
    """int32 `[n, columns]`: where a column begins, counted from the end of the lead."""
    length: Array
    """int32 `[n, columns]`."""

    @property
    def num_items(self) -> int:
        return len(self.base)

    def pick(self, which: Array | slice) -> Windows:
        """Some of them."""
        if isinstance(which, slice):
            return Windows(*(field[which] for field in self))
        return Windows(*(field.take(which, axis=0) for field in self))

    def put(self, places: Array, windows: Windows) -> None:
        """Overwrite some of them."""
        for into, field in zip(self, windows, strict=True):
            into[places] = field

    @staticmethod
    def empty(count: int, columns: int) -> Windows:
        """Records to be written."""
        return Windows(
            np.zeros(count, np.int64), np.zeros(count, np.int32), np.zeros(count, np.int32),
            np.zeros((count, columns), np.int32), np.zeros((count, columns), np.int32),
        )


class Drawn(NamedTuple):
    """What was sampled: n items of one table."""

    keys: Array
    """int64 `[n]`: names of the items, never used twice."""
    probabilities: Array
    """float64 `[n]`: how likely each draw was, when it was made."""
    priorities: Array
    """float64 `[n]`."""
    times_sampled: Array
    """int32 `[n]`: this time included."""
    ages: Array
    """int64 `[n]`: items inserted since."""
    table_size: int
    """Items in the table at the time."""
    mass: float
    """The sum of what all its items are drawn in proportion to."""
    windows: Windows


def joined(parts: list[Drawn]) -> Drawn:
    """Several draws of a table as one."""
    if len(parts) == 1:
        return parts[0]
    windows = Windows(*(np.concatenate(fields) for fields in zip(*(part.windows for part in parts), strict=True)))
    last = parts[-1]
    return last._replace(
        keys=np.concatenate([part.keys for part in parts]),
        probabilities=np.concatenate([part.probabilities for part in parts]),
        priorities=np.concatenate([part.priorities for part in parts]),
        times_sampled=np.concatenate([part.times_sampled for part in parts]),
        ages=np.concatenate([part.ages for part in parts]),
        windows=windows,
    )
