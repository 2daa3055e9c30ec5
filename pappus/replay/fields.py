"""What a sampled batch looks like: fields, each a column and operations on it.

    Trajectory(
        obs=col("obs").stack(4)[0],                        # [batch, stack, d0, d1]
        action=col("action")[0],                           # [batch]
        ret=col("reward").discounted_sum(0.99, n=3)[0],    # r_0 + γ d_0 r_1 + γ² d_0 d_1 r_2
        next_obs=col("obs").stack(4)[-1],                  # each item's own last observation
        bootstrap=(col("discount") * 0.99).product(),      # γ^n, or 0 where the episode ended
    )

A column of n items has the dimensions `batch`, `time` and those of one step, `d0`, `d1` …; `time` is as long as the
longest item's slice. Items may be shorter: what is beyond an item's end is 0 (`pad` chooses another value), `mask` says
which steps are real, reductions over `time` leave the rest out, and a negative index counts from the item's own end.

Choosing steps and stacking them costs no copy: first the rows are worked out, then each field is gathered once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from pappus.errors import UserError, closest
from pappus.replay.gathering import gather
from pappus.replay.items import Windows
from pappus.replay.recycling import Recycler
from pappus.types import Array


class Source(Protocol):
    """Where rows are: the chunks themselves, or what came of them over a wire."""

    columns: dict[str, Array]

    def rows_of(self, column: str, windows: Windows, positions: Array) -> Array:
        """The rows in `columns[column]` of positions `[n, …]`, counted from each window's base."""

    def uncopied(self, column: str, rows: Array) -> Array | None:
        """`columns[column][rows]` without a copy, where that is possible and nobody else's."""


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


class Context:
    """One batch: its items and where their steps are."""

    def __init__(self, windows: Windows, source: Source, lead: int, recycler: Recycler) -> None:
        self.windows, self.source, self.lead, self._recycler = windows, source, lead, recycler
        self._order = {name: i for i, name in enumerate(source.columns)}
        self._begun: dict[str, Rows] = {}
        self._under_way: list[Future[None]] = []

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
        first = rows.positions[:, :1]
        needed = np.arange(steps.shape[1]) < lengths[:, None] - 1
        outside = (steps < first) | (steps >= first + rows.lengths[:, None])
        if (needed & outside).any():
            raise UserError(f"column {column!r} of an item does not cover the steps that are summed; lengthen it")
        within = np.clip(steps, first, first + rows.lengths[:, None] - 1)
        return self.fetch(Rows(column, within, lengths, ("batch", "time"), within)).array

    def fetch(self, rows: Rows, pad: float = 0) -> Values:
        """The numbers. Beyond an item's end there is `pad`."""
        fetched = self.fetch_later(rows)
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
        while self._under_way:
            self._under_way.pop().result()

    def _take(self, values: Array, rows: Array) -> Array:
        if values.ndim == 1 or not math.prod(values.shape[1:]) or not rows.size:
            return values[rows]
        out = self._recycler.empty((*rows.shape, *values.shape[1:]), values.dtype)
        self._under_way += gather(values, rows, out)
        return out


