"""Tables over shared steps, behind one lock. All threads that write, sample or ask call this.

    writer ──rows──▶ chunks ◀──rows── reader of a batch
       └──items──▶ table ──windows──▶ ┘

Rows never pass through the lock: a writer fills chunks that only it uses until it inserts items over them, and a
sampled batch holds its chunks while they are read. What happens under the lock takes microseconds per batch.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from pappus.errors import RunError, UserError
from pappus.replay.storage.chunks import Chunks, Drawn, Layout, Windows, plan, refuse_unknown
from pappus.replay.storage.compression import Compress, Compression, DiscardableMemory
from pappus.replay.storage.memory import refuse_too_large
from pappus.replay.storage.row_copies import rows_to_copy
from pappus.replay.tables.limits import ADMITTED, judge
from pappus.replay.tables.live_table import LiveTable
from pappus.replay.tables.table import Table, shared_signature
from pappus.types import Array

CHUNK_LENGTH = 32
"""Rows per chunk: small enough to waste little, large enough that windows cross few."""
ALIVE_SECONDS = 0.5
"""Interval at which a waiting call checks that its client is still alive."""
PATIENCE_SECONDS = 10.0
"""After this time the log explains a wait; again after twice and four times as long."""

Deed: TypeAlias = Literal["write steps", "insert", "sample"]
log = logging.getLogger("pappus.replay")
now = time.monotonic


class Deadline:
    """A time limit over several waits, from its creation on; None: no limit."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds, self._began = seconds, now()

    @property
    def waited(self) -> float:
        """Seconds since it began."""
        return now() - self._began

    @property
    def left(self) -> float | None:
        """Seconds left, 0 when time is up; None without a limit."""
        return None if self.seconds is None else max(0.0, self._began + self.seconds - now())


class Holder:
    """One client of a service and what it holds: chunks that it may still refer to, and batches that it reads."""

    def __init__(self, name: str, alive: Callable[[], bool] = lambda: True) -> None:
        self.name, self.alive = name, alive
        self.chunks: dict[int, None] = {}
        self.batches: dict[int, list[Array]] = {}
        self.complained_about = False
        """Whether the log says already that it sends what a table does not admit."""


class Wait:
    """A client that waits for a rate limiter, or (`table` is empty) for free steps."""

    def __init__(self, holder: Holder, what: Deed, table: str, seconds: float | None) -> None:
        self.holder, self.what, self.table, self.deadline = holder, what, table, Deadline(seconds)


class Witness(Protocol):
    """Is told what a service does with its tables: in order, under its lock, before a client can know of it."""

    def inserted(self, who: str, priorities: Array) -> None: ...

    def drawn(self, count: int, missing: int) -> None:
        """`missing`: items that the batch still lacks."""

    def updated(self, count: int) -> None: ...

    def evicted(self, count: int) -> None:
        """For lack of steps."""


