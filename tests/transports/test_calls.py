"""Shared memory and gRPC are the same line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pappus.config import WireConfig
from pappus.transports.addresses import Address
from pappus.transports.calls import SharedCaller, SharedCalls, SharedDesk
from pappus.transports.grpc_caller import GrpcCaller, Identity
from pappus.transports.grpc_desk import GrpcDesk
from pappus.transports.memory import EventBell, HeapBlock, SharedBlock
from tests.contracts.calls_contract import ACTION, ENV, ENVS, REQUEST, CallsContract, answer, ask, open_all, take

LANES = 2


def shared(block: type[HeapBlock] | type[SharedBlock]) -> SharedCalls:
    from pappus.types import map_leaves

    request, reply = map_leaves(lambda leaf: leaf.prefixed(ENVS), REQUEST), ACTION.prefixed(ENVS)
    footprint = SharedCalls.footprint(request, reply, 1, LANES)
    memory = HeapBlock(*footprint) if block is HeapBlock else SharedBlock.create(*footprint)
    return SharedCalls("inference", request, reply, 1, LANES, memory)


class TestHeap(CallsContract):
    block: type[HeapBlock] | type[SharedBlock] = HeapBlock

    @pytest.fixture
    def desk(self) -> SharedDesk:
        self.calls = shared(self.block)
        return self.calls.desk()

    def caller(self, lanes: int) -> SharedCaller:
        caller = self.calls.caller(0)
        caller.lanes = caller.lanes[:lanes]
        return caller

    def test_a_successor_of_the_desk_finds_what_was_not_answered(self, desk: SharedDesk) -> None:
        caller = self.caller(1)
        open_all(caller)
        ask(caller, 0, 6)
        take(desk, 1)
        (again,) = take(self.calls.desk(), 1)
        assert again.request.reward[0] == 6
        answer([again], 2)
        assert caller.lanes[0].reply() is not None

    def test_a_lane_with_a_predecessors_request_in_flight_opens_after_the_answer(self, desk: SharedDesk) -> None:
        open_all(self.caller(1))
        ask(self.caller(1), 0, 1)
        successor = self.caller(1)
        assert not successor.lanes[0].open()
        answer(take(desk, 1), 0)
        assert successor.lanes[0].open()


class TestSharedMemory(TestHeap):
    block = SharedBlock


class TestGrpcOverUnixSocket(CallsContract):
    listen, prefix = "unix:{}/wire", ""

    @pytest.fixture
    def desk(self, tmp_path: Path) -> Iterator[GrpcDesk]:
        wire = WireConfig(listen=self.listen.format(tmp_path))
        desk = GrpcDesk("inference", wire, REQUEST, ACTION, (5,), "run", EventBell(*EventBell.descriptors()))
        self.address, self.callers = Address.parse(self.prefix + desk.address), list[GrpcCaller]()
        yield desk
        for caller in self.callers:
            caller.close()
        desk.close()

    def caller(self, lanes: int) -> GrpcCaller:
        self.callers.append(GrpcCaller(self.address, ENV, lanes, ENVS, Identity("test")))
        return self.callers[-1]

    def kill(self, caller: Any) -> None:
        caller.close()


class TestGrpcWithAUnixSocketBeside(TestGrpcOverUnixSocket):
    listen = "127.0.0.1:0"


class TestGrpcOverTcp(TestGrpcWithAUnixSocketBeside):
    prefix = "tcp:"