class Field:
    """A column and what is done to it, in order. Fields are made by `col` and by their own methods."""

    def __init__(self, evaluate: Callable[[Context], Rows | Values], columns: frozenset[str], lead: int = 0) -> None:
        self._evaluate = evaluate
        self.columns = columns
        """All columns that it needs."""
        self.lead = lead
        """How many steps before an item's first it looks back."""

    def rows(self, context: Context) -> Rows | Values:
        """Evaluated as far as nothing need be fetched."""
        return self._evaluate(context)

    def values(self, context: Context, pad: float = 0) -> Values:
        """Evaluated."""
        found = self._evaluate(context)
        return context.fetch(found, pad) if isinstance(found, Rows) else found

    def __getitem__(self, key: int | slice) -> Field:
        """One step of each item, or some, along time; negative numbers count from the item's own end."""
        if isinstance(key, slice) and key.step not in (None, 1):
            raise UserError(f"a step of {key.step} along time is not offered; leave it out")
        if not isinstance(key, int | np.integer | slice):
            raise UserError(f"{key!r} chooses no steps along time; use a number or a slice")

        def chosen(context: Context) -> Rows | Values:
            found = self._evaluate(context)
            if "time" not in found.dims:
                raise UserError(f"there is no time left to choose steps from, only {', '.join(found.dims)}")
            if isinstance(key, slice):
                return _slice(found, key)
            return _index(found, int(key))

        return self._then(chosen)

    def stack(self, count: int) -> Field:
        """Each step with the `count` − 1 before it, in a new dimension `stack`, oldest first.

        Before the beginning of the episode its first step is repeated. Items of a table with `lead=count − 1` know the
        steps before their own.
        """
        if count < 1:
            raise UserError(f"stack({count}) shows nothing; use 1 or more")

        def stacked(context: Context) -> Rows:
            found = self._evaluate(context)
            if not isinstance(found, Rows):
                raise UserError("stack belongs before any arithmetic: it chooses steps")
            if context.lead < count - 1:
                raise UserError(
                    f"stack({count}) looks {count - 1} steps back, and the table keeps lead={context.lead} with its "
                    f"items; make the table with lead={count - 1}"
                )
            # Beyond an item's end nothing is shown, whatever would be there.
            back = found.positions[..., None] + np.arange(1 - count, 1)
            return Rows(found.column, np.maximum(back, 0), found.lengths, (*found.dims, "stack"), found.steps)

        return Field(stacked, self.columns, max(self.lead, count - 1))

    def mask(self) -> Field:
        """`[batch, time]`: which steps are real."""

        def masked(context: Context) -> Values:
            found = self._evaluate(context)
            if "time" not in found.dims:
                raise UserError(f"there is no time left to mask, only {', '.join(found.dims)}")
            steps = (found.positions if isinstance(found, Rows) else found.array).shape[found.dims.index("time")]
            real = np.arange(steps) < found.lengths[:, None]
            return Values(real, np.full(len(real), steps, np.int32), ("batch", "time"), found.steps)

        return self._then(masked)

    def pad(self, value: float = 0, length: int | None = None) -> Field:
        """Another value than 0 beyond an item's end, and `length` steps, however long the longest item is."""

        def padded(context: Context) -> Values:
            found = self.values(context, pad=value)
            axis = found.axis("time")
            array = replace(found, pad=value).cleared().array
            if length is not None and array.shape[axis] > length:
                raise UserError(f"pad(length={length}) is shorter than an item of {array.shape[axis]} steps")
            if length is not None:
                widths = [(0, 0)] * array.ndim
                widths[axis] = (0, length - array.shape[axis])
                array = np.pad(array, widths, constant_values=np.asarray(value).astype(array.dtype))
            return replace(found, array=array, pad=value)

        return self._then(padded)

    def discounted_sum(self, gamma: float, n: int | None = None, discount: str = "discount") -> Field:
        """From every step on, Σ γ^i · (product of the `discount`s before it) · value, over n steps or to the end."""

        def summed(context: Context) -> Values:
            values = self.values(context)
            if values.dims[:2] != ("batch", "time"):
                raise UserError(f"discounted_sum needs batch and time first, and here are {', '.join(values.dims)}")
            steps, more = values.array.shape[1], [1] * (values.array.ndim - 2)
            d = context.beside(discount, values.steps[:, :steps], values.lengths).astype(np.float64)
            if d.ndim != 2:
                raise UserError(f"column {discount!r} must have one number for every step")
            d = d.reshape(*d.shape, *more)
            r = values.array.astype(np.float64)
            total = _sum_to_the_end(r, gamma * d) if n is None or n >= steps else _sum_of_some(r, gamma * d, n)
            kind = np.result_type(values.array.dtype, np.float32)
            return values.holding(total.astype(kind)).cleared()

        if n is not None and n < 1:
            raise UserError(f"discounted_sum(n={n}) sums nothing; use 1 or more")
        return Field(summed, self.columns | {discount}, self.lead)

    def product(self, over: str = "time") -> Field:
        """The product along a dimension."""
        return self._reduced(np.prod, 1, over)

    def sum(self, over: str = "time") -> Field:
        """The sum along a dimension."""
        return self._reduced(np.sum, 0, over)

    def min(self, over: str = "time") -> Field:
        """The smallest along a dimension."""
        return self._reduced(np.min, None, over)

    def max(self, over: str = "time") -> Field:
        """The largest along a dimension."""
        return self._reduced(np.max, None, over)

    def mean(self, over: str = "time") -> Field:
        """The mean along a dimension, of the real steps alone."""

        def averaged(context: Context) -> Values:
            found = self.values(context)
            axis, real = found.axis(over), found.real()
            where = np.broadcast_to(real, found.array.shape) if real is not None and over == "time" else True
            return found.without(over, np.mean(found.array, axis=axis, where=where))

        return self._then(averaged)

    def cumulative_product(self, over: str = "time") -> Field:
        """The product of all up to each."""
        return self._mapped(lambda found: np.cumprod(found.array, axis=found.axis(over)))

    def astype(self, dtype: str) -> Field:
        """As another dtype."""
        return self._mapped(lambda found: found.array.astype(dtype))

    def transpose(self, *dims: str) -> Field:
        """Dimensions in another order, all of them named: `transpose("time", "batch")`."""

        def turned(context: Context) -> Values:
            found = self.values(context)
            if sorted(dims) != sorted(found.dims):
                raise UserError(f"transpose{dims} must name each of {', '.join(found.dims)} once")
            return Values(found.array.transpose([found.axis(dim) for dim in dims]), found.lengths, dims, found.steps)

        return self._then(turned)

    def __mul__(self, other: float | Field) -> Field:
        return self._with(other, np.multiply)

    def __add__(self, other: float | Field) -> Field:
        return self._with(other, np.add)

    def _with(self, other: float | Field, operation: Callable[..., Array]) -> Field:
        if not isinstance(other, Field):
            return self._mapped(lambda found: operation(found.array, np.asarray(other, _number_type(found.array))))
        second = other

        def combined(context: Context) -> Values:
            one, two = self.values(context), second.values(context)
            if one.dims != two.dims:
                raise UserError(f"fields over {', '.join(one.dims)} and over {', '.join(two.dims)} do not combine")
            if "time" in one.dims and not np.array_equal(one.lengths, two.lengths):
                raise UserError("fields of different lengths do not combine; choose as many steps of both")
            return one.holding(operation(one.array, two.array)).cleared()

        return Field(combined, self.columns | second.columns, max(self.lead, second.lead))

    def _reduced(self, reduce: Callable[..., Array], neutral: float | None, over: str) -> Field:
        def reduced(context: Context) -> Values:
            found = self.values(context)
            axis, real = found.axis(over), found.real()
            if real is None or over != "time":
                return found.without(over, reduce(found.array, axis=axis))
            if neutral is not None:
                filled = np.where(real, found.array, np.asarray(neutral, found.array.dtype))
                return found.without(over, reduce(filled, axis=axis))
            first = found.array.take([0], axis=axis)  # every item has a first step; it changes no minimum or maximum
            return found.without(over, reduce(np.where(real, found.array, first), axis=axis))

        return self._then(reduced)

    def _mapped(self, change: Callable[[Values], Array]) -> Field:
        def mapped(context: Context) -> Values:
            found = self.values(context)
            return found.holding(change(found)).cleared()

        return self._then(mapped)

    def _then(self, evaluate: Callable[[Context], Rows | Values]) -> Field:
        return Field(evaluate, self.columns, self.lead)


