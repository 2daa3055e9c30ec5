"""Steps of a batch, chosen or already fetched, with the names of their dimensions; and choosing among them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pappus.errors import UserError, closest
from pappus.types import Array


@dataclass(frozen=True)
class Rows:
    """Steps that are chosen but not yet fetched: their positions `[batch, (time,) …]` and the item's bounds."""

    column: str
    positions: Array
    lengths: Array
    """Real steps of each item, where there is a time dimension."""
    dims: tuple[str, ...]
    steps: Array
    """`[batch, time]`: the positions of the steps themselves, whatever is stacked on them."""


@dataclass(frozen=True)
class Values:
    """Fetched numbers, with the names of their dimensions."""

    array: Array
    lengths: Array
    dims: tuple[str, ...]
    steps: Array
    """`[batch, time]`: the positions that they belong to."""
    pad: float = 0
    """What stands beyond an item's end."""

    def axis(self, dim: str) -> int:
        """Where a dimension is."""
        if dim not in self.dims:
            near = closest(dim, list(self.dims))
            raise UserError(f"there is no dimension {dim!r} here, only {', '.join(self.dims)}{near}")
        return self.dims.index(dim)

    def real(self) -> Array | None:
        """Which steps are real, shaped to the array; None if all are."""
        if "time" not in self.dims or not len(self.lengths):
            return None
        steps = self.array.shape[self.axis("time")]
        if self.lengths.min() >= steps:
            return None
        batch, time = self.axis("batch"), self.axis("time")
        shape = [1] * self.array.ndim
        shape[batch], shape[time] = len(self.lengths), steps
        real = np.arange(steps) < self.lengths[:, None]
        return (real if batch < time else real.T).reshape(shape)

    def clear(self, pad: float = 0) -> None:
        """Write `pad` beyond each item's end; the array must be nobody else's."""
        real = self.real()
        if real is not None:
            np.copyto(self.array, np.asarray(pad).astype(self.array.dtype), where=~real)

    def cleared(self) -> Values:
        """The same with nothing but padding beyond each item's end."""
        real = self.real()
        if real is None:
            return self
        return self.holding(np.where(real, self.array, np.asarray(self.pad).astype(self.array.dtype)))

    def holding(self, array: Array) -> Values:
        """Other numbers for the same steps."""
        return Values(array, self.lengths, self.dims, self.steps, self.pad)

    def without(self, dim: str, array: Array) -> Values:
        """The same dimensions but one."""
        return Values(array, self.lengths, tuple(d for d in self.dims if d != dim), self.steps)


def step_of(found: Rows | Values, index: int) -> Rows | Values:
    """One step of each item; of an item that is shorter, its nearest."""
    axis = found.dims.index("time")
    dims = tuple(dim for dim in found.dims if dim != "time")
    array = found.positions if isinstance(found, Rows) else found.array
    front = array if found.dims[:2] == ("batch", "time") else np.moveaxis(
        array, (found.dims.index("batch"), axis), (0, 1)
    )
    if index == 0 and front.shape[1] and isinstance(found, Rows):
        chosen = front[:, 0]
    else:
        last = np.maximum(found.lengths - 1, 0)
        at = np.maximum(found.lengths + index, 0) if index < 0 else np.minimum(index, last)
        chosen = front[np.arange(len(at)), at]
    if isinstance(found, Rows):
        return Rows(found.column, chosen, found.lengths, dims, found.steps)
    return Values(chosen, found.lengths, ("batch", *(dim for dim in dims if dim != "batch")), found.steps)


def steps_of(found: Rows | Values, key: slice) -> Rows | Values:
    """Some steps of each item, moved to the front."""
    begin, end = _bounds(found.lengths, key)
    lengths = end - begin
    steps = int(lengths.max(initial=0))
    array = found.positions if isinstance(found, Rows) else found.array
    batch, time = found.dims.index("batch"), found.dims.index("time")
    there = np.minimum(begin[:, None] + np.arange(steps), max(found.steps.shape[1] - 1, 0))
    kept = np.take_along_axis(found.steps, there, axis=1)
    if isinstance(found, Values) and not begin.any():
        return Values(np.take(array, np.arange(steps), axis=time), lengths, found.dims, kept, found.pad).cleared()
    front = np.moveaxis(array, (batch, time), (0, 1))
    at = np.minimum(begin[:, None] + np.arange(steps), max(front.shape[1] - 1, 0))
    chosen = np.moveaxis(front[np.arange(len(at))[:, None], at], (0, 1), (batch, time))
    if isinstance(found, Rows):
        return Rows(found.column, chosen, lengths, found.dims, kept)
    return Values(chosen, lengths, found.dims, kept, found.pad).cleared()


def _bounds(lengths: Array, key: slice) -> tuple[Array, Array]:
    """Where a slice begins and ends in each item."""
    begin = np.zeros_like(lengths) if key.start is None else _counted(key.start, lengths)
    end = lengths if key.stop is None else _counted(key.stop, lengths)
    return begin, np.maximum(end, begin)


def _counted(index: int, lengths: Array) -> Array:
    return np.clip(np.where(index < 0, lengths + index, index), 0, lengths)
