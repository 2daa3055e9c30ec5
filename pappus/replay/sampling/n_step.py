"""N-step transitions, the batch that most replay is sampled for: their fields, and all of them in one pass.

    item        s_0 ─ r_0, d_0 ─▶ s_1 ─ r_1, d_1 ─▶ … s_n      column `action` has one step, `reward` and `discount` n,
                                                               and what was seen has n + 1 (n, after a termination),
                                                               as `action` has if the next action is wanted

The fields say what a batch is. Their general evaluation takes some hundred NumPy calls, which for small observations is
most of the time of a sample. Where rows lie in chunks, a compiled loop computes the same numbers.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from pappus.replay.sampling.evaluation import Context, Source
from pappus.replay.sampling.fields import Batch, Trajectory, col
from pappus.replay.storage.chunks import Columns, Drawn, compiled_loop
from pappus.types import Array


class NStepTrajectory(Trajectory):
    """`now/…` and `next/…` of the columns that were seen, in stacks of `stack` frames; `action`; `reward`, the sum of n
    rewards; `discount`, the factor of what follows; `next_action`, the last of the item's actions, if wanted; and
    `beside`, further columns of the first step."""

    def __init__(
        self, seen: Sequence[str], stack: int, gamma: float, scale: float, next_action: bool = False,
        beside: Sequence[str] = (),
    ) -> None:
        """`scale` is the factor of rewards. Columns `reward` and `discount` are float32."""
        self._next_action, self._beside = next_action, tuple(beside)
        self._seen, self._stack, self._gamma, self._scale = tuple(seen), stack, float(gamma), float(scale)
        frames = {name: col(name).stack(stack) if stack > 1 else col(name) for name in seen}
        reward = col("reward") if scale == 1.0 else col("reward") * scale
        super().__init__(
            **{f"now/{name}": field[0] for name, field in frames.items()},
            **{f"next/{name}": field[-1] for name, field in frames.items()},
            action=col("action")[0], reward=reward.discounted_sum(gamma)[0],
            discount=(col("discount") * gamma).product(),
            **({"next_action": col("action")[-1]} if next_action else {}),
            **{name: col(name)[0] for name in beside},
        )

    def evaluate(self, drawn: Drawn, source: Source, lead: int) -> Batch:
        return self._in_one_pass(drawn, source, lead) or super().evaluate(drawn, source, lead)

    def _in_one_pass(self, drawn: Drawn, source: Source, lead: int) -> Batch | None:
        """None for rows and items that the loop does not know; of those that are wrong, the fields say why."""
        loop = _loop()
        if loop is None or not isinstance(source, Columns):
            return None
        if lead < self.lead or not self.columns <= source.columns.keys():
            return None
        order, items = list(source.columns), len(drawn.keys)
        columns = np.array([order.index(name) for name in ("reward", "discount", "action", *self._seen)])
        found = Found(
            np.empty((2, items, self._stack), np.int64), np.empty((2, items), np.int64), np.empty(items, np.float32),
            np.empty(items, np.float32),
        )
        understood = loop(
            source.following, source.layout.chunk_length, *drawn.windows, columns, source.columns["reward"],
            source.columns["discount"], self._gamma, self._scale, *found,
        )
        if not understood:
            return None
        return self._gathered(found, drawn, Context(drawn.windows, source, lead, self._recycler, self.kept))

    def _gathered(self, found: Found, drawn: Drawn, context: Context) -> Batch:
        stacked = self._stack > 1
        rows = found.rows if stacked else found.rows[:, :, 0]
        try:
            both = {name: context.take(name, rows) for name in self._seen}
            actions = context.take("action", found.actions if self._next_action else found.actions[:1])
            beside = {name: context.take(name, found.actions[0]) for name in self._beside}
        finally:
            context.complete()
        data = {f"now/{name}": array[0] for name, array in both.items()}
        data |= {f"next/{name}": array[1] for name, array in both.items()}
        data |= {"action": actions[0], "reward": found.reward, "discount": found.discount}
        if self._next_action:
            data["next_action"] = actions[1]
        data |= beside
        return Batch(data, drawn, {name: _dims(array, stacked and "/" in name) for name, array in data.items()})


class Found(NamedTuple):
    """What the loop finds for `B` items."""

    rows: Array
    """`[2, B, stack]`: rows of the first and of the last frames."""
    actions: Array
    """`[2, B]`: rows of the first and of the last actions."""
    reward: Array
    """`[B]`."""
    discount: Array
    """`[B]`."""


def _dims(array: Array, stacked: bool) -> tuple[str, ...]:
    named = ("batch", "stack") if stacked else ("batch",)
    return (*named, *(f"d{i}" for i in range(array.ndim - len(named))))


@cache
def _loop() -> Callable[..., bool] | None:
    """None without a compiler."""
    return compiled_loop(_transitions) if importlib.util.find_spec("numba") is not None else None


def _transitions(
    following: Array, length: int, base: Array, lead: Array, span: Array, start: Array, count: Array, columns: Array,
    rewards: Array, discounts: Array, gamma: float, scale: float, rows: Array, actions: Array, reward: Array,
    discount: Array,
) -> bool:
    """Fill in the last four; False if a column is missing, or if columns that belong together have different slices.

    `columns` are the places of `reward`, `discount`, `action` and what was seen. Sums are in float64 and products in
    float32, as those of the fields are.
    """
    longest, stack = 0, rows.shape[2]
    for i in range(len(span)):  # `span.max()` would take longer to compile than all the rest
        longest = max(longest, span[i])
    where = np.empty(longest, np.int64)
    for i in range(len(base)):
        for c in range(len(columns)):
            column, like = columns[c], columns[0 if c < 2 else min(c, 3)]
            if start[i, column] != start[i, like] or count[i, column] != count[i, like]:
                return False
            if start[i, column] < 0 or count[i, column] < 1 or lead[i] + start[i, column] + count[i, column] > span[i]:
                return False
        chunk, within = base[i] // length, base[i] % length
        for j in range(span[i]):
            if within == length:
                chunk, within = following[chunk], 0
            where[j] = chunk * length + within
            within += 1
        first = lead[i] + start[i, columns[3]]
        last = first + count[i, columns[3]] - 1
        for k in range(stack):
            rows[0, i, k] = where[max(first + 1 + k - stack, 0)]
            rows[1, i, k] = where[max(last + 1 + k - stack, 0)]
        done = lead[i] + start[i, columns[2]]
        actions[0, i], actions[1, i] = where[done], where[done + count[i, columns[2]] - 1]
        begin = lead[i] + start[i, columns[0]]
        end = begin + count[i, columns[0]]
        total, factor = 0.0, np.float32(1.0)
        for j in range(begin, end):
            factor *= discounts[where[j]] * np.float32(gamma)
        for j in range(end - 1, begin - 1, -1):
            total = np.float32(scale) * rewards[where[j]] + gamma * discounts[where[j]] * total
        reward[i], discount[i] = total, factor
    return True