def col(name: str) -> Field:
    """All steps of a column."""
    return Field(lambda context: context.begin(name), frozenset([name]))


def concatenate(*fields: Field, over: str) -> Field:
    """Fields behind one another along a dimension that they all have."""

    def concatenated(context: Context) -> Values:
        found = [field.values(context) for field in fields]
        if any(one.dims != found[0].dims for one in found):
            raise UserError("fields to concatenate must have the same dimensions in the same order")
        if over == "time" and any(one.real() is not None for one in found):
            raise UserError("fields to concatenate along time must have no padding; choose as many steps of every item")
        array = np.concatenate([one.array for one in found], axis=found[0].axis(over))
        lengths = sum(one.lengths for one in found) if over == "time" else found[0].lengths
        steps = np.concatenate([one.steps for one in found], axis=1) if over == "time" else found[0].steps
        return Values(array, np.asarray(lengths), found[0].dims, steps)

    if not fields:
        raise UserError("nothing to concatenate; give one field or more")
    return Field(
        concatenated, frozenset().union(*(field.columns for field in fields)), max(field.lead for field in fields)
    )


class Trajectory:
    """Named fields: what `sample` returns as arrays under the same names."""

    def __init__(self, **fields: Field) -> None:
        if not fields:
            raise UserError("a trajectory without fields shows nothing; give such as obs=col('obs')")
        self.fields: Mapping[str, Field] = fields
        self.columns = frozenset[str]().union(*(field.columns for field in fields.values()))
        self.lead = max(field.lead for field in fields.values())
        self._recycler = Recycler()

    def evaluate(self, windows: Windows, source: Source, lead: int) -> dict[str, Values]:
        """All fields of a batch of items, of a table that keeps so many leading steps with each."""
        context = Context(windows, source, lead, self._recycler)
        try:
            found = {name: field.rows(context) for name, field in self.fields.items()}
            values = {name: context.fetch_later(one) if isinstance(one, Rows) else one for name, one in found.items()}
        finally:
            context.complete()  # large ones are copied all at once
        for name, one in found.items():
            if isinstance(one, Rows):
                values[name].clear()
        return values


