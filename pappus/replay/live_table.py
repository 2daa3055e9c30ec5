"""A table with its items. It waits for nothing and locks nothing: that is what a service does around it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pappus.errors import UserError
from pappus.replay.chunks import Chunks
from pappus.replay.items import Drawn, Windows, joined
from pappus.replay.tables import Table
from pappus.types import Array

EPOCH = 1 << 20
"""Items per place between two checkpoints, at most."""


class TableState(NamedTuple):
    """All that a table knows about its items."""

    keys: Array
    priorities: Array
    times_sampled: Array
    number: Array
    windows: Windows
    next_key: Array
    """The key that comes next at every place."""
    free: Array
    """Places that are free; the last is taken first."""
    sampler_order: Array
    remover_order: Array
    """Places as the selectors keep them, so that they go on as they were."""

    def in_order(self) -> TableState:
        """Those that are here, from the oldest to the newest."""
        places = np.flatnonzero(self.keys >= 0)
        places = places[np.argsort(self.number[places])]
        return TableState(
            self.keys[places], self.priorities[places], self.times_sampled[places], self.number[places],
            self.windows.pick(places), self.next_key, self.free, self.sampler_order, self.remover_order,
        )


class LiveTable:
    """Items at places. A key names a place and how often the place was used before, so no key ever comes twice.

    Every item holds the chunks that its window touches, from `insert` until it goes.
    """

    def __init__(self, table: Table, chunks: Chunks, seed: int) -> None:
        self.table, self._chunks = table, chunks
        self.limiter = table.fresh_limiter()
        self.rng = np.random.default_rng(seed)
        capacity = table.max_size
        self._keys = np.full(capacity, -1, np.int64)
        self._next_key = np.arange(capacity)
        self._priorities = np.zeros(capacity)
        self._times_sampled = np.zeros(capacity, np.int32)
        self._number = np.zeros(capacity, np.int64)
        """How many items the table had seen before this one."""
        self._windows = Windows.empty(capacity, len(chunks.columns))
        self._free = np.arange(capacity)[::-1].copy()
        self._sampler, self._remover = table.sampler.over(capacity), table.remover.over(capacity)

    @property
    def size(self) -> int:
        """Items that are here."""
        return self.limiter.size

    @property
    def removable(self) -> int:
        """Items that may go so that there is room for steps: where inserts may wait, none that somebody counts on."""
        if np.isinf(self.limiter.most):
            return self.size
        return 0 if self.table.max_times_sampled else max(0, self.size - self.limiter.min_size)

    @property
    def mass(self) -> float:
        """The sum of what items are drawn in proportion to."""
        return self._sampler.mass

    def insert(self, priorities: Array, windows: Windows) -> Array:
        """Put in items (as many as the limiter allows now, and no more than max_size); their keys."""
        count = windows.num_items
        self.check(priorities)
        overflow = self.size + count - self.table.max_size
        if overflow > 0 and count > 1 and self.table.remover.order != "fifo":
            # Every item that comes may be the next to go: one after the other.
            pieces = (slice(i, i + 1) for i in range(count))
            return np.concatenate([self.insert(priorities[one], windows.pick(one)) for one in pieces])
        if overflow > 0:
            self.remove(overflow)
        self._chunks.hold(self._chunks.spanned(windows.base, windows.span), self._chunks.by_items)
        places = self._free[self._num_free - count : self._num_free].copy()
        keys = self._next_key[places]
        self._next_key[places] += self.table.max_size
        self._keys[places], self._priorities[places], self._times_sampled[places] = keys, priorities, 0
        self._number[places] = self.limiter.inserts + np.arange(count)
        self._windows.put(places, windows)
        self._sampler.insert(places, priorities)
        self._remover.insert(places, priorities)
        self.limiter.inserts += count
        return keys

    def available(self, wanted: int) -> int:
        """How many of the `wanted` samples can be drawn now."""
        if self._sampler.drawable == 0:
            return 0
        allowed = self.limiter.samples_now(wanted)
        if self.table.max_times_sampled == 1:  # every draw takes an item away
            return max(0, min(allowed, self.size - self.limiter.min_size + 1, self._sampler.drawable))
        return allowed

    def explain(self) -> str:
        """Why nothing can be inserted or sampled; or that it can."""
        if self.size and not self._sampler.drawable:
            return f"samples wait for a priority above 0: all {self.size} items have 0; {self.limiter.explain()}"
        return self.limiter.explain()

    def sample(self, wanted: int) -> Drawn:
        """Draw as many of the `wanted` items as are available now. Their chunks are held for whoever asked."""
        if self.table.max_times_sampled <= 1:
            count = self.available(wanted)
            draw = self._sampler.next if self.table.max_times_sampled else self._sampler.sample
            return self._draw(*draw(count, self.rng))
        parts = [self._draw(*self._sampler.sample(1, self.rng))]
        while len(parts) < wanted and self.available(1):
            parts.append(self._draw(*self._sampler.sample(1, self.rng)))
        return joined(parts)

    def _draw(self, places: Array, probabilities: Array) -> Drawn:
        self._chunks.kernels.add(self._times_sampled, places, 1)
        windows = self._windows.pick(places)
        self._chunks.hold(self._chunks.spanned(windows.base, windows.span))
        drawn = Drawn(
            self._keys[places], probabilities, self._priorities[places], self._times_sampled[places],
            self.limiter.inserts - self._number[places] - 1, self.size, self.mass, windows,
        )
        self.limiter.samples += len(places)
        if self.table.max_times_sampled:
            self._drop(places[drawn.times_sampled >= self.table.max_times_sampled])
        return drawn

    def update(self, keys: Array, priorities: Array) -> int:
        """Change priorities; of a key that comes twice the last one counts, a key that is gone is passed over."""
        if keys.ndim != 1 or keys.shape != priorities.shape:
            raise UserError(f"keys of shape {keys.shape} and priorities of shape {priorities.shape} must be as many")
        self.check(priorities)
        here = self._are_here(keys)
        places, changed = keys[here] % self.table.max_size, priorities[here]
        self._priorities[places] = changed
        self._sampler.update(places, changed)
        self._remover.update(places, changed)
        return len(np.unique(places))

    def delete(self, keys: Array) -> int:
        """Take items out; keys that are gone are passed over."""
        places = np.unique(keys[self._are_here(keys)]) % self.table.max_size
        self._drop(places)
        return len(places)

    def remove(self, count: int) -> None:
        """Take out what the remover chooses."""
        self._drop(self._remover.next(count, self.rng)[0])

    def reset(self) -> None:
        """Take all out, and count from zero again."""
        self._drop(self._keys[self._keys >= 0] % self.table.max_size)
        self.limiter.inserts = self.limiter.samples = self.limiter.deletes = 0
        self._number[:] = 0

    def check(self, priorities: Array) -> None:
        """Raise `UserError` for what is no priority."""
        good = np.isfinite(priorities)
        for selection in (self.table.sampler, self.table.remover):
            if selection.order == "prioritized":
                with np.errstate(over="ignore", invalid="ignore"):
                    good &= (priorities >= 0) & np.isfinite(priorities**selection.alpha)
        if not good.all():
            raise UserError(
                f"priority={priorities[~good][0]} for table {self.table.name!r} must be a finite number of at least 0, "
                "and so must its power; give the absolute value of what it is computed from"
            )

    def state(self) -> TableState:
        """A copy of all records, place by place: no more is done, since everybody waits for it."""
        return TableState(
            self._keys.copy(), self._priorities.copy(), self._times_sampled.copy(), self._number.copy(),
            Windows(*(field.copy() for field in self._windows)), self._next_key.copy(),
            self._free[: self._num_free].copy(), self._sampler.in_use(), self._remover.in_use(),
        )

    def restore(self, state: TableState) -> None:
        """Take over the items, in order, of a table that was as large; their windows are over chunks of ours."""
        places = state.keys % self.table.max_size
        # Keys that were given out after the checkpoint, by a service that is gone, are not given out again.
        self._next_key[:] = state.next_key + EPOCH * self.table.max_size
        self._keys[places], self._priorities[places] = state.keys, state.priorities
        self._times_sampled[places], self._number[places] = state.times_sampled, state.number
        self._windows.put(places, state.windows)
        self._chunks.hold(self._chunks.spanned(state.windows.base, state.windows.span), self._chunks.by_items)
        self._free[: len(state.free)] = state.free
        self._sampler.insert(state.sampler_order, self._priorities[state.sampler_order])
        self._remover.insert(state.remover_order, self._priorities[state.remover_order])

    def _drop(self, places: Array) -> None:
        if not len(places):
            return
        windows = self._windows.pick(places)
        self._keys[places] = -1
        self._sampler.delete(places)
        self._remover.delete(places)
        self._free[self._num_free : self._num_free + len(places)] = places
        self.limiter.deletes += len(places)
        self._chunks.release(self._chunks.spanned(windows.base, windows.span), self._chunks.by_items)

    def _are_here(self, keys: Array) -> Array:
        here: Array = (keys >= 0) & (self._keys[keys % self.table.max_size] == keys)
        return here

    @property
    def _num_free(self) -> int:
        return self.table.max_size - self.size
