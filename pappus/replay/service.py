"""Tables over shared steps, behind one lock: whatever writes, samples or asks, from whichever thread, comes here.

    writer ──rows──▶ chunks ◀──rows── whoever sampled
       └──items──▶ table ──windows──▶ ┘

Rows never pass through the lock: a writer fills chunks that are its own until it says what is in them, and a sampled
batch holds its chunks while they are read. What happens under the lock costs microseconds a batch.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pappus.errors import RunError, UserError, closest
from pappus.replay.chunks import Chunks, Layout, plan
from pappus.replay.compression import Compress, Compression, DiscardableMemory
from pappus.replay.items import Drawn, Windows, joined
from pappus.replay.live_table import LiveTable
from pappus.replay.rate_limiters import RateLimiter
from pappus.replay.sources import rows_to_send
from pappus.replay.tables import Table
from pappus.types import Array, ArraySpec

CHUNK_LENGTH = 32
"""Rows of a chunk: one that is half used wastes little, and windows cross few."""
ALIVE_SECONDS = 0.5
"""How often somebody who waits looks whether the other side is still there."""
PATIENCE_SECONDS = 10.0
"""After so long a wait the log says why; and again after twice, four times as long."""

log = logging.getLogger("pappus.replay")


@dataclass
class Waiting:
    """Somebody whom a limiter, or a lack of room, keeps waiting."""

    who: str
    what: str
    table: str
    since: float


class Session:
    """What one client holds: chunks that it writes or may still refer to, and batches that it is reading."""

    def __init__(self, name: str, alive: Callable[[], bool] = lambda: True) -> None:
        self.name, self.alive = name, alive
        self.chunks: dict[int, None] = {}
        self.batches: dict[int, list[Array]] = {}


class Service:
    """Several tables whose items may share steps.

    All that waits takes `seconds`, after which it gives back what it has: None waits for as long as it takes.
    """

    def __init__(
        self, tables: Sequence[Table], max_steps: int | None = None, chunk_length: int = CHUNK_LENGTH, seed: int = 0,
        compress: Compress = (), allocate: Callable[[int], DiscardableMemory] | None = None,
    ) -> None:
        self.tables: dict[str, Table] = {table.name: table for table in tables}
        if not tables or len(self.tables) < len(tables):
            raise UserError("a service needs at least one table, and tables need different names")
        steps = max(table.max_size for table in tables) if max_steps is None else max_steps
        self.layout: Layout = plan(_union(tables), steps, max(1, min(chunk_length, steps)))
        if not compress:
            refuse_too_large(self.layout)
        allocate = allocate or (DiscardableMemory.allocate if compress else None)
        memory = allocate(self.layout.nbytes) if allocate else None
        self._chunks = Chunks(self.layout, None if memory is None else memory.array)
        self._compression: Compression | None = None
        if compress and memory is not None:
            self._compression = Compression(self._chunks, memory, compress, self._release_compressed)
            self._chunks.on_free = self._compression.forget
        seeds = np.random.SeedSequence(seed).generate_state(len(tables))
        self._live = {
            table.name: LiveTable(table, self._chunks, int(word)) for table, word in zip(tables, seeds, strict=True)
        }
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting: dict[int, Waiting] = {}
        self._numbers = itertools.count(1)

    @property
    def chunks(self) -> Chunks:
        """Where the rows are. Their bookkeeping belongs to the service."""
        return self._chunks

    def take_chunks(self, session: Session, count: int, seconds: float | None = None) -> Array:
        """Free chunks for a writer, who holds them until it gives them back; fewer than asked for means none.

        A table whose items stay when they were sampled makes room by removing some, as if it were full; otherwise one
        waits.
        """
        held = len(session.chunks) if seconds is None else 0  # who does not wait for ever may let go of them
        if count + held > self.layout.num_chunks:
            needed = (count + held) * self.layout.chunk_length
            raise UserError(
                f"{session.name} needs {needed} steps for its envs and their history alone, and there are "
                f"{self.layout.rows}; raise max_steps, or lower envs or history"
            )
        with self._lock:
            for _ in self._tries(session, "write steps", "", seconds):
                if self._chunks.num_free < count:
                    self._make_room(count)
                taken = self._chunks.take(count)
                if taken is not None:
                    session.chunks.update(dict.fromkeys(taken.tolist()))
                    return taken
        return np.zeros(0, np.int64)

    def give_back(self, session: Session, chunks: Array) -> None:
        """A writer will refer to these no more."""
        with self._lock:
            mine = np.array([chunk for chunk in chunks.tolist() if chunk in session.chunks], np.int64)
            for chunk in mine.tolist():
                del session.chunks[chunk]
            self._let_go(mine)

    def _let_go(self, chunks: Array) -> None:
        """A writer is done with chunks: they are compressed, or free unless items lie there."""
        if self._compression is None:
            self._chunks.release(chunks, self._chunks.by_writers)
        else:  # the writer's hold becomes that of the compression
            self._chunks.by_writers[chunks] -= 1
            self._compression.enqueue(chunks)
        self._tell()

    def unpacked(self, windows: Windows, columns: frozenset[str], lead: int) -> dict[str, Array]:
        """Of compressed columns, the rows of items (and `lead` before) that are held, one item behind the other."""
        if self._compression is None:
            return {}
        names = list(self.layout.signature)
        return {
            name: self._compression.rows(name, rows_to_send(self._chunks, windows, names.index(name), lead))
            for name in self._compression.columns if name in columns
        }

    def read(self, column: str, rows: Array) -> Array:
        """Rows of a column, of chunks that somebody holds."""
        if self._compression is not None and column in self._compression.columns:
            return self._compression.rows(column, rows)
        return self._chunks.columns[column].take(rows, axis=0)

    def settle(self) -> None:
        """Wait until what writers are done with is compressed."""
        if self._compression is not None:
            self._compression.settle()

    def _release_compressed(self, chunks: Array) -> None:
        with self._lock:
            self._chunks.release(chunks)
            self._tell()

    def link(self, session: Session, before: Array, after: Array) -> None:
        """Streams go on from one chunk in another; both are the session's."""
        with self._lock:
            for chunk in itertools.chain(before.tolist(), after.tolist()):
                if chunk not in session.chunks:
                    raise UserError(f"chunk {chunk} is not {session.name}'s to link")
            if before.shape != after.shape or (self._chunks.following[before] >= 0).any():
                raise UserError("a chunk is followed by one other, once and for all")
            self._chunks.following[before] = after

    def insert(
        self, session: Session, table: str, priorities: Array, windows: Windows, seconds: float | None = None
    ) -> Array:
        """Keys of the items that were inserted: all, or those for which time was enough."""
        live = self._table(table)
        priorities = np.asarray(priorities, np.float64)
        live.check(priorities)
        done: list[Array] = []
        position = 0
        with self._lock:
            self._check_windows(session, live.table, windows)
            for _ in self._tries(session, "insert", table, seconds):
                while count := min(live.limiter.inserts_now(windows.num_items - position), live.table.max_size):
                    piece = slice(position, position + count)
                    done.append(live.insert(priorities[piece], windows.pick(piece)))
                    position += count
                    self._tell()
                if position == windows.num_items:
                    break
        return np.concatenate(done) if done else np.zeros(0, np.int64)

    def sample(
        self, session: Session, table: str, count: int, seconds: float | None = None, partial: bool = True
    ) -> tuple[int, Drawn | None]:
        """Draw items and hold their steps until `done(number)`.

        A batch is drawn at once, unless the limiter's band or the table is too small for that: then it is drawn piece
        by piece. When time is up, None, or with `partial` whatever there is; a batch that was begun is never given up
        otherwise.
        """
        if count < 1:
            raise UserError(f"a batch of {count} items holds nothing; ask for 1 or more")
        live = self._table(table)
        parts: list[Drawn] = []
        missing, number = count, next(self._numbers)
        with self._lock:
            for last in self._tries(session, "sample", table, seconds, lambda: bool(parts) and not partial):
                while missing and (now := live.available(missing)) >= self._smallest(live, missing, last and partial):
                    parts.append(self._hold(session, number, live.sample(now)))
                    missing -= len(parts[-1].keys)
                    self._tell()
                if not missing:
                    break
        return number, joined(parts) if parts else None

    @staticmethod
    def _smallest(live: LiveTable, missing: int, anything: bool) -> float:
        """The smallest piece of a batch that is worth drawing now."""
        if anything:
            return 1
        whole = min(missing, live.limiter.largest_batch)
        if live.table.max_times_sampled == 1:  # there are never more items to take away
            return min(whole, live.table.max_size - live.limiter.min_size + 1)
        return whole

    def _hold(self, session: Session, number: int, drawn: Drawn) -> Drawn:
        """Note what was held for whoever asked, so that it is free again whatever becomes of them."""
        held = self._chunks.spanned(drawn.windows.base, drawn.windows.span)
        session.batches.setdefault(number, []).append(held)
        return drawn

    def done(self, session: Session, number: int) -> None:
        """A sampled batch was read."""
        with self._lock:
            for held in session.batches.pop(number, []):
                self._chunks.release(held)
            self._tell()

    def update(self, table: str, keys: Array, priorities: Array) -> int:
        """Change priorities; how many of the keys were still there."""
        with self._lock:
            changed = self._table(table).update(np.asarray(keys, np.int64), np.asarray(priorities, np.float64))
            self._tell()  # somebody may wait for a priority above 0
            return changed

    def delete(self, table: str, keys: Array) -> int:
        """Take items out; how many of the keys were still there."""
        with self._lock:
            deleted = self._table(table).delete(np.asarray(keys, np.int64))
            self._tell()
            return deleted

    def reset(self, table: str) -> None:
        """Empty a table and its limiter's counts."""
        with self._lock:
            self._table(table).reset()
            self._tell()

    def move_bounds(self, table: str, least: float | None, most: float | None, min_size: int | None) -> None:
        """Change a limiter while somebody may wait for it."""
        with self._lock:
            live = self._table(table)
            if min_size is not None and min_size > live.table.max_size:
                raise UserError(f"min_size={min_size} is more than table {table!r} can hold ({live.table.max_size})")
            live.limiter.move(least, most, min_size)
            self._tell()

    def weigh(self, table: str) -> tuple[float, int]:
        """What all items of a table weigh together, and how many there are; (0, 0) while none can be sampled."""
        with self._lock:
            live = self._table(table)
            return (live.mass, live.size) if live.available(1) else (0.0, 0)

    def info(self, table: str) -> dict[str, Any]:
        """Sizes and counts."""
        with self._lock:
            live = self._table(table)
            limiter: RateLimiter = live.limiter
            packed = {} if self._compression is None else {"packed_bytes": self._compression.nbytes}
            return {
                "size": live.size, "max_size": live.table.max_size, "inserts": limiter.inserts,
                "samples": limiter.samples, "deletes": limiter.deletes, "mass": live.mass,
                "steps": self._chunks.num_held * self.layout.chunk_length, "max_steps": self.layout.rows,
                "chunks": self._chunks.num_held, **packed,
            }

    def explain(self, table: str) -> str:
        """Who waits, for what, since when, and what would help; or that nobody does."""
        with self._lock:
            return self._explain(table)

    def _explain(self, table: str) -> str:
        now = time.monotonic()
        waits = [
            f"{wait.who} waits to {wait.what} for {now - wait.since:.1f} s"
            for wait in self._waiting.values() if wait.table in (table, "")
        ]
        text = f"table {table!r}: {self._table(table).explain()}"
        if self._chunks.num_free == 0:
            text += (
                f"; all {self.layout.rows} steps are taken, and writers wait until items go: sample them, delete them, "
                "or raise max_steps"
            )
        return "; ".join([text, *waits])

    def look_up(self) -> None:
        """Have all who wait look whether their client is still there."""
        with self._lock:
            self._changed.notify_all()

    def leave(self, session: Session) -> None:
        """A client is gone: what it held is free. Its items stay."""
        with self._lock:
            for held in itertools.chain(*session.batches.values()):
                self._chunks.release(held)
            self._let_go(np.array(list(session.chunks), np.int64))
            session.batches.clear()
            session.chunks.clear()
            self._tell()

    def adopt(self, chunks: Array) -> None:
        """Chunks that were taken for a restored table are their items' alone. To be called while standing still."""
        self._let_go(chunks)

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[dict[str, LiveTable]]:
        """All tables, while nothing changes: for a checkpoint, which must be quick about it."""
        with self._lock:
            yield self._live
            self._tell()

    def _tries(
        self, session: Session, what: str, table: str, seconds: float | None, go_on: Callable[[], bool] = lambda: False
    ) -> Iterator[bool]:
        """Yields whenever something changed, with the lock held; with True when time is up, and then no more.

        As long as `go_on` says so, time does not end.
        """
        began, number, patience = time.monotonic(), next(self._numbers), PATIENCE_SECONDS
        try:
            while True:
                left = float("inf") if seconds is None else began + seconds - time.monotonic()
                yield left <= 0
                if left <= 0 and not go_on():
                    return
                self._waiting[number] = Waiting(session.name, what, table, began)
                self._changed.wait(min(left, ALIVE_SECONDS) if left > 0 else ALIVE_SECONDS)
                if not session.alive():
                    raise RunError(f"{session.name} is gone")
                if time.monotonic() - began > patience:
                    patience *= 2
                    for name in [table] if table else self.tables:
                        log.warning("%s", self._explain(name))
        finally:
            self._waiting.pop(number, None)

    def _tell(self) -> None:
        if self._waiting:
            self._changed.notify_all()

    def _make_room(self, count: int) -> None:
        """Remove items where most are to spare, until there is room, or will be in a moment."""
        while self._chunks.num_free + self._chunks.num_promised < count:
            able = [live for live in self._live.values() if live.removable]
            if not able:
                return
            largest = max(able, key=lambda live: live.size - live.limiter.min_size)
            largest.remove(min(largest.removable, self.layout.chunk_length))

    def _table(self, name: str) -> LiveTable:
        if name not in self._live:
            names = list(self._live)
            raise UserError(f"there is no table {name!r}{closest(name, names)}; there are {', '.join(names)}")
        return self._live[name]

    def _check_windows(self, session: Session, table: Table, windows: Windows) -> None:
        """Raise `UserError` unless every window lies in chunks of the session's, and its slices in the window."""
        if not windows.num_items:
            return
        own = windows.span - windows.lead
        ends = (windows.start + windows.length).max(axis=1)
        if not (
            (windows.base >= 0).all() and (windows.base < self.layout.rows).all() and (windows.lead >= 0).all()
            and (windows.lead <= table.lead).all() and (windows.start >= 0).all() and (windows.length >= 0).all()
            and (ends <= own).all() and (own >= 1).all() and (windows.span <= self.layout.rows).all()
        ):
            raise UserError(f"an item for table {table.name!r} lies outside the steps that {session.name} wrote")
        foreign = [name for name in self.layout.signature if name not in table.signature]
        columns = list(self.layout.signature)
        for name in foreign:
            if windows.length[:, columns.index(name)].any():
                raise UserError(f"column {name!r} is not in the signature of table {table.name!r}; leave it out")
        for chunk in np.unique(self._chunks.spanned(windows.base, windows.span)).tolist():
            if chunk not in session.chunks:
                raise UserError(
                    f"an item for table {table.name!r} needs steps that {session.name} holds no more; give the writer "
                    "a longer history"
                )


