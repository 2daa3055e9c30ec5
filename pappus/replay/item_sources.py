"""A learner's end of a replay edge: batches of items, and their new priorities on the way back."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from pappus.errors import RunError
from pappus.experience import ItemBatch
from pappus.replay.client import Batch, Client, parted
from pappus.replay.experience_tables import TABLE
from pappus.replay.spec import ReplaySpec
from pappus.telemetry.meter import Meter
from pappus.transports.memory import EventNotifier
from pappus.types import Array, leaves_of

RETRY_SECONDS = 0.1
"""How often to look whether a service that was gone is back."""
GROUP_BYTES = 1 << 20
"""Small batches are fetched several at once, up to so many bytes: most of what one costs is then shared by all."""
AHEAD_BYTES = 128 << 20
"""Bytes of batches that lie ready, at most, however many were asked for; two always may."""


def item_batch(batch: Batch, spec: ReplaySpec) -> ItemBatch:
    """What a learner needs of a sampled batch."""
    return ItemBatch(
        batch.keys, spec.layout.batch(batch.data), batch.weights(spec.importance_exponent),
        float(batch.info.ages.sum()) / len(batch.keys),
    )


def bytes_of(batch: ItemBatch) -> int:
    """Bytes of the items, the same for every batch of a table."""
    return sum(leaf.nbytes for leaf in leaves_of(batch.items))


class DirectSource:
    """A learner's end: a batch is drawn when it is asked for."""

    name = "replay"

    def __init__(self, spec: ReplaySpec, client: Client, meter: Meter) -> None:
        self._spec, self._client, self._meter = spec, client, meter
        self._batch_bytes = 0
        self._trajectory = spec.layout.trajectory()

    def take(self) -> ItemBatch | None:
        """The next batch; None while there is none."""
        batch = self._client.try_sample(TABLE, self._spec.batch_size, self._trajectory)
        if batch is None:
            return None
        drawn = item_batch(batch, self._spec)
        self._batch_bytes = self._batch_bytes or bytes_of(drawn)
        self._meter.total += self._batch_bytes
        return drawn

    def update(self, batch: ItemBatch, priorities: Array) -> None:
        """New priorities of a batch's items, in order."""
        self._client.update_priorities(TABLE, batch.keys, priorities, wait=False)

    def info(self) -> dict[str, Any]:
        """Sizes and counts of the table."""
        return self._client.info(TABLE)

    def explain(self) -> str:
        return self._client.explain(TABLE)

    def fileno(self) -> int:
        return -1

    def clear(self) -> None: ...

    def close(self) -> None: ...


class PrefetchedSource:
    """A thread draws batches ahead, small ones several at once, and as many new priorities go back at once.

    A group is at most half of what the limiter lets be drawn at a time: one that had to be drawn piece by piece would
    hold steps that writers may wait for. When the service is gone, it waits for it to come back.
    """

    name = "replay"

    def __init__(self, spec: ReplaySpec, connect: Callable[[], Client], meter: Meter) -> None:
        self._spec, self._connect, self._meter = spec, connect, meter
        self._batch_bytes = 0
        self._trajectory = spec.layout.trajectory()
        self._notifier = EventNotifier(*EventNotifier.descriptors())
        self._ready: deque[ItemBatch] = deque()
        self._room = threading.Semaphore(spec.prefetch)
        self._together = 0
        """Batches that are fetched at once; 0 before it is known how large one is."""
        self._most_together = spec.table.fresh_limiter().largest_batch / (2 * spec.batch_size)
        self._updates: list[tuple[int, Array, Array]] = []
        """Life of the service, keys and new priorities of batches that are not on their way yet."""
        self._client: Client | None = None
        self._life = 0
        """Counts the services that were connected to."""
        self._closed = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True, name="replay batches")
        self._thread.start()

    def take(self) -> ItemBatch | None:
        """The next batch; None while there is none."""
        if self._error is not None:
            raise self._error
        if not self._ready:
            self._send()  # who waits holds nothing back
            return None
        self._room.release()
        self._meter.total += self._batch_bytes
        return self._ready.popleft()

    def update(self, batch: ItemBatch, priorities: Array) -> None:
        """New priorities of a batch's items, in order; lost with the service that they are for."""
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
            client.close()  # the thread that samples with it notices, and connects anew

    def info(self) -> dict[str, Any]:
        """Sizes and counts of the table; nothing while the service is away."""
        client = self._client
        try:
            return {} if client is None else client.info(TABLE)
        except RunError:
            return {}

    def explain(self) -> str:
        client = self._client
        try:
            return "the service is away" if client is None else client.explain(TABLE)
        except RunError:
            return "the service is away"

    def fileno(self) -> int:
        return self._notifier.fileno()

    def clear(self) -> None:
        self._notifier.clear()

    def close(self) -> None:
        """Fetch no more. Priorities that are still under way may be lost."""
        try:
            self._send()
        finally:
            self._closed.set()
            if self._client is not None:
                self._client.close()
            self._room.release(self._spec.prefetch)
            self._thread.join(1.0)

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                try:
                    client = self._connect()
                    self._life += 1  # first: nobody may take a new client for an old life's
                    self._client = client
                    self._fetch(client)
                except RunError:  # it is not there, or no longer
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
                batches = [item_batch(one, self._spec)._replace(service=self._life) for one in parted(drawn, count)]
            except BaseException:
                self._room.release(count)
                raise
            self._batch_bytes = self._batch_bytes or bytes_of(batches[0])
            self._ready.extend(batches)
            self._notifier.notify()
            if not self._together:
                self._settle(self._batch_bytes)

    def _settle(self, size: int) -> None:
        """How much to fetch at once and ahead, now that it is known how many bytes a batch has."""
        ahead = max(2, min(self._spec.prefetch, AHEAD_BYTES // max(1, size)))
        for _ in range(self._spec.prefetch - ahead):
            self._room.acquire()
        self._together = max(1, int(min(ahead // 2, GROUP_BYTES // max(1, size), self._most_together)))
