"""Which values items may hold. What clients of other processes insert is looked at before it is in a table.

An item is judged by the rows that it covers, in every column with limits: all at once, by their lowest and highest
value. Only if one of these lies outside is it found out which items it belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pappus.errors import UserError
from pappus.replay.storage.chunks import Columns, Windows
from pappus.replay.storage.row_copies import copied_rows, rows_to_copy, slices_of
from pappus.types import Array, ArraySpec


class Limits(NamedTuple):
    """The lowest and the highest value of a column; infinite: any finite number. NaN and infinities lie outside."""

    low: float = -np.inf
    high: float = np.inf

    def check(self, name: str, spec: ArraySpec) -> None:
        """Raise `UserError` for limits that no value of the column could keep."""
        if spec.dtype == "bool" or not self.low <= self.high:
            raise UserError(f"column {name!r}: low={self.low:g} and high={self.high:g} leave no value of {spec.dtype}")

    def admit(self, values: Array) -> bool:
        if self == FINITE:
            return bool(np.isfinite(values).all())
        if not values.size:
            return True
        low, high = self._of(values.dtype)
        return bool(values.min() >= low and values.max() <= high)  # NaN is neither

    def outside(self, values: Array) -> Array:
        """The values that lie outside, as a mask."""
        low, high = self._of(values.dtype)
        return ~((values >= low) & (values <= high))

    def _of(self, dtype: np.dtype[Any]) -> tuple[float, float]:
        if dtype.kind != "f":
            return self.low, self.high
        largest = float(np.finfo(dtype).max)
        return max(self.low, -largest), min(self.high, largest)

    def __str__(self) -> str:
        if np.isinf(self.low) and np.isinf(self.high):
            return "only finite numbers are allowed"
        return f"from {self.low:g} to {self.high:g} is allowed"


FINITE = Limits()


class Judged(NamedTuple):
    """Which items may be inserted, and what is wrong with the first of the others; empty if there are none."""

    good: Array
    complaint: str


ADMITTED = Judged(np.ones(0, bool), "")
"""What is said of items that nobody looks at."""


def judge(limits: Mapping[str, Limits], columns: Columns, windows: Windows, lead: int) -> Judged:
    """Look at all rows that items cover; up to `lead` rows before them belong to them, too."""
    good, complaint, names = np.ones(windows.num_items, bool), "", list(columns.layout.signature)
    alike: dict[tuple[bytes, bytes], Array] = {}
    for name, limit in limits.items():
        index = names.index(name)
        slices = slices_of(windows, index)
        if slices not in alike:
            alike[slices] = rows_to_copy(columns, windows, index, lead)
        values = columns.columns[name].take(alike[slices], axis=0)
        if not limit.admit(values):
            outside = limit.outside(values)
            complaint = complaint or f"column {name!r} holds {values[outside][0]:g}, and {limit}"
            rows: Array = outside.reshape(len(values), -1).max(axis=1)
            good &= ~_of_items(rows, windows, index, lead)
    return Judged(good, complaint)


def _of_items(rows: Array, windows: Windows, column: int, lead: int) -> Array:
    """Whether a row of each item is marked."""
    counts: Sequence[int] = copied_rows(windows, column, lead)[1].tolist()
    items = np.repeat(np.arange(windows.num_items), counts)
    marked: Array = np.bincount(items[rows], minlength=windows.num_items) > 0
    return marked
