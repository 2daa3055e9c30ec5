"""The client: the same for a service in this process, in another process, or on another machine."""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from pappus.errors import UserError
from pappus.replay.clients.sampler import Sampler, sample_through
from pappus.replay.clients.session import Held, Session
from pappus.replay.clients.writer import TrajectoryWriter
from pappus.replay.sampling.fields import Batch, Trajectory
from pappus.replay.service.service import Deadline, Holder, Service
from pappus.replay.storage.chunks import Layout, Windows
from pappus.replay.storage.row_copies import RowCopies
from pappus.replay.tables.table import Table
from pappus.types import Array

LONGEST_SECONDS = 1e6
"""The longest time limit that a lock accepts."""
MOST_WAITING = 2
"""Groups of items that may wait for a rate limiter before `insert` blocks. A step of a recorder creates up to two; it
checks before each step that none wait, and must not block within one, since its thread may be the one that samples."""


class Client:
    """Reads and writes tables. Created by `of`, or by `connect` for a service in another process.

    `open_session` opens a session; every writer and sampler has its own.
    """

    def __init__(self, open_session: Callable[[], Session]) -> None:
        self._open_session = open_session
        self._session, self._lock = open_session(), threading.Lock()
        # Samples have a session of their own: `explain` must work while they wait.
        self._sampling, self._sampling_lock = open_session(), threading.Lock()

    @classmethod
    def of(cls, service: Service) -> Client:
        """A client of a service in this process."""
        return cls(lambda: DirectSession(service))

    @property
    def tables(self) -> Mapping[str, Table]:
        """The tables by name."""
        return self._session.tables

    @property
    def layout(self) -> Layout:
        """The columns, and the number of steps that they hold."""
        return self._session.layout

    def writer(self, envs: int | None = None, history: int = 128, max_pending: int = 1) -> TrajectoryWriter:
        """A writer for one env, or for `envs` envs in parallel. Its items can refer to the last `history` steps."""
        return TrajectoryWriter(self._open_session(), envs, history, max_pending)

    def sample(
        self, table: str, count: int, trajectory: Trajectory | None = None, timeout: float | None = None
    ) -> Batch:
        """Draw `count` items and evaluate the fields of a trajectory; without one, return all columns.

        Waits for the rate limiter. After `timeout` seconds it returns the items that it got, or raises a `TimeoutError`
        that explains the wait; without a timeout, long waits are explained in the log.
        """
        deadline = Deadline(timeout)
        if not self._sampling_lock.acquire(timeout=-1 if timeout is None else min(max(timeout, 0.0), LONGEST_SECONDS)):
            raise TimeoutError(
                f"nothing could be sampled in {timeout:g} s, since another thread samples with this client; give each "
                "thread a client or a sampler of its own"
            )
        try:
            return sample_through(self._sampling, table, count, trajectory, deadline)
        finally:
            self._sampling_lock.release()

    def try_sample(self, table: str, count: int, trajectory: Trajectory) -> Batch | None:
        """Draw `count` items now, or return None if the rate limiter does not allow that."""
        with self._sampling_lock:
            held = self._sampling.sample(table, count, trajectory.columns, trajectory.lead, 0.0, False)
            if held is None:
                return None
            try:
                return trajectory.evaluate(held.drawn, held.source, self.tables[table].lead)
            finally:
                self._sampling.done(held)

    def sampler(self, table: str, count: int, trajectory: Trajectory | None = None, prefetch: int = 2) -> Sampler:
        """An iterator over batches. Two sessions, each with its own thread, fetch `prefetch` of them ahead.

        With `prefetch=16` each session fetches 8 batches per request, which is faster for small items.
        """
        if prefetch < 1:
            raise UserError(f"prefetch={prefetch} must be at least 1")
        sessions = [self._open_session() for _ in range(min(2, prefetch))]
        together = prefetch // len(sessions)
        return Sampler(
            [partial(sample_through, session, table, count * together, trajectory) for session in sessions],
            [session.close for session in sessions], together,
        )

    def update_priorities(self, table: str, keys: Array, priorities: Array, wait: bool = True) -> int:
        """Change priorities; returns how many of the items still exist. The last one counts if a key occurs twice.

        Without `wait`, changes are sent in order, and their errors are raised by a later call.
        """
        with self._lock:
            return self._session.update(table, np.asarray(keys, np.int64), np.asarray(priorities, np.float64), wait)

    def delete(self, table: str, keys: Array) -> int:
        """Delete items; returns how many of them still existed."""
        with self._lock:
            return self._session.delete(table, np.asarray(keys, np.int64))

    def reset(self, table: str) -> None:
        """Delete all items of a table and reset its counts."""
        with self._lock:
            self._session.reset(table)

    def move_bounds(
        self, table: str, least: float | None = None, most: float | None = None, min_size: int | None = None
    ) -> None:
        """Change the bounds of a table's rate limiter."""
        with self._lock:
            self._session.move_bounds(table, least, most, min_size)

    def weigh(self, table: str) -> tuple[float, int]:
        """The total weight and the number of items of a table; (0, 0) while none can be sampled."""
        with self._lock:
            return self._session.weigh(table)

    def info(self, table: str) -> dict[str, Any]:
        """Sizes and counts of a table."""
        with self._lock:
            return self._session.info(table)

    def explain(self, table: str) -> str:
        """Which clients wait, for what, since when, and what would help."""
        with self._lock:
            return self._session.explain(table)

    def checkpoint(self, path: str) -> str:
        """Make the service write all tables to a folder while it runs; returns the folder."""
        with self._lock:
            return self._session.checkpoint(path)

    def close(self) -> None:
        """Close the sessions, even if calls wait in them."""
        self._session.close()
        self._sampling.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class DirectSession:
    """A session with a service in this process."""

    def __init__(self, service: Service, name: str = "this process") -> None:
        service.refuse_closed()
        # No reference cycle: the memory of a service that is no longer used is freed at once.
        closed = self._closed = threading.Event()
        self._service, self._holder = service, Holder(name, lambda: not closed.is_set())
        self.layout, self.tables, self.columns = service.layout, service.tables, service.chunks.columns
        self._source = copy.copy(service.chunks)  # a batch can still be read after `Service.close`
        self.take_chunks, self.link = partial(service.take_chunks, self._holder), partial(service.link, self._holder)
        self.delete, self.reset, self.move_bounds = service.delete, service.reset, service.move_bounds
        self.weigh, self.info, self.explain = service.weigh, service.info, service.explain
        self._waiting: deque[tuple[str, Array, Windows]] = deque()
        """Items that wait for a rate limiter."""
        self._left: list[Array] = []
        """Chunks to give back once these items are inserted."""

    def give_back(self, chunks: Array) -> None:
        if self._left:  # a recorder gives back at most one block per step
            self.flush(None)
        self._left.append(chunks)
        self.flush(0.0)

    def publish(self, chunks: Array, begin: int, end: int) -> None: ...

    def insert(self, table: str, priorities: Array, windows: Windows) -> None:
        if len(self._waiting) >= MOST_WAITING:
            self.flush(None)
        self._waiting.append((table, priorities, windows))
        self.flush(0.0)

    def flush(self, seconds: float | None) -> bool:
        deadline = Deadline(seconds)
        while self._waiting:
            table, priorities, windows = self._waiting[0]
            try:
                done = len(self._service.insert(self._holder, table, priorities, windows, deadline.left))
            except UserError:  # these can never be inserted; later ones may
                self._waiting.popleft()
                raise
            if done < windows.num_items:
                rest = slice(done, None)
                self._waiting[0] = (table, priorities[rest], windows.pick(rest))
                return False
            self._waiting.popleft()
        while self._left:
            self._service.give_back(self._holder, self._left.pop(0))
        return True

    def sample(
        self, table: str, count: int, columns: frozenset[str], lead: int, seconds: float, partial: bool
    ) -> Held | None:
        number, drawn = self._service.sample(self._holder, table, count, seconds, partial)
        if drawn is None:
            return None
        copied = self._service.unpacked(drawn.windows, columns, lead)
        if not copied:
            return Held(number, drawn, self._source)
        return Held(number, drawn, RowCopies(copied, drawn.windows, list(self.columns), lead, self._source))

    def done(self, held: Held) -> None:
        self._service.done(self._holder, held.number)

    def update(self, table: str, keys: Array, priorities: Array, wait: bool) -> int:
        return self._service.update(table, keys, priorities)

    def checkpoint(self, path: str) -> str:
        from pappus.replay.service.checkpoint import save

        return str(save(self._service, path))

    def save(self) -> dict[str, Any]:
        waiting = [[table, priorities, list(windows)] for table, priorities, windows in self._waiting]
        return {"waiting": waiting, "left": list(self._left)}

    def load(self, saved: dict[str, Any], chunks: Array) -> None:
        self._service.claim(self._holder, np.concatenate([chunks, *saved["left"]]))
        self._waiting = deque((table, priorities, Windows(*windows)) for table, priorities, windows in saved["waiting"])
        self._left = list(saved["left"])

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self._closed.set()
        self._service.leave(self._holder)
