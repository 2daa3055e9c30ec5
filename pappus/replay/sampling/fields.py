"""The shape of a sampled batch: a trajectory of named fields, each a column and operations on it.

    Trajectory(
        obs=col("obs").stack(4)[0],                        # [batch, stack, d0, d1]
        action=col("action")[0],                           # [batch]
        ret=col("reward").discounted_sum(0.99, n=3)[0],    # r_0 + γ d_0 r_1 + γ² d_0 d_1 r_2
        next_obs=col("obs").stack(4)[-1],                  # each item's own last observation
        bootstrap=(col("discount") * 0.99).product(),      # γ^n, or 0 where the episode ended
    )

A column of n items has the dimensions `batch`, `time` and those of one step, `d0`, `d1` …; `time` is as long as the
longest slice. Items may be shorter: beyond an item's end there is 0 (`pad` chooses another value), `mask` says which
steps are real, reductions over `time` skip the rest, and a negative index counts from the item's own end.

Selecting and stacking steps needs no copy: the rows are computed first, and each field is gathered once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from pappus.errors import UserError
from pappus.replay.sampling.evaluation import Context, Recycler, Rows, Source, Values, step_of, steps_of
from pappus.replay.sampling.kept_rows import KeptRows
from pappus.replay.storage.chunks import Drawn
from pappus.types import Array


class Field:
    """A column and a chain of operations. Fields are created by `col` and by their own methods."""

    def __init__(self, evaluate: Callable[[Context], Rows | Values], columns: frozenset[str], lead: int = 0) -> None:
        self.evaluate = evaluate
        """Evaluates as far as possible without fetching."""
        self.columns = columns
        """The columns that it needs."""
        self.lead = lead
        """Steps before an item's first that it needs."""

    def values(self, context: Context, pad: float = 0) -> Values:
        """Evaluate and fetch."""
        found = self.evaluate(context)
        return context.fetch(found, pad) if isinstance(found, Rows) else found

    def __getitem__(self, key: int | slice) -> Field:
        """One step of each item, or a slice, along time; negative numbers count from the item's own end."""
        if isinstance(key, slice) and key.step not in (None, 1):
            raise UserError(f"a step of {key.step} along time is not offered; leave it out")
        if not isinstance(key, int | np.integer | slice):
            raise UserError(f"{key!r} chooses no steps along time; use a number or a slice")

        def chosen(context: Context) -> Rows | Values:
            found = self.evaluate(context)
            if "time" not in found.dims:
                raise UserError(f"there is no time left to choose steps from, only {', '.join(found.dims)}")
            return steps_of(found, key) if isinstance(key, slice) else step_of(found, int(key))

        return self._then(chosen)

    def stack(self, count: int) -> Field:
        """Each step with the `count` − 1 before it, in a new dimension `stack`, oldest first.

        Before the beginning of the episode its first step is repeated. Items of a table with `lead=count − 1` know the
        steps before their own.
        """
        if count < 1:
            raise UserError(f"stack({count}): the count must be at least 1")

        def stacked(context: Context) -> Rows:
            found = self.evaluate(context)
            if not isinstance(found, Rows):
                raise UserError("stack belongs before any arithmetic: it chooses steps")
            if context.lead < count - 1:
                raise UserError(
                    f"stack({count}) looks {count - 1} steps back, and the table keeps lead={context.lead} with its "
                    f"items; make the table with lead={count - 1}"
                )
            # Beyond an item's end nothing is shown, whatever would be there.
            back = found.array[..., None] + np.arange(1 - count, 1)
            return Rows(np.maximum(back, 0), found.lengths, (*found.dims, "stack"), found.steps, found.column)

        return Field(stacked, self.columns, max(self.lead, count - 1))

    def mask(self) -> Field:
        """`[batch, time]`: which steps are real."""

        def masked(context: Context) -> Values:
            found = self.evaluate(context)
            if "time" not in found.dims:
                raise UserError(f"there is no time left to mask, only {', '.join(found.dims)}")
            steps = found.array.shape[found.dims.index("time")]
            real = np.arange(steps) < found.lengths[:, None]
            return Values(real, np.full(len(real), steps, np.int32), ("batch", "time"), found.steps)

        return self._then(masked)

    def pad(self, value: float = 0, length: int | None = None) -> Field:
        """Set the value beyond an item's end, and extend time to `length` steps."""

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
        """For every step, Σ γ^i · (product of the `discount`s before it) · value, over n steps or to the end."""

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
            raise UserError(f"discounted_sum(n={n}): n must be at least 1")
        return Field(summed, self.columns | {discount}, self.lead)

    def product(self, over: str = "time") -> Field:
        """The product along a dimension."""
        return self._reduced(np.prod, over)

    def sum(self, over: str = "time") -> Field:
        """The sum along a dimension."""
        return self._reduced(np.sum, over)

    def min(self, over: str = "time") -> Field:
        """The minimum along a dimension."""
        return self._reduced(np.min, over)

    def max(self, over: str = "time") -> Field:
        """The maximum along a dimension."""
        return self._reduced(np.max, over)

    def mean(self, over: str = "time") -> Field:
        """The mean along a dimension, over real steps only."""
        return self._reduced(np.mean, over)

    def cumulative_product(self, over: str = "time") -> Field:
        """The cumulative product along a dimension."""
        return self._mapped(lambda found: np.cumprod(found.array, axis=found.axis(over)))

    def astype(self, dtype: str) -> Field:
        """Convert to another dtype."""
        return self._mapped(lambda found: found.array.astype(dtype))

    def transpose(self, *dims: str) -> Field:
        """Reorder dimensions; name all of them: `transpose("time", "batch")`."""

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

        def combined(context: Context) -> Values:
            one, two = self.values(context), other.values(context)
            if one.dims != two.dims:
                raise UserError(f"fields over {', '.join(one.dims)} and over {', '.join(two.dims)} do not combine")
            if "time" in one.dims and not np.array_equal(one.lengths, two.lengths):
                raise UserError("fields of different lengths do not combine; choose as many steps of both")
            return one.holding(operation(one.array, two.array)).cleared()

        return Field(combined, self.columns | other.columns, max(self.lead, other.lead))

    def _reduced(self, reduce: Callable[..., Array], over: str) -> Field:
        def reduced(context: Context) -> Values:
            found = self.values(context)
            axis, real = found.axis(over), found.real()
            if real is None or over != "time":
                return found.without(over, reduce(found.array, axis=axis))
            if reduce in (np.min, np.max):  # every item has a first step; it changes no minimum or maximum
                first = found.array.take([0], axis=axis)
                return found.without(over, reduce(np.where(real, found.array, first), axis=axis))
            return found.without(over, reduce(found.array, axis=axis, where=np.broadcast_to(real, found.array.shape)))

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
    """Concatenate fields along a dimension that they all have."""

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
    """The dtype of a Python number in an operation with an array: float32 stays float32."""
    return array.dtype if array.dtype.kind == "f" else None


