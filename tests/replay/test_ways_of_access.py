"""In this process, through shared memory, over a wire: a service is the same whichever way it is reached."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pappus.config import WireConfig
from pappus.replay import grpc_wire, sockets
from pappus.replay.access import Access, DirectAccess
from pappus.replay.grpc_wire import GrpcServer
from pappus.replay.service import Service
from pappus.replay.sockets import SharedMemory, SocketServer
from pappus.replay.tables import Table
from pappus.transports.grpc_caller import Identity
from tests.contracts.replay_contract import ReplayContract, Way

pytestmark = pytest.mark.timeout(60)


class InProcess(Way):
    def serve(self, specs: Sequence[Table], **options: Any) -> Service:
        return Service(specs, **options)

    def connect(self, service: Service, name: str) -> Access:
        return DirectAccess(service, name or "this process")


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

    def connect(self, service: Service, name: str) -> Access:
        return sockets.connect(self._servers[service].path, name)

    def shut(self) -> None:
        for server in self._servers.values():
            server.close()


class OverGrpc(Way):
    def __init__(self) -> None:
        super().__init__()
        self._servers: dict[Service, GrpcServer] = {}

    def serve(self, specs: Sequence[Table], **options: Any) -> Service:
        service = Service(specs, **options)
        self._servers[service] = GrpcServer(service, WireConfig(listen="127.0.0.1:0"))
        return service

    def connect(self, service: Service, name: str) -> Access:
        return grpc_wire.connect(f"tcp:{self._servers[service].address}", Identity(name))

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
