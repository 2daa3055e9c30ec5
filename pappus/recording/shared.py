"""A replay edge between processes.

Rows are written and read in shared memory, a thread fetches batches ahead (`prefetched.py`), and a port that loses the
service connects again. The figure is in `direct.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Protocol

from pappus.config import WireConfig
from pappus.errors import RunError, UserError
from pappus.recording.direct import RecordingSink, ReplaySpec
from pappus.recording.prefetched import PrefetchedSource
from pappus.replay.clients.client import Client
from pappus.replay.clients.session import Session
from pappus.replay.clients.writer import TrajectoryWriter
from pappus.replay.wire.sockets import SharedMemory, SocketServer
from pappus.replay.wire.sockets import connect as connect_near
from pappus.telemetry.metrics import Meter
from pappus.transports.addresses import private_socket
from pappus.types import Array


class ServiceDirectory(Protocol):
    """Where the roles of a cluster register and find services."""

    node: str
    ip: str
    """The IP address under which other nodes reach this one."""
    token_file: str
    """File with the secret of the run."""

    def announce(self, name: str, address: str) -> None:
        """Register a service of this node at an address."""

    def find(self, name: str) -> tuple[str, str]:
        """The node and the address of a service; `RunError` while it is not registered."""


class SharedReplay:
    """A replay edge between processes. The replay server's process holds the service.

    Processes on its machine (in a cluster: on its node) write and read rows in shared memory; others use gRPC.
    `counted` is shared memory that outlives a replay server: the number of inserted items.
    """

    def __init__(
        self, spec: ReplaySpec, counted: Array, name: str = "replay", cluster: ServiceDirectory | None = None
    ) -> None:
        if cluster is not None:  # the socket is on the node, not on the driver's machine
            spec = dataclasses.replace(spec, path=private_socket(f"{spec.path} on {cluster.node}"))
        self._name, self._spec, self._counted, self._cluster = name, spec, counted, cluster
        self._client = ""
        """How the service calls this process; empty: by its id."""
        self.meter = Meter()

    def sink(self, envs: int) -> RecordingSink:
        return RecordingSink(self._spec, envs, self._writer, self.meter)

    def source(self) -> PrefetchedSource:
        return PrefetchedSource(self._spec, lambda: Client(self._reach), self.meter)

    def host(self) -> SharedReplayHost:
        return SharedReplayHost(self._name, self._spec, self._counted, self._cluster)

    def _writer(self, envs: int, history: int) -> TrajectoryWriter:
        return TrajectoryWriter(self._reach(), envs, history, 1)

    def _reach(self) -> Session:
        """Open a session; `RunError` while the replay server is away."""
        try:
            if self._cluster is not None:
                node, address = self._cluster.find(self._name)
                if node != self._cluster.node:
                    from pappus.replay.wire.grpc_wire import connect
                    from pappus.transports.grpc_request_client import Identity

                    return connect(address, Identity(token_file=self._cluster.token_file))
            return connect_near(self._spec.path, self._client)
        except UserError as error:
            raise RunError(str(error)) from None


class SharedReplayHost:
    """The service, served on a unix socket with its rows in shared memory; in a cluster also on a gRPC port."""

    alone = False

    def __init__(self, name: str, spec: ReplaySpec, counted: Array, cluster: ServiceDirectory | None) -> None:
        self._memory, self._counted = SharedMemory(), counted
        self.service = spec.service(self._memory)
        self._name, self._path, self._cluster = name, spec.path, cluster
        self._close: list[Callable[[], None]] = []

    @property
    def inserted(self) -> int:
        """Inserted items, as last noted by this process or its predecessor."""
        return int(self._counted[0])

    @inserted.setter
    def inserted(self, count: int) -> None:
        self._counted[0] = count

    def open(self) -> None:
        """Accept clients. Call it after a checkpoint was loaded."""
        self._close.append(SocketServer(self.service, self._memory, self._path).close)
        if self._cluster is not None:
            from pappus.replay.wire.grpc_wire import GrpcServer

            wire = WireConfig(f"{self._cluster.ip}:0", token_file=self._cluster.token_file)
            server = GrpcServer(self.service, wire)
            self._close.append(server.close)
            self._cluster.announce(self._name, server.address)

    def close(self) -> None:
        for close in self._close:
            close()
