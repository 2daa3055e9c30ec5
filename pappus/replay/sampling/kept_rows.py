"""Rows that a reader keeps from batch to batch, for columns whose rows are large and drawn often, such as frames.

    chunks ──rows that the reader lacks──▶ reader's own memory, such as a GPU's
       └────numbers of all rows──────────▶ batch

A batch then holds the numbers of its rows, and the reader looks them up. Number 0 stands for zeros (padding), n + 1 for
row n. The rows that come with a batch must be stored before its numbers are looked up, in the order of the batches.
Fields of such columns may choose steps, stack and pad with 0; they must not compute.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pappus.replay.storage.chunks import Columns
from pappus.types import Array


class NewRows(NamedTuple):
    """Rows of a column that the reader lacks."""

    column: str
    numbers: Array
    """int64 `[n]`."""
    values: Array
    """`[n, …]`."""
    most: int
    """The largest number that there can be."""


@dataclass(frozen=True, eq=False)
class RowNumbers:
    """Stands in a batch for the values of a column's rows."""

    column: str
    numbers: Array
    """int64 `[…]`."""
    row_bytes: int
    """Bytes of the values of one row."""

    @property
    def nbytes(self) -> int:
        """Bytes that it takes itself."""
        return int(self.numbers.nbytes)

    @property
    def value_bytes(self) -> int:
        """Bytes that the values would take."""
        return self.numbers.size * self.row_bytes


class KeptRows:
    """What the reader has: a row is the one that it keeps as long as its chunk was not taken anew."""

    def __init__(self, columns: Iterable[str]) -> None:
        self.columns = frozenset(columns)
        self._uses: dict[str, Array] = {}
        """For each row, how often its chunk had been taken when the row was sent; -1: never sent."""
        self._new: list[NewRows] = []

    def numbers(self, chunks: Columns, column: str, rows: Array) -> Array:
        """Numbers of rows. Those that the reader lacks are copied now: the chunks are held while a batch is read."""
        length, most = chunks.layout.chunk_length, chunks.layout.rows
        if column not in self._uses:
            self._uses[column] = np.full(most, -1, np.int64)
        known, flat = self._uses[column], rows.reshape(-1)
        lacking = np.unique(flat[known[flat] != chunks.uses[flat // length]])
        if len(lacking):
            known[lacking] = chunks.uses[lacking // length]
            self._new.append(NewRows(column, lacking + 1, chunks.columns[column].take(lacking, axis=0), most))
        return rows + 1

    def take_new(self) -> tuple[NewRows, ...]:
        """The rows that go with the last batch."""
        new, self._new = tuple(self._new), []
        return new

    def forget(self) -> None:
        """Send everything anew: a batch was lost, or the chunks are those of another service."""
        self._uses, self._new = {}, []
