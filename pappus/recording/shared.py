"""A learner's end of a replay edge: batches of items, and their new priorities on the way back."""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from pappus.config import WireConfig
from pappus.errors import RunError, UserError
from pappus.experience import ItemBatch
from pappus.recording.direct import RecordingSink, bytes_of, item_batch
from pappus.recording.layout import TABLE
from pappus.recording.spec import ReplaySpec
from pappus.replay.clients.client import Client
from pappus.replay.clients.sampler import parted
from pappus.replay.clients.session import Session
from pappus.replay.clients.writer import TrajectoryWriter
from pappus.replay.wire.sockets import SharedMemory, SocketServer
from pappus.replay.wire.sockets import connect as connect_near
from pappus.telemetry.meter import Meter
from pappus.transports.addresses import private_socket
from pappus.transports.memory import EventNotifier
from pappus.types import Array

RETRY_SECONDS = 0.1
"""How often to look whether a service that was gone is back."""

GROUP_BYTES = 1 << 20
"""Small batches are fetched several at once, up to so many bytes: most of what one costs is then shared by all."""

AHEAD_BYTES = 128 << 20
"""Bytes of batches that lie ready, at most, however many were asked for; two always may."""


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


class ServiceDirectory(Protocol):
    """Where roles of a cluster are found: whoever serves something says so, and others look it up."""

    node: str
    host: str
    """An address of this node that others reach."""
    token_file: str
    """Holds the secret that all parts of a run know."""

    def announce(self, name: str, address: str) -> None:
        """What is called so is served on this node, at this address."""
        ...

    def find(self, name: str) -> tuple[str, str]:
        """The node and the address where something is served; `RunError` while it is not."""
        ...


class SharedReplay:
    """A replay edge between processes. Only the replay server's process holds the service; those of its own machine, or of its
    node where there is a cluster, write and read in place, and others over gRPC.

    `counted` outlives a replay server: it holds the number of items that were inserted.
    """

    def __init__(
        self, spec: ReplaySpec, counted: Array, name: str = "replay", cluster: ServiceDirectory | None = None
    ) -> None:
        if cluster is not None:  # a folder of the node's, not of the driver's
            spec = dataclasses.replace(spec, path=private_socket(f"{spec.path} on {cluster.node}"))
        self._name, self._spec, self._counted, self._cluster = name, spec, counted, cluster
        self.meter = Meter()

    def sink(self, envs: int) -> RecordingSink:
        """For an actor of so many envs."""
        return RecordingSink(self._spec, envs, self._writer, self.meter)

    def sinks(self) -> Callable[[int], RecordingSink]:
        """For one who records for many: a sink for so many envs whenever some come."""
        return self.sink

    def source(self) -> PrefetchedSource:
        """For the learner."""
        return PrefetchedSource(self._spec, lambda: Client(self._reach), self.meter)

    def host(self) -> SharedReplayHost:
        """For the role that keeps it."""
        return SharedReplayHost(self._name, self._spec, self._counted, self._cluster)

    def _writer(self, envs: int, history: int) -> TrajectoryWriter:
        return TrajectoryWriter(self._reach(), envs, history, 1)

    def _reach(self) -> Session:
        """A session; `RunError` while the replay server is away, which is nobody's mistake here."""
        try:
            if self._cluster is not None:
                node, address = self._cluster.find(self._name)
                if node != self._cluster.node:
                    return self._reach_far(address, self._cluster.token_file)
            return connect_near(self._spec.path)
        except UserError as error:
            raise RunError(str(error)) from None

    @staticmethod
    def _reach_far(address: str, token_file: str) -> Session:
        from pappus.replay.wire.grpc_wire import connect
        from pappus.transports.grpc_request_client import Identity

        return connect(address, Identity(token_file=token_file))


class Server(Protocol):
    """Lets clients in until it is closed."""

    def close(self) -> None: ...


class SharedReplayHost:
    """The service, served on a unix socket, its rows in memory that clients map; in a cluster on a port, too."""

    def __init__(self, name: str, spec: ReplaySpec, counted: Array, cluster: ServiceDirectory | None) -> None:
        self._memory, self._counted = SharedMemory(), counted
        self.service = spec.service(self._memory)
        self._name, self._path, self._cluster = name, spec.path, cluster
        self._servers: list[Server] = []

    @property
    def inserted(self) -> int:
        """Items that were inserted, as far as a predecessor noted."""
        return int(self._counted[0])

    @inserted.setter
    def inserted(self, count: int) -> None:
        self._counted[0] = count

    def open(self) -> None:
        """Let clients in: not before a checkpoint could be loaded."""
        self._servers.append(SocketServer(self.service, self._memory, self._path))
        if self._cluster is not None:
            from pappus.replay.wire.grpc_wire import GrpcServer

            wire = WireConfig(f"{self._cluster.host}:0", token_file=self._cluster.token_file)
            server = GrpcServer(self.service, wire)
            self._servers.append(server)
            self._cluster.announce(self._name, server.address)

    def close(self) -> None:
        """End all sessions."""
        for server in self._servers:
            server.close()
