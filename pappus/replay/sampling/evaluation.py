"""Evaluation of fields for one batch: first their rows are computed, then each column is gathered once.

    Rows      steps that were selected, as positions in their items
    Values    the same steps, fetched
    Context   one batch; turns Rows into Values, with Copies (threads for large copies) and a Recycler (arrays)
"""

from __future__ import annotations

import itertools
import math
import os
import sys
import threading
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from pappus.errors import UserError, closest
from pappus.replay.sampling.kept_rows import KeptRows
from pappus.replay.storage.chunks import Columns, Windows, refuse_unknown
from pappus.replay.storage.row_copies import RowCopies
from pappus.telemetry.processes import usable_cores
from pappus.types import Array

WORTH_A_THREAD = 4 << 20
"""Bytes; a smaller copy is done before another thread wakes up."""
MOST_THREADS = 4
"""More do not help: memory bandwidth is the limit."""
_pool: ThreadPoolExecutor | None = None
SMALLEST = 1 << 18
"""Bytes; smaller arrays come from memory that the process keeps anyway."""
KEPT = 8
"""Maximum number of arrays to keep."""


@dataclass(frozen=True)
class Rows:
    """Steps that were selected but not fetched."""

    array: Array
    """Positions of the rows in their items, `[batch, (time,) …]`."""
    lengths: Array
    """Real steps of each item, if there is a time dimension."""
    dims: tuple[str, ...]
    steps: Array
    """`[batch, time]`: positions of the steps, without what is stacked on them."""
    column: str


@dataclass(frozen=True)
class Values:
    """Fetched values, with the names of their dimensions; `lengths` and `steps` are those of `Rows`."""

    array: Array
    lengths: Array
    dims: tuple[str, ...]
    steps: Array
    pad: float = 0
    """Value beyond an item's end."""

    def axis(self, dim: str) -> int:
        if dim not in self.dims:
            near = closest(dim, list(self.dims))
            raise UserError(f"there is no dimension {dim!r} here, only {', '.join(self.dims)}{near}")
        return self.dims.index(dim)

    def real(self) -> Array | None:
        """Which steps are real, in a shape that broadcasts to the array; None if all are."""
        if "time" not in self.dims or not len(self.lengths):
            return None
        batch, time = self.dims.index("batch"), self.dims.index("time")
        steps = self.array.shape[time]
        if self.lengths.min() >= steps:
            return None
        shape = [1] * self.array.ndim
        shape[batch], shape[time] = len(self.lengths), steps
        real = np.arange(steps) < self.lengths[:, None]
        return (real if batch < time else real.T).reshape(shape)

    def clear(self, pad: float = 0) -> None:
        """Write `pad` beyond each item's end. The array must not be shared."""
        real = self.real()
        if real is not None:
            np.copyto(self.array, np.asarray(pad).astype(self.array.dtype), where=~real)

    def cleared(self) -> Values:
        """A copy with padding beyond each item's end."""
        real = self.real()
        if real is None:
            return self
        return self.holding(np.where(real, self.array, np.asarray(self.pad).astype(self.array.dtype)))

    def holding(self, array: Array) -> Values:
        return Values(array, self.lengths, self.dims, self.steps, self.pad)

    def without(self, dim: str, array: Array) -> Values:
        return Values(array, self.lengths, tuple(d for d in self.dims if d != dim), self.steps)


def step_of(found: Rows | Values, index: int) -> Rows | Values:
    """One step of each item; the nearest one of an item that is shorter."""
    front = found.array
    if found.dims[:2] != ("batch", "time"):
        front = np.moveaxis(front, (found.dims.index("batch"), found.dims.index("time")), (0, 1))
    if index == 0 and front.shape[1] and isinstance(found, Rows):
        chosen = front[:, 0]
    else:
        last = np.maximum(found.lengths - 1, 0)
        at = np.maximum(found.lengths + index, 0) if index < 0 else np.minimum(index, last)
        chosen = front[np.arange(len(at)), at]
    dims = ("batch", *(dim for dim in found.dims if dim not in ("batch", "time")))
    if isinstance(found, Rows):
        return Rows(chosen, found.lengths, dims, found.steps, found.column)
    return Values(chosen, found.lengths, dims, found.steps)


