"""The ends of a replay edge, as roles hold them: an actor records, a learner takes batches, a replay server keeps them.

    actor ──record──▶ sink ⋯ service ⋯ source ──batch──▶ learner
                                ▲            ◀──priorities──┘
                             replay server

In one thread (`DirectReplay`) nothing ever waits: a port that cannot go on says so. Between processes (`SharedReplay`)
rows are written and read in place, batches are fetched ahead by a thread, and whoever loses the service comes back.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Protocol

from pappus.config import WireConfig
from pappus.errors import RunError, UserError
from pappus.replay.access import Access
from pappus.replay.client import Client
from pappus.replay.item_sources import DirectSource, PrefetchedSource
from pappus.replay.recording import Recorder, history_of, recorder_for
from pappus.replay.sockets import SharedMemory, SocketServer
from pappus.replay.sockets import connect as connect_near
from pappus.replay.spec import ReplaySpec
from pappus.replay.trajectory_writer import TrajectoryWriter
from pappus.telemetry.meter import Meter
from pappus.transports.addresses import private_socket
from pappus.types import Array, Nest, Timestep


class RecordingSink:
    """An actor's end. When the service is gone, what was under way is lost (and counted); then it begins afresh."""

    name = "replay"

    def __init__(
        self, spec: ReplaySpec, envs: int, open_writer: Callable[[int, int], TrajectoryWriter], meter: Meter
    ) -> None:
        self._spec, self._envs, self._open_writer, self._meter = spec, envs, open_writer, meter
        self._step_bytes = envs * spec.row_bytes
        self._writer: TrajectoryWriter | None = None
        self._recorder: Recorder | None = None
        self._unconfirmed = 0
        self.lost = 0
        """Items that nobody may have got; whoever reports them sets it back."""

    def ready(self) -> bool:
        """Whether the next step can be recorded now."""
        try:
            if self._writer is None:
                self._writer = self._open_writer(self._envs, history_of(self._spec.layout))
                self._recorder = recorder_for(self._spec.layout, self._writer, self._envs)
            if not self._writer.flush(0.0):
                return False
        except RunError:
            self._lose()
            return False
        assert self._recorder is not None
        self._unconfirmed = self._recorder.held
        return True

    def record(
        self, seen: Timestep, state: Nest, action: Array, behaviour: Mapping[str, Array], then: Timestep
    ) -> None:
        """One step of every env: `seen` led to `action`, and that to `then`."""
        assert self._recorder is not None, "ready() comes before record()"
        try:
            self._unconfirmed += self._recorder.record(seen, state, action, behaviour, then)
            self._meter.total += self._step_bytes
        except RunError:
            self._lose()

    def explain(self) -> str:
        return "the limiter lets no items in, or the service is away"

    def fileno(self) -> int:
        return -1 if self._writer is None else self._writer.fileno()

    def clear(self) -> None: ...

    def close(self) -> None:
        """Leave without waiting for what is under way."""
        if self._writer is not None:
            self._writer.abandon()

    def _lose(self) -> None:
        self.lost += self._unconfirmed
        self._unconfirmed = 0
        self.close()
        self._writer = self._recorder = None


class DirectReplay:
    """A replay edge within one thread."""

    def __init__(self, spec: ReplaySpec) -> None:
        self._spec = spec
        self.meter = Meter()
        self.inserted = 0
        self.service = spec.service()
        self._client = Client.of(self.service)

    def sink(self, envs: int) -> RecordingSink:
        """For an actor of so many envs."""
        return RecordingSink(self._spec, envs, self._client.writer, self.meter)

    def sinks(self) -> Callable[[int], RecordingSink]:
        """For one who records for many: a sink for so many envs whenever some come."""
        return self.sink

    def source(self) -> DirectSource:
        """For the learner."""
        return DirectSource(self._spec, self._client, self.meter)

    def host(self) -> DirectReplay:
        """For the role that keeps it."""
        return self

    def open(self) -> None: ...

    def close(self) -> None: ...


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

    def _reach(self) -> Access:
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
    def _reach_far(address: str, token_file: str) -> Access:
        from pappus.replay.grpc_wire import connect
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
            from pappus.replay.grpc_wire import GrpcServer

            wire = WireConfig(f"{self._cluster.host}:0", token_file=self._cluster.token_file)
            server = GrpcServer(self.service, wire)
            self._servers.append(server)
            self._cluster.announce(self._name, server.address)

    def close(self) -> None:
        """End all sessions."""
        for server in self._servers:
            server.close()
