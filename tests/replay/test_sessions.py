"""In this process, through shared memory, over a wire: a service is the same whichever way it is reached."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pappus.config import WireConfig
from pappus.errors import PappusError, RunError, UserError
from pappus.replay.clients.client import DirectSession
from pappus.replay.clients.session import Session
from pappus.replay.service.service import Service
from pappus.replay.tables import table as tables
from pappus.replay.tables.table import Table
from pappus.replay.wire import grpc_wire, sockets
from pappus.replay.wire.grpc_wire import GrpcServer
from pappus.replay.wire.sockets import SharedMemory, SocketServer
from pappus.transports.grpc_request_client import Identity
from tests.contracts.replay_contract import ReplayContract
from tests.contracts.replay_tools import (
    NUMBER,
    SECONDS,
    Background,
    Way,
    add,
    drawn,
    numbers,
    only_items_hold_chunks,
    put,
    replay,
    waiting,
)
from tests.process_tools import eventually

pytestmark = pytest.mark.timeout(60)


class InProcess(Way):
    def serve(self, specs: Sequence[Table], **options: Any) -> Service:
        return Service(specs, **options)

    def connect(self, service: Service, name: str) -> Session:
        return DirectSession(service, name or "this process")


class ThroughSharedMemory(Way):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._servers: dict[Service, SocketServer] = {}

    def serve(self, specs: Sequence[Table], **options: Any) -> Service:
        memory = SharedMemory()
        service = Service(specs, allocate=memory.allocate, **options)
        self._servers[service] = SocketServer(service, memory, str(self._folder / f"s{len(self._servers)}"))
        return service

    def connect(self, service: Service, name: str) -> Session:
        return sockets.connect(self._servers[service].path, name)

    def address(self, service: Service) -> str:
        """How another process connects, in Python."""
        return f"sockets.connect({self._servers[service].path!r})"

    def shut(self) -> None:
        for server in self._servers.values():
            server.close()


class OverGrpc(Way):
    def __init__(self) -> None:
        super().__init__()
        self._servers: dict[Service, GrpcServer] = {}

    def serve(self, specs: Sequence[Table], **options: Any) -> Service:
        service = Service(specs, **options)
        self._servers[service] = GrpcServer(service, WireConfig(listen="127.0.0.1:0"), checkpoints="/")
        return service

    def connect(self, service: Service, name: str) -> Session:
        return grpc_wire.connect(f"tcp:{self._servers[service].address}", Identity(name))

    def address(self, service: Service) -> str:
        """How another process connects, in Python."""
        return f"grpc_wire.connect('tcp:{self._servers[service].address}')"

    def shut(self) -> None:
        for server in self._servers.values():
            server.close()


class TestInProcess(ReplayContract):
    @pytest.fixture
    def make(self) -> Iterator[Way]:
        way = InProcess()
        yield way
        way.close()


class TestThroughSharedMemory(ReplayContract):
    @pytest.fixture
    def make(self, tmp_path: Path) -> Iterator[Way]:
        way = ThroughSharedMemory(tmp_path)
        yield way
        way.close()


class TestOverGrpc(ReplayContract):
    @pytest.fixture
    def make(self) -> Iterator[Way]:
        way = OverGrpc()
        yield way
        way.close()


@pytest.fixture(params=["shared memory", "gRPC"])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ThroughSharedMemory | OverGrpc]:
    way = ThroughSharedMemory(tmp_path) if request.param == "shared memory" else OverGrpc()
    yield way
    way.close()


def test_a_client_of_a_lost_service_gets_an_error(remote: ThroughSharedMemory | OverGrpc) -> None:
    client, _ = remote(replay())
    writer, sampler = client.writer(), client.sampler("t", 1)
    add(writer, "t", 1)
    assert writer.flush() and numbers(next(sampler)) == [1]
    remote.shut()
    for _ in range(3):
        with pytest.raises(RunError):
            client.info("t")
        with pytest.raises(RunError):
            client.sample("t", 1, timeout=SECONDS)
        with pytest.raises(RunError):
            add(writer, "t", 2)
            writer.flush()
    with pytest.raises(RunError):
        Background(lambda: [next(sampler) for _ in range(10)]).result()
    sampler.close()
    with pytest.raises(UserError, match=r"start it first|no replay service answers"):
        client.writer()


def test_a_closed_client_raises(remote: ThroughSharedMemory | OverGrpc) -> None:
    client, _ = remote(replay())
    put(client, "t", [1])
    client.close()
    client.close()
    for ask in (lambda: client.info("t"), lambda: client.sample("t", 1, timeout=0), lambda: client.reset("t")):
        with pytest.raises(PappusError):
            ask()


def test_a_client_in_another_process_frees_everything_when_it_is_killed(remote: ThroughSharedMemory | OverGrpc) -> None:
    """Steps that it wrote, an item that waits for room, and a batch that it was reading."""
    client, service = remote(tables.queue("t", 2, NUMBER))
    put(client, "t", [0, 1])
    words = [
        "from tests.replay.test_sessions import *", "from tests.contracts.replay_tools import *",
        f"session = lambda: {remote.address(service)}", "reading = session()",
        "assert reading.sample('t', 1, frozenset(['x']), 0, 5.0, True) is not None",
        "writer = Client(session).writer()", "add(writer, 't', 2)", "add(writer, 't', 3)", "writer.flush()",
    ]
    child = subprocess.Popen([sys.executable, "-c", "\n".join(words)], cwd=Path(__file__).parent.parent.parent)
    try:
        waiting(service, "t", f"process {child.pid} waits to insert")
    finally:
        child.kill()
        child.wait()
    eventually(lambda: "waits to" not in service.explain("t"), SECONDS)
    eventually(lambda: only_items_hold_chunks(service), SECONDS)
    assert drawn(client, "t", 2) == [1, 2] and client.info("t")["inserts"] == 3