def steps_of(found: Rows | Values, key: slice) -> Rows | Values:
    """A slice of each item's steps, aligned at the beginning."""
    begin = _counted(key.start or 0, found.lengths)
    end = found.lengths if key.stop is None else _counted(key.stop, found.lengths)
    lengths = np.maximum(end, begin) - begin
    batch, time = found.dims.index("batch"), found.dims.index("time")
    front = np.moveaxis(found.array, (batch, time), (0, 1))
    wanted = begin[:, None] + np.arange(int(lengths.max(initial=0)))
    at = np.minimum(wanted, max(front.shape[1] - 1, 0))
    chosen = np.moveaxis(front[np.arange(len(at))[:, None], at], (0, 1), (batch, time))
    kept = np.take_along_axis(found.steps, np.minimum(wanted, max(found.steps.shape[1] - 1, 0)), axis=1)
    sliced = replace(found, array=chosen, lengths=lengths, steps=kept)
    return sliced.cleared() if isinstance(sliced, Values) else sliced


def _counted(index: int, lengths: Array) -> Array:
    """An index of a slice, from the beginning of each item."""
    return np.clip(np.where(index < 0, lengths + index, index), 0, lengths)


Source: TypeAlias = Columns | RowCopies
"""Where rows are: in the chunks, or in copies of them."""


class Context:
    """The evaluation of one batch: its items, where their steps are, and the copies in progress."""

    def __init__(
        self, windows: Windows, source: Source, lead: int, recycler: Recycler, kept: KeptRows | None = None
    ) -> None:
        """Of the columns in `kept`, values are numbers of rows, where rows lie in chunks."""
        self.windows, self.source, self.lead, self._recycler = windows, source, lead, recycler
        self._kept = kept
        self._order = {name: i for i, name in enumerate(source.columns)}
        self._begun: dict[str, Rows] = {}
        self._copies = Copies()
        self.complete = self._copies.complete

    def begin(self, column: str) -> Rows:
        """All steps of a column."""
        if column in self._begun:
            return self._begun[column]
        refuse_unknown("column", column, self._order)
        windows, index = self.windows, self._order[column]
        first, lengths = windows.lead + windows.start[:, index], windows.length[:, index]
        if not lengths.all():
            raise UserError(f"column {column!r} was left out when the items were made; give a slice of it there")
        positions = first[:, None] + np.arange(lengths.max(initial=0), dtype=np.int64)
        self._begun[column] = Rows(positions, lengths, ("batch", "time"), positions, column)
        return self._begun[column]

    def beside(self, column: str, steps: Array, lengths: Array) -> Array:
        """`[batch, time]` of another column at the same steps. Each item's last step is not used and may be missing."""
        rows = self.begin(column)
        if np.array_equal(rows.array, steps) and np.array_equal(rows.lengths, lengths):
            return self.fetch(rows).array
        first = rows.array[:, :1]
        needed = np.arange(steps.shape[1]) < lengths[:, None] - 1
        outside = (steps < first) | (steps >= first + rows.lengths[:, None])
        if (needed & outside).any():
            raise UserError(f"column {column!r} of an item does not cover the steps that are summed; lengthen it")
        within = np.minimum(np.maximum(steps, first), first + rows.lengths[:, None] - 1)
        return self.fetch(Rows(within, lengths, ("batch", "time"), within, column)).array

    def fetch(self, rows: Rows, pad: float = 0) -> Values:
        """The values, with `pad` beyond each item's end."""
        fetched = self.fetch_later(rows)
        if fetched.array.ndim > rows.array.ndim:  # single numbers are there at once
            self.complete()
        fetched.clear(pad)
        return fetched

    def fetch_later(self, rows: Rows) -> Values:
        """The values, filled in by the time `complete` returns; anything may stand beyond an item's end."""
        windows = self.windows
        last = (windows.span - 1).reshape(-1, *[1] * (rows.array.ndim - 1))
        where = self.source.rows_of(rows.column, windows, np.minimum(rows.array, last))
        array = self.source.uncopied(rows.column, where)
        array = self.take(rows.column, where) if array is None else array
        dims = (*rows.dims, *(f"d{i}" for i in range(array.ndim - where.ndim)))
        return Values(array, rows.lengths, dims, rows.steps)

    def take(self, column: str, rows: Array) -> Array:
        """`columns[column][rows]`, filled in by the time `complete` returns."""
        if self._kept is not None and column in self._kept.columns and isinstance(self.source, Columns):
            return self._kept.numbers(self.source, column, rows)
        values = self.source.columns[column]
        if values.ndim == 1 or not math.prod(values.shape[1:]) or not rows.size:
            return values[rows]
        out = self._recycler.empty((*rows.shape, *values.shape[1:]), values.dtype)
        self._copies.gather(values, rows, out)
        return out