def whole(columns: Mapping[str, Any]) -> Trajectory:
    """Every column as it is."""
    return Trajectory(**{name: col(name) for name in columns})


def _sum_to_the_end(r: Array, d: Array) -> Array:
    """`[batch, time, …]`: G_t = r_t + d_t · G_(t+1), from the last step back."""
    total = r.copy()
    for t in range(r.shape[1] - 2, -1, -1):
        total[:, t] += d[:, t] * total[:, t + 1]
    return total


def _sum_of_some(r: Array, d: Array, n: int) -> Array:
    """`[batch, time, …]`: r_t + d_t · r_(t+1) + d_t · d_(t+1) · r_(t+2) + …, of n steps."""
    steps, total, weight = r.shape[1], np.zeros_like(r), np.ones_like(d)
    for i in range(n):
        total[:, : steps - i] += weight[:, : steps - i] * r[:, i:]
        weight[:, : steps - i] *= d[:, i:]
    return total


def _number_type(array: Array) -> Any:
    """What a plain number becomes beside an array: float32 stays float32."""
    return array.dtype if array.dtype.kind == "f" else None


def _bounds(lengths: Array, key: slice) -> tuple[Array, Array]:
    """Where a slice begins and ends in each item."""
    begin = np.zeros_like(lengths) if key.start is None else _counted(key.start, lengths)
    end = lengths if key.stop is None else _counted(key.stop, lengths)
    return begin, np.maximum(end, begin)


def _counted(index: int, lengths: Array) -> Array:
    return np.clip(np.where(index < 0, lengths + index, index), 0, lengths)


def _index(found: Rows | Values, index: int) -> Rows | Values:
    """One step of each item; of an item that is shorter, its nearest."""
    at = np.clip(found.lengths + index if index < 0 else index, 0, np.maximum(found.lengths - 1, 0))
    axis = found.dims.index("time")
    dims = tuple(dim for dim in found.dims if dim != "time")
    array = found.positions if isinstance(found, Rows) else found.array
    front = array if found.dims[:2] == ("batch", "time") else np.moveaxis(
        array, (found.dims.index("batch"), axis), (0, 1)
    )
    chosen = front[np.arange(len(at)), at]
    if isinstance(found, Rows):
        return Rows(found.column, chosen, found.lengths, dims, found.steps)
    return Values(chosen, found.lengths, ("batch", *(dim for dim in dims if dim != "batch")), found.steps)


def _slice(found: Rows | Values, key: slice) -> Rows | Values:
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
