"""A table with its items. It neither waits nor locks: the service does."""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from pappus.errors import UserError
from pappus.replay.storage.chunks import Chunks, Drawn, Windows
from pappus.replay.tables.selectors import Draws, draw_at_random, draw_in_order
from pappus.replay.tables.table import Table
from pappus.types import Array

EPOCH = 1 << 20
"""Maximum number of items per place between two checkpoints."""
WHOLE = ("next_key", "free", "sampler_order", "remover_order")
"""The parts of a table's state that are not records of items."""


def in_order(state: dict[str, Array]) -> dict[str, Array]:
    """The `LiveTable.state` with only the records of items in the table, oldest first."""
    places = np.flatnonzero(state["keys"] >= 0)
    places = places[np.argsort(state["number"][places])]
    return {name: array if name in WHOLE else array[places] for name, array in state.items()}


class LiveTable:
    """Items at numbered places. A key encodes a place and how often it was used before, so no key is used twice.

    Every item holds the chunks of its window from `insert` until it is removed.
    """

    def __init__(self, table: Table, chunks: Chunks, seed: int) -> None:
        self.table, self.chunks = table, chunks
        self.limiter = replace(table.rate_limiter, inserts=0, samples=0, deletes=0)
        self.rng = np.random.default_rng(seed)
        capacity = table.max_size
        self._keys = np.full(capacity, -1, np.int64)
        self._next_key = np.arange(capacity)
        self._priorities = np.zeros(capacity)
        self._times_sampled = np.zeros(capacity, np.int32)
        self._number = np.zeros(capacity, np.int64)
        """Number of items that were inserted before this one."""
        self._windows = Windows.empty(capacity, len(chunks.columns))
        self._free = np.arange(capacity)[::-1].copy()
        self._sampler, self._remover = table.selectors()
        self._largest = self.refused = 0
        """The most items that it has held, and how many were refused for their values."""
        self.starved = False
        """Whether items were evicted for lack of steps, and fewer than `min_size` have been left since."""

    @property
    def size(self) -> int:
        return self.limiter.inserts - self.limiter.deletes

    @property
    def was_open(self) -> bool:
        """Whether it has held `min_size` items since it was created or reset."""
        return self._largest >= self.limiter.min_size

    @property
    def gives_way(self) -> bool:
        """Whether items that were not sampled may be evicted when steps run out."""
        return np.isinf(self.limiter.most) or not self.table.max_times_sampled

    @property
    def mass(self) -> float:
        """Total weight of its items (`Selector.total`)."""
        return self._sampler.total()[0]

    def insert(self, priorities: Array, windows: Windows) -> Array:
        """Insert items and return their keys. The caller checks the limiter; at most `max_size` at a time."""
        count = windows.num_items
        self.check(priorities)
        overflow = self.size + count - self.table.max_size
        if overflow > 0 and count > 1 and not self._remover.oldest_first:
            # A new item may be the next to be removed: insert one at a time.
            ones = (slice(i, i + 1) for i in range(count))
            return np.concatenate([self.insert(priorities[one], windows.pick(one)) for one in ones])
        if overflow > 0:
            self.remove(overflow)
        self.chunks.hold(self.chunks.spanned(windows.base, windows.span), self.chunks.by_items)
        places = self._free[self._num_free - count : self._num_free].copy()
        keys = self._next_key[places]
        self._next_key[places] += self.table.max_size
        self._keys[places], self._priorities[places], self._times_sampled[places] = keys, priorities, 0
        self._number[places] = self.limiter.inserts + np.arange(count)
        self._windows.put(places, windows)
        self._sampler.insert(places, priorities)
        self._remover.insert(places, priorities)
        self.limiter.inserts += count
        self._grown()
        return keys

    def available(self, wanted: int) -> int:
        """How many of the `wanted` samples can be drawn now."""
        drawable = self._sampler.total()[1]
        if drawable == 0:
            return 0
        allowed = self.limiter.samples_now(wanted)
        if self.table.max_times_sampled == 1:  # every draw takes an item away
            return max(0, min(allowed, self.size - self.limiter.min_size + 1, drawable))
        return allowed

    def explain(self) -> str:
        """Why inserts or samples wait; or that the table is open."""
        if self.size and not self._sampler.total()[1]:
            return f"samples wait for a priority above 0: all {self.size} items have 0; {self.limiter.explain()}"
        return self.limiter.explain()

    def sample(self, wanted: int, held: list[Array]) -> Drawn:
        """Draw as many of the `wanted` items as are available now, hold their chunks, and add these to `held`."""
        if self.table.max_times_sampled <= 1:
            count = self.available(wanted)
            return self._draw(held, *self._sampler.sample(count, self.rng, distinct=self.table.max_times_sampled == 1))
        parts: list[Drawn] = []
        while wanted and (count := self.available(wanted)):
            parts.append(self._draw(held, *self._limited(count)))
            wanted -= len(parts[-1].keys)
        return Drawn.joined(parts)

    def _limited(self, count: int) -> Draws:
        """Between 1 and `count` draws of items that are removed after `max_times_sampled` samples."""
        most, spare = self.table.max_times_sampled, self.size - self.limiter.min_size
        ordered = not self._sampler.random
        needed = min(-(-count // most) + 1, self._sampler.total()[1]) if ordered else count
        places, probabilities = self._sampler.sample(needed, self.rng, distinct=ordered)
        # Restored items may exceed the table's limit: they are removed after the next sample.
        before = np.minimum(self._times_sampled[places], most - 1)
        if ordered:
            return draw_in_order(places, before, most, spare, count)
        return draw_at_random(places, probabilities, before, most, spare)

    def _draw(self, held: list[Array], places: Array, probabilities: Array, times: Array | None = None) -> Drawn:
        self.chunks.kernels.add(self._times_sampled, places, 1)
        windows = self._windows.pick(places)
        chunks = self.chunks.spanned(windows.base, windows.span)
        self.chunks.hold(chunks)
        held.append(chunks)
        drawn = Drawn(
            self._keys[places], probabilities, self._priorities[places],
            self._times_sampled[places] if times is None else times.astype(np.int32),
            self.limiter.inserts - self._number[places] - 1, self.size, self.mass, windows,
        )
        self.limiter.samples += len(places)
        if self.table.max_times_sampled:
            self._drop(places[drawn.times_sampled >= self.table.max_times_sampled])
        return drawn

    def update(self, keys: Array, priorities: Array) -> int:
        """Change priorities. The last one counts if a key occurs twice; keys of removed items are ignored."""
        if keys.ndim != 1 or keys.shape != priorities.shape:
            raise UserError(f"keys of shape {keys.shape} and priorities of shape {priorities.shape} must be as many")
        self.check(priorities)
        here = self._are_here(keys)
        places, changed = keys[here] % self.table.max_size, priorities[here]
        self._priorities[places] = changed
        self._sampler.update(places, changed)
        self._remover.update(places, changed)
        return len(set(places.tolist()))

    def delete(self, keys: Array) -> int:
        """Delete items; keys of removed items are ignored."""
        places = np.unique(keys[self._are_here(keys)]) % self.table.max_size
        self._drop(places)
        return len(places)

    def remove(self, count: int) -> None:
        """Remove the items that the remover chooses."""
        self._drop(self._remover.sample(count, self.rng, distinct=True)[0])

    def give_way(self, count: int) -> None:
        """Evict items for lack of steps."""
        self.remove(count)
        self.starved = self.size < self.limiter.min_size

    def too_few_steps(self) -> str:
        """The error for too few steps: how many `min_size` items of the present size need."""
        rows, least = self.chunks.layout.rows, self.limiter.min_size
        windows = self._windows.pick(np.flatnonzero(self._keys >= 0))
        held = len(np.unique(self.chunks.spanned(windows.base, windows.span))) * self.chunks.layout.chunk_length
        each = held / self.size
        needed = rows + math.ceil((least - self.size) * each)
        return (
            f"max_steps is too small for min_size={least} of table {self.table.name!r}: its {self.size} items take "
            f"{each:.1f} steps each, and there are {rows}; raise max_steps to {needed} or more, or make the table with "
            f"steps_per_item={math.ceil(each)}"
        )

    def reset(self) -> None:
        self._drop(self._keys[self._keys >= 0] % self.table.max_size)
        self.limiter.inserts = self.limiter.samples = self.limiter.deletes = 0
        self._number[:] = 0
        self._largest, self.starved = 0, False

    def check(self, priorities: Array) -> None:
        """Raise `UserError` for priorities that a selector does not accept."""
        good = self._sampler.accepts(priorities) & self._remover.accepts(priorities)
        if not good.all():
            raise UserError(
                f"priority={priorities[~good][0]} for table {self.table.name!r} must be a finite number of at least 0, "
                "and so must its power; give the absolute value of what it is computed from"
            )

    def check_windows(self, windows: Windows, writer: str, held: Container[int]) -> None:
        """Raise `UserError` unless every window lies in chunks that its writer holds, and its slices in the window."""
        if not windows.num_items:
            return
        chunks, table, own = self.chunks, self.table, windows.span - windows.lead
        ends = (windows.start + windows.length).max(axis=1)
        if not (
            (windows.base >= 0).all() and (windows.base < chunks.layout.rows).all() and (windows.lead >= 0).all()
            and (windows.lead <= table.lead).all() and (windows.start >= 0).all() and (windows.length >= 0).all()
            and (ends <= own).all() and (own >= 1).all() and (windows.span <= chunks.layout.rows).all()
        ):
            raise UserError(f"an item for table {table.name!r} lies outside the steps that {writer} wrote")
        for index, name in enumerate(chunks.layout.signature):
            if name not in table.signature and windows.length[:, index].any():
                raise UserError(f"column {name!r} is not in the signature of table {table.name!r}; leave it out")
        if any(chunk not in held for chunk in np.unique(chunks.spanned(windows.base, windows.span)).tolist()):
            raise UserError(
                f"an item for table {table.name!r} needs steps that {writer} no longer holds; give the writer a longer "
                "history"
            )

    def state(self) -> dict[str, Array]:
        """A copy of all records by place. The lock is held meanwhile, so it does nothing else.

        `next_key` is the next key of every place; of the `free` places, the last is taken first; the orders are
        `Selector.in_use` of both selectors, so that they continue exactly.
        """
        return {
            "keys": self._keys.copy(), "priorities": self._priorities.copy(), "number": self._number.copy(),
            "times_sampled": self._times_sampled.copy(), "next_key": self._next_key.copy(),
            "free": self._free[: self._num_free].copy(), "sampler_order": self._sampler.in_use(),
            "remover_order": self._remover.in_use(),
            **{f"windows/{name}": field.copy() for name, field in self._windows._asdict().items()},
        }

    def restore(self, state: dict[str, Array], alone: bool = False) -> None:
        """Restore a state `in_order` of a table of the same size; its windows refer to this table's chunks. `alone`: no
        client has outlived the previous service, which may have used keys after the checkpoint: all continues as it
        was."""
        places = state["keys"] % self.table.max_size
        windows = Windows(*(state[f"windows/{name}"] for name in Windows._fields))
        self._next_key[:] = state["next_key"] + (0 if alone else EPOCH * self.table.max_size)
        self._keys[places], self._priorities[places] = state["keys"], state["priorities"]
        self._times_sampled[places], self._number[places] = state["times_sampled"], state["number"]
        self._windows.put(places, windows)
        self.chunks.hold(self.chunks.spanned(windows.base, windows.span), self.chunks.by_items)
        self._free[: len(state["free"])] = state["free"]
        self._sampler.insert(state["sampler_order"], self._priorities[state["sampler_order"]])
        self._remover.insert(state["remover_order"], self._priorities[state["remover_order"]])
        self._grown()

    @property
    def past(self) -> list[int]:
        """What is known of its past size: the largest, and whether it is `starved`."""
        return [self._largest, int(self.starved)]

    @past.setter
    def past(self, known: list[int]) -> None:
        self._largest, self.starved = known[0], bool(known[1])

    def drawing(self) -> dict[str, Any]:
        """What drawing has changed since the items came: a table that gets them again can go on from there."""
        return {
            "priorities": self._priorities.copy(), "times_sampled": self._times_sampled.copy(),
            "samples": self.limiter.samples, "random": self.rng.bit_generator.state,
        }

    def draw_on(self, drawing: Mapping[str, Any]) -> None:
        """Continue as another table stood, whose items are at the same places."""
        here = np.flatnonzero(self._keys >= 0)
        self.update(self._keys[here], drawing["priorities"][here])
        self._times_sampled[:] = drawing["times_sampled"]
        self.limiter.samples = drawing["samples"]
        self.rng.bit_generator.state = drawing["random"]

    def _grown(self) -> None:
        self._largest = max(self._largest, self.size)
        self.starved = self.starved and self.size < self.limiter.min_size

    def _drop(self, places: Array) -> None:
        if not len(places):
            return
        windows = self._windows.pick(places)
        self._keys[places] = -1
        self._sampler.delete(places)
        self._remover.delete(places)
        self._free[self._num_free : self._num_free + len(places)] = places
        self.limiter.deletes += len(places)
        self.chunks.release(self.chunks.spanned(windows.base, windows.span), self.chunks.by_items)

    def _are_here(self, keys: Array) -> Array:
        here: Array = (keys >= 0) & (self._keys[keys % self.table.max_size] == keys)
        return here

    @property
    def _num_free(self) -> int:
        return self.table.max_size - self.size
