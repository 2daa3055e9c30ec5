"""The client: the same for a service in this process, in another one on this machine, or on another machine."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from pappus.errors import UserError, closest
from pappus.replay.access import Access, DirectAccess, Held
from pappus.replay.chunks import Layout
from pappus.replay.deadlines import Deadline
from pappus.replay.items import Drawn
from pappus.replay.service import Service
from pappus.replay.tables import Table
from pappus.replay.trajectories import Trajectory, whole
from pappus.replay.trajectory_writer import TrajectoryWriter
from pappus.types import Array

PATIENCE_SECONDS = 10.0
"""After so long a wait one is told why."""

LONGEST_SECONDS = 1e6
"""Longer than anybody waits, and not too long for a lock."""

CLOSE_SECONDS = 0.2
"""How soon somebody who waits for a batch sees that the sampler was closed."""

log = logging.getLogger("pappus.replay")


class Batch(NamedTuple):
    """Sampled items: the fields of the trajectory, what was drawn and how likely it was, and the fields' dimensions."""

    data: dict[str, Array]
    info: Drawn
    dims: dict[str, tuple[str, ...]]

    @property
    def keys(self) -> Array:
        return self.info.keys

    def weights(self, beta: float) -> Array:
        """Importance weights (size · probability)^−β, the largest of which is 1 (Schaul et al. 2015)."""
        weights = (self.info.table_size * self.info.probabilities) ** -beta
        scaled: Array = (weights / weights.max()).astype(np.float32)
        return scaled


