"""A replay table that does what a traced one did, in the same order.

    actor ──items──▶ waiting ──┐                     ┌──▶ batches ──▶ learner
                               ├── next entry … ─────┤
    learner ──priorities──▶ waiting ──┘              └──▶ items, priorities of the table

An entry is carried out as soon as what it needs is there. Batches are drawn when the trace says, not when the learner
asks: in the run they were fetched ahead.
"""

from __future__ import annotations

import dataclasses
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from pappus.experience import ItemBatch
from pappus.recording.direct import RecordingSink, ReplaySpec
from pappus.recording.transitions import TABLE
from pappus.replay.clients.client import DirectSession
from pappus.replay.clients.writer import TrajectoryWriter
from pappus.replay.service.service import Holder
from pappus.replay.storage.chunks import Drawn, Windows
from pappus.telemetry.metrics import Meter
from pappus.trace import log as entries
from pappus.trace.log import Life, TraceEnded, TraceError
from pappus.types import Array

SPARE = 2
"""Times the steps of the run's table that there is room for: who holds steps for how long depends on time, and items
are evicted for lack of them only where the trace says so. Memory that is not used is not taken."""


class ReplayedTable:
    """The service of a replay edge, driven by its trace."""

    def __init__(self, spec: ReplaySpec, life: Life, lives: Mapping[str, Life]) -> None:
        self.spec = dataclasses.replace(spec, max_steps=SPARE * spec.max_steps)
        self.service = self.spec.service()
        self.life, self._lives = life, lives
        self._writers: dict[str, ReplayedSession] = {}
        self._learner, self._trajectory = Holder("learner"), spec.layout.trajectory()
        self._parts: list[Drawn] = []
        self._numbers: list[int] = []
        self.batches: deque[ItemBatch] = deque()
        self.updates: deque[tuple[Array, Array]] = deque()
        """Priorities of batches that the run's table had not got yet."""
        self.inserts = dict.fromkeys(lives, 0)
        """Entries of every life that are still to come."""
        for who, *_ in life.all(entries.INSERT):
            if who not in self.inserts:
                raise TraceError(f"{who} inserted items, and there is no {who}.log; the trace is not whole")
            self.inserts[who] += 1

    def writer(self, life: Life, envs: int, history: int) -> TrajectoryWriter:
        self._writers[life.key] = ReplayedSession(self, life.name)
        return TrajectoryWriter(self._writers[life.key], envs, history, 1)

    def advance(self) -> None:
        """Carry out all entries that can be carried out now."""
        try:
            while self._carry_out(*self.life.peek(entries.INSERT, entries.DRAW, entries.UPDATE, entries.EVICT)):
                pass
        except TraceEnded:
            return

    def _carry_out(self, what: str, values: list[str]) -> bool:
        """Carry out the next entry; False while something that it needs is missing."""
        if what == entries.INSERT:
            done = self._insert(values[0], int(values[1]), int(values[2]))
        else:
            deeds: dict[str, Callable[..., bool]] = {
                entries.DRAW: self._draw, entries.UPDATE: self._update, entries.EVICT: self._evict,
            }
            done = deeds[what](*map(int, values))
        if done:
            self.life.skip()
        return done

    def _insert(self, who: str, count: int, crc: int) -> bool:
        session = self._writers.get(who)
        if session is None or not session.items:
            return False
        priorities = session.items[0][0]
        if len(priorities) < count or zlib.crc32(priorities[:count].data) != crc:
            raise TraceError(
                f"{self._lives[who].name} made other items than in the run (their priorities differ): its env is not "
                "deterministic, or not the one of the run; pappus check-env tells whether it repeats itself"
            )
        session.insert_now(count)
        self.inserts[who] -= 1
        return True

    def _draw(self, count: int, missing: int) -> bool:
        number, drawn = self.service.sample(self._learner, TABLE, count, 0.0)
        if drawn is None or len(drawn.keys) != count:
            raise TraceError(f"replay drew {count} items in the run, and cannot here: {self.service.explain(TABLE)}")
        self._parts.append(drawn)
        self._numbers.append(number)
        if not missing:
            self._finish_group()
        return True

    def _finish_group(self) -> None:
        """Batches that were fetched together know the size that the table had when the last item was drawn."""
        lead = self.service.tables[TABLE].lead
        group = self._trajectory.evaluate(Drawn.joined(self._parts), self.service.chunks, lead)
        for part in group.parted(len(group.keys) // self.spec.batch_size):
            self.batches.append(self.spec.item_batch(part))
        for number in self._numbers:
            self.service.done(self._learner, number)
        self._parts, self._numbers = [], []

    def _update(self, count: int) -> bool:
        keys: list[Array] = []
        priorities: list[Array] = []
        while sum(map(len, keys)) < count:
            if len(keys) == len(self.updates):
                return False
            for into, part in zip((keys, priorities), self.updates[len(keys)], strict=True):
                into.append(part)
        for _ in keys:
            self.updates.popleft()
        self.service.update(TABLE, np.concatenate(keys), np.concatenate(priorities))
        return True

    def _evict(self, count: int) -> bool:
        with self.service.standing_still() as tables:
            tables[TABLE].give_way(count)
        return True


class ReplayedSession(DirectSession):
    """What one life of an actor writes. Items wait until the trace has them inserted."""

    def __init__(self, table: ReplayedTable, name: str) -> None:
        super().__init__(table.service, name)
        self._table = table
        self.items: deque[tuple[Array, Windows]] = deque()

    def insert(self, table: str, priorities: Array, windows: Windows) -> None:
        self.items.append((priorities, windows))

    def insert_now(self, count: int) -> None:
        """Insert the oldest `count` items, which were created together."""
        priorities, windows = self.items.popleft()
        self._service.insert(self._holder, TABLE, priorities[:count], windows.pick(slice(count)), 0.0)
        if count < len(priorities):
            self.items.appendleft((priorities[count:], windows.pick(slice(count, None))))

    def give_back(self, chunks: Array) -> None:
        self._left.append(chunks)
        self.flush(0.0)

    def flush(self, seconds: float | None) -> bool:
        self._table.advance()
        if self.items:
            return False
        while self._left:
            self._service.give_back(self._holder, self._left.pop(0))
        return True


class ReplayedReplay:
    """A replay edge, as one life of a role meets it. It is the port of the learner."""

    name = "replay"

    def __init__(self, table: ReplayedTable, life: Life, about_to_update: Callable[[], None]) -> None:
        self._table, self._life, self._about_to_update, self.meter = table, life, about_to_update, Meter()

    def sink(self, envs: int) -> RecordingSink:
        table, life = self._table, self._life
        life.spent.append(lambda: not table.inserts[life.key])
        return RecordingSink(table.spec, envs, partial(table.writer, life), self.meter)

    def source(self) -> ReplayedReplay:
        return self

    def take(self) -> ItemBatch | None:
        self._table.advance()
        if not self._table.batches:
            return None
        self._about_to_update()
        return self._table.batches.popleft()

    def update(self, batch: ItemBatch, priorities: Array) -> None:
        if self._table.spec.table.uses_priorities:
            self._table.updates.append((batch.keys, priorities))

    def large_bytes(self) -> int:
        return 0

    def keep_rows(self) -> None: ...

    def info(self) -> dict[str, Any]:
        return self._table.service.info(TABLE)

    def explain(self) -> str:
        return f"the next entry of replay's trace is {self._table.life.upcoming()!r}"

    def fileno(self) -> int:
        return -1

    def clear(self) -> None: ...

    def close(self) -> None: ...