class Copies:
    """Copies in progress. Large ones are split into blocks for a thread pool; `complete` helps with the rest."""

    def __init__(self) -> None:
        self._blocks: deque[tuple[Array, Array, Array]] = deque()
        self._helpers: list[Future[None]] = []

    def gather(self, values: Array, rows: Array, out: Array) -> None:
        """`out[...] = values[rows]`, much faster than NumPy's indexing for long rows.

        It is done when `complete` has returned.
        """
        width = math.prod(values.shape[1:])
        source, into = values.reshape(len(values), width), out.reshape(rows.size, width)
        flat = rows.reshape(-1)
        parts = out.nbytes // WORTH_A_THREAD
        threads = min(MOST_THREADS, usable_cores()) if parts > 1 else 1
        if threads == 1:
            _copy(source, flat, into)
            return
        bounds = [len(flat) * i // parts for i in range(parts + 1)]
        self._blocks += [(source, flat[begin:end], into[begin:end]) for begin, end in itertools.pairwise(bounds)]
        busy = sum(not helper.done() for helper in self._helpers)
        self._helpers += [_threads().submit(_work, self._blocks) for _ in range(threads - 1 - busy)]

    def complete(self) -> None:
        """Finish all copies, or raise the first error. No thread works on them afterwards."""
        try:
            _work(self._blocks)
        finally:
            begun = [helper for helper in self._helpers if not helper.cancel()]
            self._helpers = []
            if begun:
                wait(begun)
        for helper in begun:
            helper.result()


def _work(blocks: deque[tuple[Array, Array, Array]]) -> None:
    while True:
        try:
            block = blocks.popleft()
        except IndexError:
            return
        _copy(*block)


def _copy(source: Array, rows: Array, into: Array) -> None:
    np.take(source, rows, axis=0, out=into, mode="clip")  # "clip", since "raise" would go by way of another copy


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(MOST_THREADS - 1, "replay gather")
    return _pool


def _forget_threads() -> None:
    """A forked process has no threads of its parent."""
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget_threads)


class Recycler:
    """Reuses large arrays that are no longer referenced.

    Fresh memory costs a page fault per 4 KiB, which for a batch of frames takes as long as filling it. An array is free
    when all references to it are gone, including views and tensors made from it.
    """

    def __init__(self) -> None:
        self._arrays: list[Array] = []
        self._lock = threading.Lock()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[np.generic] | type) -> Array:
        """Like `numpy.empty`."""
        with self._lock:
            for index in range(len(self._arrays)):
                fits = self._arrays[index].shape == shape and self._arrays[index].dtype == dtype
                if fits and references(self._arrays, index) == UNUSED:
                    self._arrays.append(self._arrays.pop(index))  # the longest unused comes first
                    return self._arrays[-1]
            fresh: Array = np.empty(shape, dtype)
            if fresh.nbytes >= SMALLEST:
                self._arrays.append(fresh)
                del self._arrays[: max(0, len(self._arrays) - KEPT)]
            return fresh


def references(arrays: list[Array], index: int) -> int:
    """References to an array of a list, including the list's own."""
    return sys.getrefcount(arrays[index])


UNUSED = references([np.empty(1)], 0)
"""The count of an array that only the list refers to; it depends on the interpreter."""
