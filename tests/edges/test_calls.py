"""Shared memory and gRPC are the same line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pappus.config import WireConfig
from pappus.edges.calls import SharedCalls, SharedRequestClient, SharedRequestServer
from pappus.transports.addresses import Address
from pappus.transports.grpc_request_client import GrpcRequestClient, Identity
from pappus.transports.grpc_request_server import GrpcRequestServer
from pappus.transports.memory import EventNotifier, HeapBlock, SharedBlock
from tests.contracts.calls_contract import ACTION, ENV, ENVS, REQUEST, CallsContract, answer, ask, open_all, take

ENV_GROUPS = 2


def shared(block: type[HeapBlock] | type[SharedBlock]) -> SharedCalls:
    from pappus.types import map_leaves

    request, reply = map_leaves(lambda leaf: leaf.prefixed(ENVS), REQUEST), ACTION.prefixed(ENVS)
    footprint = SharedCalls.footprint(request, reply, 1, ENV_GROUPS)
    memory = HeapBlock(*footprint) if block is HeapBlock else SharedBlock.create(*footprint)
    return SharedCalls("inference", request, reply, 1, ENV_GROUPS, memory)


class TestHeap(CallsContract):
    block: type[HeapBlock] | type[SharedBlock] = HeapBlock

    @pytest.fixture
    def request_server(self) -> SharedRequestServer:
        self.calls = shared(self.block)
        return self.calls.server()

    def client(self, env_groups: int) -> SharedRequestClient:
        request_client = self.calls.client(0)
        request_client.env_groups = request_client.env_groups[:env_groups]
        return request_client

    def test_a_successor_of_the_request_server_finds_what_was_not_answered(
        self, request_server: SharedRequestServer
    ) -> None:
        request_client = self.client(1)
        open_all(request_client)
        ask(request_client, 0, 6)
        take(request_server, 1)
        (again,) = take(self.calls.server(), 1)
        assert again.request.reward[0] == 6
        answer([again], 2)
        assert request_client.env_groups[0].reply() is not None

    def test_an_env_group_with_a_predecessors_request_in_flight_opens_after_the_answer(
        self, request_server: SharedRequestServer
    ) -> None:
        open_all(self.client(1))
        ask(self.client(1), 0, 1)
        successor = self.client(1)
        assert not successor.env_groups[0].open()
        answer(take(request_server, 1), 0)
        assert successor.env_groups[0].open()


class TestSharedMemory(TestHeap):
    block = SharedBlock


class TestGrpcOverUnixSocket(CallsContract):
    listen, prefix = "unix:{}/wire", ""

    @pytest.fixture
    def request_server(self, tmp_path: Path) -> Iterator[GrpcRequestServer]:
        wire = WireConfig(listen=self.listen.format(tmp_path))
        notifier = EventNotifier(*EventNotifier.descriptors())
        request_server = GrpcRequestServer("inference", wire, REQUEST, ACTION, (5,), "run", notifier)
        self.address, self.clients = Address.parse(self.prefix + request_server.address), list[GrpcRequestClient]()
        yield request_server
        for request_client in self.clients:
            request_client.close()
        request_server.close()

    def client(self, env_groups: int) -> GrpcRequestClient:
        self.clients.append(GrpcRequestClient(self.address, ENV, env_groups, ENVS, Identity("test")))
        return self.clients[-1]

    def kill(self, request_client: Any) -> None:
        request_client.close()


class TestGrpcWithAUnixSocketBeside(TestGrpcOverUnixSocket):
    listen = "127.0.0.1:0"


class TestGrpcOverTcp(TestGrpcWithAUnixSocketBeside):
    prefix = "tcp:"
