"""Items: windows over the steps of a stream, as records in arrays, and where the rows of sampled items are.

    base                        first                                  base + span
     │◀────────── lead ──────────▶│◀──────────── the item's steps ──────────▶│
     └ older steps of the episode └ column c: start[c] … start[c] + length[c] (counted from `first`)

A column that an item leaves out has length 0. The lead belongs to the item (its steps are kept as long as the item),
but only operations that look back see it, such as a stack of frames.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pappus.replay.storage.chunks import Columns
from pappus.types import Array


class Windows(NamedTuple):
    """The rows of n items."""

    base: Array
    """int64 `[n]`: first row of the window, lead included."""
    lead: Array
    """int32 `[n]`: rows before the item's own."""
    span: Array
    """int32 `[n]`: rows of the window, lead included."""
    start: Array
    """int32 `[n, columns]`: first row of a column, counted from the end of the lead."""
    length: Array
    """int32 `[n, columns]`: rows of a column."""

    @property
    def num_items(self) -> int:
        return len(self.base)

    def pick(self, which: Array | slice) -> Windows:
        """The windows of some items."""
        if isinstance(which, slice):
            return Windows(*(field[which] for field in self))
        return Windows(*(field.take(which, axis=0) for field in self))

    def put(self, places: Array, windows: Windows) -> None:
        """Overwrite the windows at some places."""
        for into, field in zip(self, windows, strict=True):
            into[places] = field

    @staticmethod
    def empty(count: int, columns: int) -> Windows:
        """Windows of `count` items, all zeros."""
        return Windows(
            np.zeros(count, np.int64), np.zeros(count, np.int32), np.zeros(count, np.int32),
            np.zeros((count, columns), np.int32), np.zeros((count, columns), np.int32),
        )


class Drawn(NamedTuple):
    """n sampled items of one table."""

    keys: Array
    """int64 `[n]`: keys of the items; a key is never used twice."""
    probabilities: Array
    """float64 `[n]`: probability of each draw at the time."""
    priorities: Array
    """float64 `[n]`."""
    times_sampled: Array
    """int32 `[n]`: including this time."""
    ages: Array
    """int64 `[n]`: items inserted into the table since then."""
    table_size: int
    """Items in the table at the time."""
    mass: float
    """Total weight of all items of the table (`Selector.total`)."""
    windows: Windows


def joined(parts: list[Drawn]) -> Drawn:
    """Several draws from one table as one."""
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


class Batch(NamedTuple):
    """Sampled items: arrays by field name, what was drawn with which probability, and the dimensions of each field."""

    data: dict[str, Array]
    info: Drawn
    dims: dict[str, tuple[str, ...]]

    @property
    def keys(self) -> Array:
        return self.info.keys

    def weights(self, beta: float) -> Array:
        """Importance weights (size · probability)^−β, the largest of which is 1 (Schaul et al. 2015)."""
        weights = (self.info.table_size * self.info.probabilities) ** -beta
        scaled: Array = (weights / weights.max()).astype(np.float32)
        return scaled


class ChunkSource:
    """Rows in the chunks themselves."""

    def __init__(self, chunks: Columns) -> None:
        self._chunks = chunks
        self.columns = chunks.columns

    def rows_of(self, column: str, windows: Windows, positions: Array) -> Array:
        return self._chunks.locate(windows.base, positions)

    def uncopied(self, column: str, rows: Array) -> Array | None:
        return None


class PackedSource:
    """Columns that were copied for these items (`sent_rows`); the others are in the chunks, if there are any.

    The copies belong to the batch: a field that needs them unchanged makes no further copy.
    """

    def __init__(
        self, packed: Mapping[str, Array], windows: Windows, names: Sequence[str], lead: int,
        chunks: ChunkSource | None = None,
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
        first, count = sent_rows(windows, index, lead)
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
        values = self.columns[column]
        if column not in self._first or rows.size != len(values) or not rows.size or not values.flags.writeable:
            return None
        if rows.flat[0] != 0 or not (np.diff(rows.reshape(-1)) == 1).all():
            return None
        return values.reshape(*rows.shape, *values.shape[1:])


def slices_of(windows: Windows, column: int) -> tuple[bytes, bytes]:
    """A key that is equal for columns with the same slices in all items."""
    return windows.start[:, column].tobytes(), windows.length[:, column].tobytes()


def sent_rows(windows: Windows, column: int, lead: int) -> tuple[Array, Array]:
    """For each item, the first position and the number of rows of a column, with up to `lead` earlier rows."""
    begin = windows.lead + windows.start[:, column]
    back = np.minimum(begin, lead)
    return begin - back, np.where(windows.length[:, column] > 0, windows.length[:, column] + back, 0)


def rows_to_send(chunks: Columns, windows: Windows, column: int, lead: int) -> Array:
    """The rows of all items, one item after another."""
    first, count = sent_rows(windows, column, lead)
    positions = first[:, None] + np.arange(int(count.max(initial=0)))
    rows = chunks.locate(windows.base, np.minimum(positions, (windows.span - 1)[:, None]))
    sent: Array = rows[np.arange(rows.shape[1]) < count[:, None]]
    return sent