class Service:
    """Several tables whose items may share steps.

    Calls that may wait take `seconds`, after which they return what they have; None waits without a limit. A service
    that compresses or shares its memory has a thread or a descriptor: `close` it, or use it in a `with`.
    """

    def __init__(
        self, tables: Sequence[Table], max_steps: int | None = None, chunk_length: int = CHUNK_LENGTH, seed: int = 0,
        compress: Compress = (), allocate: Callable[[int], DiscardableMemory] | None = None,
    ) -> None:
        self.tables: dict[str, Table] = {table.name: table for table in tables}
        if not tables or len(self.tables) < len(tables):
            raise UserError("a service needs at least one table, and tables need different names")
        steps = max(table.steps for table in tables) if max_steps is None else max_steps
        self.layout: Layout = plan(shared_signature(tables), steps, max(1, min(chunk_length, steps)))
        if not compress:
            refuse_too_large(self.layout)
        allocate = allocate or (DiscardableMemory.allocate if compress else None)
        self._memory: DiscardableMemory | None = allocate(self.layout.nbytes) if allocate else None
        self.chunks = Chunks(self.layout, None if self._memory is None else self._memory.array)
        """The rows. Only the service and its checkpoints change their reference counts."""
        self._closed = False
        self._compression: Compression | None = None
        if compress and self._memory is not None:
            self._compression = Compression(self.chunks, self._memory, compress, self._release_compressed)
            self.chunks.on_free = self._compression.forget
        seeds = np.random.SeedSequence(seed).generate_state(len(tables))
        self._live = {
            table.name: LiveTable(table, self.chunks, int(word)) for table, word in zip(tables, seeds, strict=True)
        }
        self.unclaimed = Holder("a writer from before the checkpoint")
        """Holds the steps of writers that have not come back since a checkpoint was loaded."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waits: dict[Wait, None] = {}
        self._waited: dict[str, float] = dict.fromkeys(self.tables, 0.0)
        """Seconds that samples of each table have waited, those that still wait left out."""
        self._numbers = itertools.count(1)
        self.witness: Witness | None = None

    def close(self) -> None:
        """End threads and waits, and drop the rows. Their memory is freed when no client maps it any more."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._tell()
            compression, self._compression = self._compression, None
            memory, self._memory = self._memory, None
        if compression is not None:
            compression.close()
        with self._lock:
            self.chunks.forget_rows()
        if memory is not None:
            memory.close()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def refuse_closed(self) -> None:
        """Raise `RunError` after `close`."""
        if self._closed:
            raise RunError("the replay service was closed; make another one")

    def take_chunks(self, holder: Holder, count: int, seconds: float | None = None) -> Array:
        """Take `count` chunks for a writer, which holds them until `give_back`; an empty array if time ran out.

        If none are free, tables that give way evict items, as if they were full; otherwise the call waits. It raises
        `UserError` where it would wait for ever: see `_refuse_standstill`.
        """
        held = len(holder.chunks) if seconds is None else 0  # with a time limit, the writer may release some
        if count + held > self.layout.num_chunks:
            needed = (count + held) * self.layout.chunk_length
            raise UserError(
                f"{holder.name} needs {needed} steps for its envs and their history alone, and there are "
                f"{self.layout.rows}; raise max_steps, or lower envs or history"
            )
        with self._lock:
            for _ in self._tries(holder, "write steps", "", seconds):
                if self.chunks.num_free < count:
                    self._make_room(count)
                taken = self.chunks.take(count)
                if taken is not None:
                    holder.chunks.update(dict.fromkeys(taken.tolist()))
                    return taken
                if seconds is None:
                    self._refuse_standstill(holder, count)
        return np.zeros(0, np.int64)

    def claim(self, holder: Holder, chunks: Array) -> None:
        """A writer of this thread continues from a checkpoint with the chunks that it held."""
        with self._lock:
            numbers = dict.fromkeys(chunks.tolist())
            if not numbers.keys() <= self.unclaimed.chunks.keys():
                raise UserError(f"{holder.name} held steps that the checkpoint of the tables lacks; begin a new one")
            for number in numbers:
                del self.unclaimed.chunks[number]
            holder.chunks.update(numbers)

    def _make_room(self, count: int) -> None:
        """Evict items from the table with the most to spare, until `count` chunks are free or about to be.

        A table that has never held `min_size` items would never open that way. If only such tables could give way,
        there are too few steps: clients would wait for ever, and the writer gets an error that says how many it takes.
        """
        while self.chunks.num_free + self.chunks.num_promised < count:
            closed, sampled = self._never_open(), self._waited_for("sample")
            if any(table.table.name in sampled for table in closed):
                problems = "; ".join(table.too_few_steps() for table in closed)
                raise UserError(f"a writer would wait forever: {problems}")
            giving = [table for table in self._live.values() if table.size and table.gives_way]
            if not giving:
                return
            most = max(giving, key=lambda table: table.size - table.limiter.min_size)
            evicted = min(most.size, self.layout.chunk_length)
            most.give_way(evicted)
            if self.witness is not None:
                self.witness.evicted(evicted)

    def _refuse_standstill(self, holder: Holder, count: int) -> None:
        """Raise `UserError` if writers that wait for steps hold all there are, and there is no item that could make
        room: then the last one to come is refused. What it holds is free as soon as it closes."""
        waiting = {wait.holder for wait in self._waits if wait.what == "write steps" and wait.deadline.seconds is None}
        held = sum(len(one.chunks) for one in waiting | {holder})
        chunks = self.chunks
        if chunks.by_items.any() or chunks.num_promised or held < np.count_nonzero(chunks.by_writers):
            return
        length = self.layout.chunk_length
        others = len(waiting - {holder})
        raise UserError(
            f"{holder.name} would wait forever: it and {others} other{'s' * (others != 1)} hold {held * length} of "
            f"{self.layout.rows} steps for their envs and histories, all wait for more, and no item could make room; "
            f"raise max_steps by {(count - chunks.num_free) * length} or more, or use fewer envs or shorter histories"
        )

    def _never_open(self) -> list[LiveTable]:
        """All tables with items, if none of them ever had enough to be sampled: then sampling frees nothing."""
        filled = [table for table in self._live.values() if table.size]
        return [] if any(table.was_open for table in filled) else filled

    def give_back(self, holder: Holder, chunks: Array) -> None:
        """Release chunks that a writer does not refer to any more."""
        with self._lock:
            mine = np.array([chunk for chunk in chunks.tolist() if chunk in holder.chunks], np.int64)
            for chunk in mine.tolist():
                del holder.chunks[chunk]
            self._let_go(mine)

    def _let_go(self, chunks: Array) -> None:
        """Queue chunks of a writer for compression, or release them."""
        if self._compression is None:
            self.chunks.release(chunks, self.chunks.by_writers)
        else:  # the writer's hold becomes that of the compression
            self.chunks.by_writers[chunks] -= 1
            self._compression.enqueue(chunks)
        self._tell()

    def unpacked(self, windows: Windows, columns: frozenset[str], lead: int) -> dict[str, Array]:
        """The rows of sampled items (and `lead` before) in compressed columns, one item after another."""
        compression = self._compression
        self.refuse_closed()  # after reading the attribute: `close` sets the flag before it removes the compression
        if compression is None:
            return {}
        names = list(self.layout.signature)
        return {
            name: compression.rows(name, rows_to_copy(self.chunks, windows, names.index(name), lead))
            for name in compression.columns if name in columns
        }

    def read(self, column: str, rows: Array) -> Array:
        """Rows of a column. Their chunks must be held."""
        compression, values = self._compression, self.chunks.columns.get(column)
        self.refuse_closed()
        assert values is not None
        if compression is not None and column in compression.columns:
            return compression.rows(column, rows)
        return values.take(rows, axis=0)

    def settle(self) -> None:
        if (compression := self._compression) is not None:
            compression.settle()

    def _release_compressed(self, chunks: Array) -> None:
        with self._lock:
            self.chunks.release(chunks)
            self._tell()

    def link(self, holder: Holder, before: Array, after: Array) -> None:
        """Note that chunks `after` continue chunks `before`; the holder holds both."""
        with self._lock:
            self.refuse_closed()
            for chunk in itertools.chain(before.tolist(), after.tolist()):
                if chunk not in holder.chunks:
                    raise UserError(f"chunk {chunk} cannot be linked, since {holder.name} does not hold it")
            if before.shape != after.shape or (self.chunks.following[before] >= 0).any():
                raise UserError("a chunk can be continued by one other only, and only once")
            self.chunks.following[before] = after

    def insert(
        self, holder: Holder, table: str, priorities: Array, windows: Windows, seconds: float | None = None
    ) -> Array:
        """Insert items and return their keys: of all, or of those that were inserted in time."""
        live, priorities = self._legal(holder, table, priorities, windows)
        return self._inserted(live, holder, priorities, windows, seconds)

    def insert_admitted(self, holder: Holder, table: str, priorities: Array, windows: Windows) -> None:
        """Insert the items whose values the table admits. The others are counted, and a `UserError` says what is wrong
        with them."""
        live, priorities = self._legal(holder, table, priorities, windows)
        judged = judge(live.table.limits, self.chunks, windows, live.table.lead) if live.table.limits else ADMITTED
        if not judged.complaint:
            self._inserted(live, holder, priorities, windows, None)
            return
        good = np.flatnonzero(judged.good)
        self._inserted(live, holder, priorities[good], windows.pick(good), None)
        refused = windows.num_items - len(good)
        with self._lock:
            live.refused += refused
        if not holder.complained_about:
            holder.complained_about = True
            log.warning("items of %s for table %r are refused: %s", holder.name, table, judged.complaint)
        raise UserError(f"{refused} of {windows.num_items} items for table {table!r} are refused: {judged.complaint}")

    def _legal(self, holder: Holder, table: str, priorities: Array, windows: Windows) -> tuple[LiveTable, Array]:
        """The table and the priorities, after a check that the items can be in it: over chunks that the client holds,
        and so until it gives them back."""
        live = self._table(table)
        priorities = np.asarray(priorities, np.float64)
        live.check(priorities)
        with self._lock:
            live.check_windows(windows, holder.name, holder.chunks)
        return live, priorities

    def _inserted(
        self, live: LiveTable, holder: Holder, priorities: Array, windows: Windows, seconds: float | None
    ) -> Array:
        done: list[Array] = []
        position = 0
        with self._lock:
            for _ in self._tries(holder, "insert", live.table.name, seconds):
                while count := min(live.limiter.inserts_now(windows.num_items - position), live.table.max_size):
                    piece = slice(position, position + count)
                    done.append(live.insert(priorities[piece], windows.pick(piece)))
                    position += count
                    if self.witness is not None:
                        self.witness.inserted(holder.name, priorities[piece])
                    self._tell()
                if position == windows.num_items:
                    break
        return np.concatenate(done) if done else np.zeros(0, np.int64)

    def sample(
        self, holder: Holder, table: str, count: int, seconds: float | None = None, partial: bool = True
    ) -> tuple[int, Drawn | None]:
        """Draw items and hold their steps until `done(number)`.

        A batch is drawn at once if the limiter's band and the table are large enough, and piece by piece otherwise.
        When time is up, returns None, or with `partial` what there is. A batch that was begun is always completed.
        """
        if count < 1:
            raise UserError(f"a batch of {count} items is empty; ask for 1 or more")
        live = self._table(table)
        parts: list[Drawn] = []
        missing, number = count, next(self._numbers)
        with self._lock:
            for last in self._tries(holder, "sample", table, seconds, lambda: bool(parts) and not partial):
                while missing and self._worth(live, now := live.available(missing), missing, last and partial):
                    # Noted, so that they are released even if the client disappears.
                    parts.append(live.sample(now, holder.batches.setdefault(number, [])))
                    missing -= len(parts[-1].keys)
                    if self.witness is not None:
                        self.witness.drawn(len(parts[-1].keys), missing)
                    self._tell()
                if not missing:
                    break
        return number, Drawn.joined(parts) if parts else None

    @staticmethod
    def _worth(live: LiveTable, available: int, missing: int, anything: bool) -> bool:
        """Whether to draw a piece of a batch now: all of it, or as much as there can ever be at a time."""
        if available == missing or not available:
            return available > 0
        if anything:
            return True
        most = live.limiter.largest_batch
        if live.table.max_times_sampled == 1:  # there are never more items to take away
            most = min(most, live.table.max_size - live.limiter.min_size + 1)
        return available >= most

    def done(self, holder: Holder, number: int) -> None:
        """Release a sampled batch."""
        with self._lock:
            for held in holder.batches.pop(number, []):
                self.chunks.release(held)
            self._tell()

    def update(self, table: str, keys: Array, priorities: Array) -> int:
        """Change priorities; returns how many of the items still exist."""
        with self._lock:
            changed = self._table(table).update(np.asarray(keys, np.int64), np.asarray(priorities, np.float64))
            if self.witness is not None:
                self.witness.updated(len(keys))
            self._tell()  # a sample may wait for a priority above 0
            return changed

    def delete(self, table: str, keys: Array) -> int:
        """Delete items; returns how many of them still existed."""
        with self._lock:
            deleted = self._table(table).delete(np.asarray(keys, np.int64))
            self._tell()
            return deleted

    def reset(self, table: str) -> None:
        with self._lock:
            self._table(table).reset()
            self._tell()

    def move_bounds(self, table: str, least: float | None, most: float | None, min_size: int | None) -> None:
        """Change the bounds of a rate limiter, while clients may wait for it."""
        with self._lock:
            live = self._table(table)
            if min_size is not None and min_size > live.table.max_size:
                raise UserError(f"min_size={min_size} is more than table {table!r} can hold ({live.table.max_size})")
            live.limiter.move(least, most, min_size)
            self._tell()

    def weigh(self, table: str) -> tuple[float, int]:
        """The total weight and the number of items; (0, 0) while none can be sampled."""
        with self._lock:
            live = self._table(table)
            return (live.mass, live.size) if live.available(1) else (0.0, 0)

    def info(self, table: str) -> dict[str, Any]:
        with self._lock:
            live = self._table(table)
            limiter = live.limiter
            packed = {} if self._compression is None else {"packed_bytes": self._compression.nbytes}
            return {
                "size": live.size, "max_size": live.table.max_size, "inserts": limiter.inserts,
                "samples": limiter.samples, "deletes": limiter.deletes, "refused": live.refused, "mass": live.mass,
                "samples_waited": self._waited[table] + self._still_wait(table),
                "steps": self.chunks.num_held * self.layout.chunk_length, "max_steps": self.layout.rows,
                "chunks": self.chunks.num_held, **packed,
            }

    def _still_wait(self, table: str) -> float:
        """Seconds so far of samples that wait now."""
        return sum(wait.deadline.waited for wait in self._waits if wait.what == "sample" and wait.table == table)

    def explain(self, table: str) -> str:
        """Which clients wait, for what, since when, and what would help; or that the table is open."""
        with self._lock:
            return self._explain(table)

    def _explain(self, table: str) -> str:
        live = self._table(table)
        texts = [f"table {table!r}: {live.explain()}"]
        free = self.chunks.num_free * self.layout.chunk_length
        full = not free or self._waited_for("write steps")
        if full:
            texts.append(
                f"all {self.layout.rows} steps {f'but {free} ' if free else ''}are taken, and writers wait until items "
                "go: sample them, delete them, or raise max_steps"
            )
        stuck = full and not self.chunks.num_promised and live in self._never_open()
        if (stuck or live.starved) and 0 < live.size < live.limiter.min_size:
            texts.append(live.too_few_steps())
        waits = (wait for wait in self._waits if wait.table in (table, ""))
        texts += [f"{wait.holder.name} waits to {wait.what} for {wait.deadline.waited:.1f} s" for wait in waits]
        return "; ".join(texts)

    def look_up(self) -> None:
        """Make all waiting calls check that their client is still alive."""
        with self._lock:
            self._tell()

    def leave(self, holder: Holder) -> None:
        """Release everything that a client holds. Its items stay."""
        with self._lock:
            for held in itertools.chain(*holder.batches.values()):
                self.chunks.release(held)
            self._let_go(np.array(list(holder.chunks), np.int64))
            holder.batches.clear()
            holder.chunks.clear()
            self._tell()

    def pack(self, chunks: Array) -> None:
        """Compress restored chunks at once, so that few are uncompressed at a time. Within `standing_still`."""
        if self._compression is not None:
            self._compression.pack(chunks)

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[dict[str, LiveTable]]:
        """All tables, under the lock: for checkpoints, which must be quick."""
        with self._lock:
            self.refuse_closed()
            yield self._live
            self._tell()

    def _tries(
        self, holder: Holder, what: Deed, table: str, seconds: float | None, go_on: Callable[[], bool] = lambda: False
    ) -> Iterator[bool]:
        """Yield whenever something changed: False, or True for the last time when time is up.

        While `go_on` returns True, time does not run out. A long wait is logged with the table's explanation.
        """
        self.refuse_closed()
        last = seconds is not None and seconds <= 0
        yield last
        wait, patience = Wait(holder, what, table, seconds), PATIENCE_SECONDS
        self._waits[wait] = None
        try:
            while not last or go_on():
                left = wait.deadline.left
                self._changed.wait(ALIVE_SECONDS if last or left is None else min(left, ALIVE_SECONDS))
                if not holder.alive():
                    raise RunError(f"{holder.name} has disconnected")
                if wait.deadline.waited > patience:
                    patience *= 2
                    for name in [table] if table else self.tables:
                        log.warning("%s", self._explain(name))
                self.refuse_closed()
                last = wait.deadline.left == 0
                yield last
        finally:
            self._waits.pop(wait, None)
            if what == "sample":
                self._waited[table] += wait.deadline.waited

    def _tell(self) -> None:
        """Wake all waiting calls: something changed."""
        if self._waits:
            self._changed.notify_all()

    def _waited_for(self, what: Deed) -> set[str]:
        """The tables for which a client waits to do `what`."""
        return {wait.table for wait in self._waits if wait.what == what}

    def _table(self, name: str) -> LiveTable:
        self.refuse_closed()
        refuse_unknown("table", name, self._live)
        return self._live[name]