class Batch(NamedTuple):
    """Sampled items: arrays by field name, what was drawn with which probability, and the dimensions of each field."""

    data: dict[str, Array]
    info: Drawn
    dims: dict[str, tuple[str, ...]]

    @property
    def keys(self) -> Array:
        return self.info.keys

    def parted(self, parts: int) -> list[Batch]:
        """Equal parts that share its memory."""
        if parts == 1:
            return [self]
        bounds = [len(self.keys) * i // parts for i in range(parts + 1)]
        return [self._part(slice(begin, end)) for begin, end in itertools.pairwise(bounds)]

    def _part(self, items: slice) -> Batch:
        before = {name: [slice(None)] * dims.index("batch") for name, dims in self.dims.items()}
        data = {name: array[(*before[name], items)] for name, array in self.data.items()}
        return Batch(data, self.info.pick(items), self.dims)

    def weights(self, beta: float) -> Array:
        """Importance weights (size · probability)^−β, the largest of which is 1 (Schaul et al. 2015)."""
        weights = (self.info.table_size * self.info.probabilities) ** -beta
        return np.asarray(weights / weights.max(), np.float32)


class Trajectory:
    """Named fields; `sample` returns an array for each."""

    def __init__(self, **fields: Field) -> None:
        if not fields:
            raise UserError("a trajectory without fields is empty; give for example obs=col('obs')")
        self.fields: Mapping[str, Field] = fields
        self.columns = frozenset[str]().union(*(field.columns for field in fields.values()))
        self.lead = max(field.lead for field in fields.values())
        self._recycler = Recycler()
        self.kept: KeptRows | None = None
        """Rows that the reader keeps: fields of such columns are numbers of rows."""

    def evaluate(self, drawn: Drawn, source: Source, lead: int) -> Batch:
        """All fields of sampled items; `lead` is that of their table."""
        context = Context(drawn.windows, source, lead, self._recycler, self.kept)
        values, copied = {}, []
        try:
            for name, field in self.fields.items():
                found = field.evaluate(context)
                if isinstance(found, Rows):
                    found = context.fetch_later(found)
                    copied.append(found)
                values[name] = found
        finally:
            context.complete()  # large columns are copied while other fields are computed
        for one in copied:
            one.clear()
        return Batch(
            {name: found.array for name, found in values.items()}, drawn,
            {name: found.dims for name, found in values.items()},
        )


def whole(columns: Mapping[str, Any]) -> Trajectory:
    """All columns, unchanged."""
    return Trajectory(**{name: col(name) for name in columns})
