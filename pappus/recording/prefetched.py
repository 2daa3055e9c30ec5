"""The learner's port of a replay edge between processes: a thread fetches batches ahead."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from pappus.errors import RunError
from pappus.experience import ItemBatch
from pappus.recording.direct import ReplaySpec, bytes_of
from pappus.recording.transitions import TABLE
from pappus.replay.clients.client import Client
from pappus.replay.sampling.kept_rows import KeptRows
from pappus.telemetry.metrics import Meter
from pappus.transports.memory import EventNotifier
from pappus.types import Array, Nest, leaves_of

RETRY_SECONDS = 0.1
"""Interval at which a lost service is tried again."""
GROUP_BYTES = 4 << 20
"""Small batches are fetched in groups of up to this size, since most of the cost is per request."""
AHEAD_BYTES = 128 << 20
"""Maximum bytes of batches that are ready, whatever `prefetch` says; two batches are always allowed."""


class PrefetchedSource:
    """The learner's port: a thread fetches batches ahead, small ones in groups; priorities return in groups, too.

    A group is at most half of what the rate limiter allows at a time: one that had to be drawn piece by piece would
    hold steps that writers may wait for. If the service is lost, the thread connects again.
    """

    name = "replay"

    def __init__(self, spec: ReplaySpec, connect: Callable[[], Client], meter: Meter) -> None:
        self._spec, self._connect, self._meter = spec, connect, meter
        self._batch_bytes = 0
        self._trajectory = spec.layout.trajectory()
        self._notifier = EventNotifier(*EventNotifier.descriptors())
        self.fileno, self.clear = self._notifier.fileno, self._notifier.clear
        self._ready: deque[ItemBatch] = deque()
        self._room = threading.Semaphore(spec.prefetch)
        self._together = 0
        """Batches per group; 0 before the size of a batch is known."""
        self._most_together = spec.table.rate_limiter.largest_batch / (2 * spec.batch_size)
        self._updates: list[tuple[int, Array, Array]] = []
        """Priorities to send: incarnation of the service, keys, and priorities of each batch."""
        self._client: Client | None = None
        self._life = 0
        """Incarnation of the service: counts connections."""
        self._closed = threading.Event()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def save(self) -> dict[str, Nest]:
        """Nothing: batches are drawn anew."""
        return {}

    def load(self, saved: Nest) -> None: ...

    def large_bytes(self) -> int:
        return self._spec.most_rows * sum(spec.nbytes for spec in self._spec.layout.large.values())

    def keep_rows(self) -> None:
        """Call it before the first batch is taken. Rows that cannot be read in place come as values all the same."""
        self._trajectory.kept = KeptRows(self._spec.layout.large)

    def take(self) -> ItemBatch | None:
        """The next batch; None if none is ready. The first call begins to fetch."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="replay batches")
            self._thread.start()
        if self._error is not None:
            raise self._error
        if not self._ready:
            self._send()  # a learner that waits must not delay its priorities
            return None
        self._room.release()
        batch = self._ready.popleft()
        self._meter.total += self._batch_bytes + sum(new.values.nbytes for new in batch.new_rows)
        return batch

    def update(self, batch: ItemBatch, priorities: Array) -> None:
        """Set new priorities for the items of a batch, in order; those for a lost service are dropped."""
        if not self._spec.table.uses_priorities:
            return
        self._updates.append((batch.service, batch.keys, priorities))
        if len(self._updates) >= self._together:
            self._send()

    def _send(self) -> None:
        client, life = self._client, self._life
        updates = [(keys, priorities) for service, keys, priorities in self._updates if service == life]
        self._updates.clear()
        if client is None or not updates:
            return
        keys, priorities = (np.concatenate(parts) for parts in zip(*updates, strict=True))
        try:
            client.update_priorities(TABLE, keys, priorities, wait=False)
        except RunError:
            client.close()  # the thread notices, and connects again

    def info(self) -> dict[str, Any]:
        """Sizes and counts of the table; nothing while the service is away."""
        with contextlib.suppress(RunError):
            if (client := self._client) is not None:
                return client.info(TABLE)
        return {}

    def explain(self) -> str:
        with contextlib.suppress(RunError):
            if (client := self._client) is not None:
                return client.explain(TABLE)
        return "the service is away"

    def close(self) -> None:
        """Stop fetching. Priorities that were not sent may be lost."""
        try:
            self._send()
        finally:
            self._closed.set()
            if self._client is not None:
                self._client.close()
            self._room.release(self._spec.prefetch)
            if self._thread is not None:
                self._thread.join(1.0)

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                try:
                    client = self._connect()
                    self._life += 1  # before the client is visible: it belongs to the new incarnation
                    if self._trajectory.kept is not None:
                        self._trajectory.kept.forget()
                    self._client = client
                    self._fetch(client)
                except RunError:  # the service is not there
                    self._client = None
                    self._closed.wait(RETRY_SECONDS)
        except BaseException as error:
            self._error = error
            self._notifier.notify()

    def _fetch(self, client: Client) -> None:
        while True:
            count = max(1, self._together)
            for _ in range(count):
                self._room.acquire()
            if self._closed.is_set():
                return
            try:
                drawn = client.sample(TABLE, self._spec.batch_size * count, self._trajectory)
                batches = [self._spec.item_batch(one)._replace(service=self._life) for one in drawn.parted(count)]
                if self._trajectory.kept is not None:
                    batches[0] = batches[0]._replace(new_rows=self._trajectory.kept.take_new())
            except BaseException:
                self._room.release(count)
                raise
            self._batch_bytes = self._batch_bytes or bytes_of(batches[0])
            self._ready.extend(batches)
            self._notifier.notify()
            if not self._together:
                self._settle(sum(getattr(leaf, "value_bytes", leaf.nbytes) for leaf in leaves_of(batches[0].items)))

    def _settle(self, size: int) -> None:
        """Choose how much to fetch at once and ahead, from the bytes of a batch: the same where its rows are kept,
        since the first batches bring nearly all of theirs."""
        ahead = max(2, min(self._spec.prefetch, AHEAD_BYTES // max(1, size)))
        for _ in range(self._spec.prefetch - ahead):
            self._room.acquire()
        self._together = max(1, int(min(ahead // 2, GROUP_BYTES // max(1, size), self._most_together)))
