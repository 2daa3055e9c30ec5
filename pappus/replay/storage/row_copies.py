"""Copies of the rows of sampled items, for columns that cannot be read in place: compressed or on another machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pappus.replay.storage.chunks import Columns, Windows
from pappus.types import Array


class RowCopies:
    """Columns that were copied for these items (`rows_to_copy`); the others are in the chunks, if there are any.

    The copies belong to the batch: a field that needs them unchanged makes no further copy.
    """

    def __init__(
        self, packed: Mapping[str, Array], windows: Windows, names: Sequence[str], lead: int,
        chunks: Columns | None = None,
    ) -> None:
        self._chunks = chunks
        self.columns: dict[str, Array] = {} if chunks is None else dict(chunks.columns)
        self._offset: dict[str, Array] = {}
        self._first: dict[str, Array] = {}
        self._last: dict[str, Array] = {}
        alike: dict[tuple[bytes, bytes], str] = {}
        for index, name in enumerate(names):
            if name in packed:
                self.columns[name] = packed[name]
                self._place(name, alike.setdefault(slices_of(windows, index), name), windows, index, lead)
            elif chunks is None:
                self.columns[name] = np.zeros(0)

    def _place(self, name: str, like: str, windows: Windows, index: int, lead: int) -> None:
        """Note where the rows of a column are; columns with the same slices share one layout."""
        if like != name:
            for of in (self._first, self._last, self._offset):
                of[name] = of[like]
            return
        first, count = copied_rows(windows, index, lead)
        self._first[name], self._last[name] = first, first + np.maximum(count, 1) - 1
        self._offset[name] = np.cumsum(count) - count - first

    def rows_of(self, column: str, windows: Windows, positions: Array) -> Array:
        if column not in self._first:
            assert self._chunks is not None
            return self._chunks.rows_of(column, windows, positions)
        shape = (-1, *[1] * (positions.ndim - 1))
        first, last, offset = (
            of[column].reshape(shape) for of in (self._first, self._last, self._offset)
        )
        rows: Array = np.clip(positions, first, last) + offset
        return rows

    def uncopied(self, column: str, rows: Array) -> Array | None:
        """`columns[column][rows]` without a copy, if that is possible."""
        values = self.columns[column]
        if column not in self._first or rows.size != len(values) or not rows.size or not values.flags.writeable:
            return None
        if rows.flat[0] != 0 or not (np.diff(rows.reshape(-1)) == 1).all():
            return None
        return values.reshape(*rows.shape, *values.shape[1:])


def slices_of(windows: Windows, column: int) -> tuple[bytes, bytes]:
    """A key that is equal for columns with the same slices in all items."""
    return windows.start[:, column].tobytes(), windows.length[:, column].tobytes()


def copied_rows(windows: Windows, column: int, lead: int) -> tuple[Array, Array]:
    """For each item, the first position and the number of rows of a column, with up to `lead` earlier rows."""
    begin = windows.lead + windows.start[:, column]
    back = np.minimum(begin, lead)
    return begin - back, np.where(windows.length[:, column] > 0, windows.length[:, column] + back, 0)


def rows_to_copy(chunks: Columns, windows: Windows, column: int, lead: int) -> Array:
    """The rows of all items, one item after another."""
    first, count = copied_rows(windows, column, lead)
    positions = first[:, None] + np.arange(int(count.max(initial=0)))
    rows = chunks.locate(windows.base, np.minimum(positions, (windows.span - 1)[:, None]))
    sent: Array = rows[np.arange(rows.shape[1]) < count[:, None]]
    return sent