class Client:
    """Reads and writes tables. Made by `of`, or by `connect` for a service that is elsewhere.

    `open_access` makes one more session; a writer and a sampler have sessions of their own.
    """

    def __init__(self, open_access: Callable[[], Access]) -> None:
        self._open_access = open_access
        self._access, self._lock = open_access(), threading.Lock()
        # Samples may wait: they have a session of their own, so that one can ask why.
        self._sampling, self._sampling_lock = open_access(), threading.Lock()

    @classmethod
    def of(cls, service: Service) -> Client:
        """For a service in this process."""
        return cls(lambda: DirectAccess(service))

    @property
    def tables(self) -> Mapping[str, Table]:
        """The tables by their names."""
        return self._access.tables

    @property
    def layout(self) -> Layout:
        """The columns, and how many steps they hold."""
        return self._access.layout

    def writer(self, envs: int | None = None, history: int = 128, max_pending: int = 1) -> TrajectoryWriter:
        """A writer for one env, or for `envs` side by side, that can refer to the last `history` steps."""
        return TrajectoryWriter(self._open_access(), envs, history, max_pending)

    def sample(
        self, table: str, count: int, trajectory: Trajectory | None = None, timeout: float | None = None
    ) -> Batch:
        """Draw `count` items and shape them; every column as it is without a trajectory.

        Waits for the limiter. After `timeout` seconds it returns the items that it got, or raises `TimeoutError`, which
        says what it waited for; without a timeout it says so in the log, every now and then.
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
        """All `count` items at once, or None if the limiter does not allow so many now."""
        with self._sampling_lock:
            held = self._sampling.sample(table, count, trajectory.columns, trajectory.lead, 0.0, False)
            return None if held is None else _shaped(self._sampling, table, trajectory, held)

    def sampler(
        self, table: str, count: int, trajectory: Trajectory | None = None, prefetch: int = 2
    ) -> Sampler:
        """Batches without end, `prefetch` of them fetched ahead by two sessions, each with a thread of its own.

        With `prefetch=16` each fetches 8 batches at a time, which small items are the faster for.
        """
        if prefetch < 1:
            raise UserError(f"prefetch={prefetch} fetches nothing; use 1 or more")
        accesses = [self._open_access() for _ in range(min(2, prefetch))]
        together = prefetch // len(accesses)
        return Sampler(
            [partial(sample_through, access, table, count * together, trajectory) for access in accesses],
            [access.close for access in accesses], together,
        )

    def update_priorities(self, table: str, keys: Array, priorities: Array, wait: bool = True) -> int:
        """Change priorities; how many items were still there. Of a key that comes twice the last one counts.

        Without `wait` the changes are on their way, in order, and what is wrong with them is said later.
        """
        with self._lock:
            return self._access.update(table, np.asarray(keys, np.int64), np.asarray(priorities, np.float64), wait)

    def delete(self, table: str, keys: Array) -> int:
        """Take items out; how many were still there."""
        with self._lock:
            return self._access.delete(table, np.asarray(keys, np.int64))

    def reset(self, table: str) -> None:
        """Empty a table, and begin to count afresh."""
        with self._lock:
            self._access.reset(table)

    def move_bounds(
        self, table: str, least: float | None = None, most: float | None = None, min_size: int | None = None
    ) -> None:
        """Change a limiter's bounds while it runs."""
        with self._lock:
            self._access.move_bounds(table, least, most, min_size)

    def weigh(self, table: str) -> tuple[float, int]:
        """What a table's items weigh together, and how many there are; (0, 0) while none can be sampled."""
        with self._lock:
            return self._access.weigh(table)

    def info(self, table: str) -> dict[str, Any]:
        """Sizes and counts of a table."""
        with self._lock:
            return self._access.info(table)

    def explain(self, table: str) -> str:
        """Who waits, for what, since when, and what would help."""
        with self._lock:
            return self._access.explain(table)

    def checkpoint(self, path: str) -> str:
        """Have the service write all tables into a folder, while it goes on; where they are."""
        with self._lock:
            return self._access.checkpoint(path)

    def close(self) -> None:
        """End the sessions, also those that wait."""
        self._access.close()
        self._sampling.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def parted(batch: Batch, parts: int) -> list[Batch]:
    """A batch as several, of as many items each; they share its memory."""
    if parts == 1:
        return [batch]
    bounds = [len(batch.keys) * i // parts for i in range(parts + 1)]
    return [_part(batch, slice(begin, end)) for begin, end in itertools.pairwise(bounds)]


def _part(batch: Batch, items: slice) -> Batch:
    data = {
        name: array[(*[slice(None)] * batch.dims[name].index("batch"), items)] for name, array in batch.data.items()
    }
    info = batch.info
    drawn = info._replace(
        keys=info.keys[items], probabilities=info.probabilities[items], priorities=info.priorities[items],
        times_sampled=info.times_sampled[items], ages=info.ages[items], windows=info.windows.pick(items),
    )
    return Batch(data, drawn, batch.dims)


def sample_through(
    access: Access, table: str, count: int, trajectory: Trajectory | None, deadline: Deadline | None = None
) -> Batch:
    """One batch by way of an access."""
    if table not in access.tables:
        names = list(access.tables)
        raise UserError(f"there is no table {table!r}{closest(table, names)}; there are {', '.join(names)}")
    shape = trajectory or whole(access.tables[table].signature)
    for name in shape.columns:
        if name not in access.layout.signature:
            names = list(access.layout.signature)
            raise UserError(f"there is no column {name!r}{closest(name, names)}; there are {', '.join(names)}")
    if shape.lead > access.tables[table].lead:
        raise UserError(
            f"a stack looks {shape.lead} steps back, and table {table!r} keeps lead={access.tables[table].lead} with "
            f"its items; make the table with lead={shape.lead}"
        )
    return _shaped(access, table, shape, _wait_for_items(access, table, count, shape, deadline or Deadline(None)))


def _shaped(access: Access, table: str, shape: Trajectory, held: Held) -> Batch:
    """The fields of items that are held, which are let go then."""
    try:
        data = shape.evaluate(held.drawn.windows, held.source, access.tables[table].lead)
    finally:
        access.done(held)
    return Batch(
        {name: value.array for name, value in data.items()}, held.drawn,
        {name: value.dims for name, value in data.items()},
    )


def _wait_for_items(access: Access, table: str, count: int, shape: Trajectory, deadline: Deadline) -> Held:
    while True:
        left = deadline.left
        last = left is not None and left <= PATIENCE_SECONDS
        seconds = left if left is not None and last else PATIENCE_SECONDS
        held = access.sample(table, count, shape.columns, shape.lead, seconds, last)
        if held is not None:
            return held
        if last:
            raise TimeoutError(f"nothing could be sampled in {deadline.seconds:g} s; {access.explain(table)}")
        log.warning("sampling waits since %.0f s; %s", deadline.waited, access.explain(table))


class Sampler:
    """Batches without end, fetched ahead. Iterate over it; `close` it, or use it in a `with`."""

    def __init__(
        self, fetch: Sequence[Callable[[], Batch]], close: Sequence[Callable[[], None]], together: int = 1
    ) -> None:
        """Each of `fetch` brings so many batches `together`."""
        if not fetch:
            raise UserError("prefetch=0 fetches nothing; use 1 or more")
        self._together = together
        self._ready: queue.Queue[Batch] = queue.Queue(maxsize=1)
        self._error: BaseException | None = None
        self._close = close
        self._closed = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(one,), daemon=True) for one in fetch]
        for thread in self._threads:
            thread.start()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        while not self._closed.is_set():
            if self._error is not None:
                raise self._error
            try:
                return self._ready.get(timeout=CLOSE_SECONDS)
            except queue.Empty:
                continue
        raise StopIteration

    def close(self) -> None:
        """Stop fetching; batches that were fetched and not taken are lost."""
        self._closed.set()
        for close in self._close:
            close()
        for thread in self._threads:
            thread.join(CLOSE_SECONDS)

    def __enter__(self) -> Sampler:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _run(self, fetch: Callable[[], Batch]) -> None:
        """In a thread: an error ends it, and is raised where the next batch is asked for."""
        try:
            while not self._closed.is_set():
                for batch in parted(fetch(), self._together):
                    self._offer(batch)
        except BaseException as error:
            self._error = error

    def _offer(self, batch: Batch) -> None:
        while not self._closed.is_set():
            try:
                self._ready.put(batch, timeout=CLOSE_SECONDS)
                return
            except queue.Full:
                continue