def refuse_too_large(layout: Layout) -> None:
    """Raise `UserError` for chunks that this machine's memory cannot hold."""
    available = _available_memory()
    if available is not None and layout.nbytes > available:
        raise UserError(f"{projected(layout)}, and this machine has {available / 2**30:.1f} GiB left; lower max_steps")


def projected(layout: Layout) -> str:
    """What the chunks will take, as a sum."""
    return (
        f"{layout.rows:,} steps of {layout.step_bytes:,} bytes take {layout.nbytes / 2**30:.2f} GiB"
    )


def _available_memory() -> int | None:
    try:
        with open("/proc/meminfo") as lines:
            words = next(line for line in lines if line.startswith("MemAvailable")).split()
        return int(words[1]) * 1024
    except (OSError, StopIteration, ValueError):
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return None


def _union(tables: Sequence[Table]) -> dict[str, ArraySpec]:
    """All columns of all tables; one name means one thing."""
    columns: dict[str, ArraySpec] = {}
    for table in tables:
        for name, spec in table.signature.items():
            if columns.setdefault(name, spec) != spec:
                raise UserError(
                    f"column {name!r} is {columns[name].dtype}{list(columns[name].shape)} in one table and "
                    f"{spec.dtype}{list(spec.shape)} in {table.name!r}; tables of one service share their steps"
                )
    return columns
