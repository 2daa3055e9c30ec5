"""Statistics of columns that are too long for memory: each takes rows as they come and forgets them."""

from __future__ import annotations

import math

import numpy as np

from pappus.types import ActionSpec, Array, ContinuousAction

BLOCK = 1 << 20
"""Numbers that are converted to float64 at a time."""


class Moments:
    """Count, minimum, mean, maximum and standard deviation of every column of rows `[n, width]`."""

    def __init__(self, width: int) -> None:
        self.count = 0
        self.mean, self._squares = np.zeros(width), np.zeros(width)
        self.low, self.high = np.full(width, np.inf), np.full(width, -np.inf)

    def add(self, rows: Array) -> None:
        """Take further rows; those with values that are not finite are left out."""
        size = max(1, BLOCK // max(1, rows.shape[1]))
        for begin in range(0, len(rows), size):
            block = rows[begin : begin + size]
            if rows.dtype == np.uint8 and rows.shape[1] == 1:
                self._add_counted(np.bincount(block[:, 0], minlength=256))
                continue
            block = block.astype(np.float64)
            block = block[np.isfinite(block).all(axis=1)]
            if len(block):
                mean = block.mean(axis=0)
                squares = ((block - mean) ** 2).sum(axis=0)
                self._join(len(block), mean, squares, block.min(axis=0), block.max(axis=0))

    def _add_counted(self, counts: Array) -> None:
        """Pixels: how often each of their 256 values is there."""
        values, total = np.flatnonzero(counts), int(counts.sum())
        mean = (values @ counts[values]) / total
        squares = ((values - mean) ** 2) @ counts[values]
        self._join(total, *(np.array([x], np.float64) for x in (mean, squares, values[0], values[-1])))

    def _join(self, count: int, mean: Array, squares: Array, low: Array, high: Array) -> None:
        """Chan's way to join two sums of squares: no difference of large numbers."""
        total, apart = self.count + count, mean - self.mean
        self._squares += squares + apart**2 * self.count * count / total
        self.mean, self.count = self.mean + apart * count / total, total
        self.low, self.high = np.minimum(self.low, low), np.maximum(self.high, high)

    @property
    def std(self) -> Array:
        """Of the rows so far, as those of a population."""
        return np.sqrt(self._squares / max(1, self.count))

    @property
    def constant(self) -> list[int]:
        """Columns that never change, if there are rows enough to tell."""
        return np.flatnonzero(self.low == self.high).tolist() if self.count > 1 else []


class ChoiceCounts:
    """How often each value of each choice was taken."""

    def __init__(self, choices: tuple[int, ...]) -> None:
        self.counts = [np.zeros(n, np.int64) for n in choices]

    def add(self, chosen: Array) -> None:
        """Take further rows `[n, choices]`; values outside a choice are left out."""
        for counts, column in zip(self.counts, chosen.T, strict=True):
            inside = column[(column >= 0) & (column < len(counts))]
            counts += np.bincount(inside, minlength=len(counts))

    def shares(self) -> list[Array]:
        """Of each value, by choice."""
        return [counts / max(1, counts.sum()) for counts in self.counts]

    def entropy(self) -> float:
        """Nats, summed over the choices."""
        return sum(entropy(counts) for counts in self.counts)


class AtBounds:
    """The share of real actions that lie on a bound of the env."""

    def __init__(self, low: Array, high: Array) -> None:
        low, high = (bound.astype(np.float64).reshape(-1) for bound in (low, high))
        slack = np.where(np.isfinite(high - low), 1e-6 * (high - low), 0.0)
        self._low, self._high = low + slack, high - slack
        self._at, self._rows = np.zeros(len(low), np.int64), 0

    def add(self, rows: Array) -> None:
        """Take further rows `[n, width]` in the env's units."""
        self._at += ((rows <= self._low) | (rows >= self._high)).sum(axis=0)
        self._rows += len(rows)

    @property
    def share(self) -> Array:
        """Of each entry of the action."""
        return self._at / max(1, self._rows)


class Coverage:
    """How many state-action cells were effectively visited: exp of the entropy of the steps over cells, where a cell is
    the sides of 10 random planes that the observation lies on, and the action (a real one: the sides of 3 planes)."""

    STATE_BITS, ACTION_BITS = 10, 3
    SETTLED = 1_000
    """Steps after which the centre and the scale of the projections are fixed."""
    ENTRIES = 256
    """Of a large observation only so many entries are looked at."""

    def __init__(self, action: ActionSpec) -> None:
        real = isinstance(action, ContinuousAction)
        self._action_cells = 1 << self.ACTION_BITS if real else min(1 << 12, math.prod(action.choices))
        self._choices, self._rng = action.choices, np.random.default_rng(0)
        self._waiting: list[tuple[Array, Array]] = []
        self._entries: Array | None = None
        self._planes: tuple[_Planes, _Planes] | None = None
        self._counts = np.zeros((1 << self.STATE_BITS) * self._action_cells, np.int64)

    @property
    def visited(self) -> int:
        """Cells that have at least one step."""
        self._count()
        return int((self._counts > 0).sum())

    def add(self, observation: Array, action: Array) -> None:
        """Take further rows `[n, width]` of both."""
        if self._entries is None:
            width = observation.shape[1]
            self._entries = np.sort(self._rng.permutation(width)[: self.ENTRIES])
        self._waiting.append((observation[:, self._entries].astype(np.float64), action.astype(np.float64)))
        if self._planes is not None or sum(len(rows) for rows, _ in self._waiting) >= self.SETTLED:
            self._count()

    def effective(self) -> float:
        """Cells that as many steps, spread evenly, would visit."""
        self._count()
        return math.exp(entropy(self._counts)) if self._counts.any() else 0.0

    def _count(self) -> None:
        if not self._waiting:
            return
        seen, done = (np.concatenate(columns) for columns in zip(*self._waiting, strict=True))
        self._waiting.clear()
        if self._planes is None:
            self._planes = _Planes(seen, self.STATE_BITS, self._rng), _Planes(done, self.ACTION_BITS, self._rng)
        states, actions = self._planes
        chosen = actions.cells(done) if not self._choices else self._joint(done)
        cells = states.cells(seen) * self._action_cells + chosen
        self._counts += np.bincount(cells, minlength=len(self._counts))

    def _joint(self, chosen: Array) -> Array:
        number = np.zeros(len(chosen), np.int64)
        for column, n in zip(chosen.T, self._choices, strict=True):
            number = number * n + np.clip(column.astype(np.int64), 0, n - 1)
        return number % self._action_cells


class _Planes:
    """Random planes near the middle of some rows; the cell of a row is on which side of each it lies."""

    def __init__(self, rows: Array, count: int, rng: np.random.Generator) -> None:
        rows = np.nan_to_num(rows, posinf=0.0, neginf=0.0)
        self._centre, self._scale = rows.mean(axis=0), rows.std(axis=0)
        self._scale[self._scale == 0] = 1
        self._normals = rng.normal(size=(rows.shape[1], count))
        self._offsets = rng.normal(size=count) * math.sqrt(rows.shape[1]) / 2  # half as far out as the rows

    def cells(self, rows: Array) -> Array:
        """The cell of each row, from 0 to 2^count - 1."""
        rows = (np.nan_to_num(rows, posinf=0.0, neginf=0.0) - self._centre) / self._scale
        sides: Array = rows @ self._normals > self._offsets
        return np.asarray(sides @ (1 << np.arange(sides.shape[1])), np.int64)


def entropy(counts: Array) -> float:
    """Of a distribution given by counts, in nats."""
    shares = counts[counts > 0] / max(1, counts.sum())
    return float(-(shares * np.log(shares)).sum()) + 0.0
