"""Fetching the steps that fields choose: first their rows are worked out, then each column is gathered once."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from pappus.errors import UserError, closest
from pappus.replay.gathering import Copies
from pappus.replay.items import Windows
from pappus.replay.recycling import Recycler
from pappus.replay.step_selection import Rows, Values
from pappus.types import Array


class Source(Protocol):
    """Where rows are: the chunks themselves, or what came of them over a wire."""

    columns: dict[str, Array]

    def rows_of(self, column: str, windows: Windows, positions: Array) -> Array:
        """The rows in `columns[column]` of positions `[n, …]`, counted from each window's base."""

    def uncopied(self, column: str, rows: Array) -> Array | None:
        """`columns[column][rows]` without a copy, where that is possible and nobody else's."""


class Context:
    """One batch: its items and where their steps are."""

    def __init__(self, windows: Windows, source: Source, lead: int, recycler: Recycler) -> None:
        self.windows, self.source, self.lead, self._recycler = windows, source, lead, recycler
        self._order = {name: i for i, name in enumerate(source.columns)}
        self._begun: dict[str, Rows] = {}
        self._copies = Copies()

    def begin(self, column: str) -> Rows:
        """All steps of a column."""
        if column not in self._begun:
            self._begun[column] = self._begin(column)
        return self._begun[column]

    def _begin(self, column: str) -> Rows:
        if column not in self._order:
            names = list(self._order)
            raise UserError(f"there is no column {column!r}{closest(column, names)}; there are {', '.join(names)}")
        windows, index = self.windows, self._order[column]
        first, lengths = windows.lead + windows.start[:, index], windows.length[:, index]
        if not lengths.all():
            raise UserError(f"column {column!r} was left out when the items were made; give a slice of it there")
        positions = first[:, None] + np.arange(lengths.max(initial=0), dtype=np.int64)
        return Rows(column, positions, lengths, ("batch", "time"), positions)

    def beside(self, column: str, steps: Array, lengths: Array) -> Array:
        """`[batch, time]` of another column at the same steps; it may lack each item's last, which is not used."""
        rows = self.begin(column)
        if np.array_equal(rows.positions, steps) and np.array_equal(rows.lengths, lengths):
            return self.fetch(rows).array
        first = rows.positions[:, :1]
        needed = np.arange(steps.shape[1]) < lengths[:, None] - 1
        outside = (steps < first) | (steps >= first + rows.lengths[:, None])
        if (needed & outside).any():
            raise UserError(f"column {column!r} of an item does not cover the steps that are summed; lengthen it")
        within = np.minimum(np.maximum(steps, first), first + rows.lengths[:, None] - 1)
        return self.fetch(Rows(column, within, lengths, ("batch", "time"), within)).array

    def fetch(self, rows: Rows, pad: float = 0) -> Values:
        """The numbers. Beyond an item's end there is `pad`."""
        fetched = self.fetch_later(rows)
        if fetched.array.ndim > rows.positions.ndim:  # single numbers are there at once
            self.complete()
        fetched.clear(pad)
        return fetched

    def fetch_later(self, rows: Rows) -> Values:
        """The numbers, as soon as `complete` was called; beyond an item's end there is anything."""
        values, windows = self.source.columns[rows.column], self.windows
        last = (windows.span - 1).reshape(-1, *[1] * (rows.positions.ndim - 1))
        where = self.source.rows_of(rows.column, windows, np.minimum(rows.positions, last))
        dims = (*rows.dims, *(f"d{i}" for i in range(values.ndim - 1)))
        array = self.source.uncopied(rows.column, where)
        return Values(self._take(values, where) if array is None else array, rows.lengths, dims, rows.steps)

    def complete(self) -> None:
        """Wait for all that is still being copied."""
        self._copies.complete()

    def _take(self, values: Array, rows: Array) -> Array:
        if values.ndim == 1 or not math.prod(values.shape[1:]) or not rows.size:
            return values[rows]
        out = self._recycler.empty((*rows.shape, *values.shape[1:]), values.dtype)
        self._copies.gather(values, rows, out)
        return out
