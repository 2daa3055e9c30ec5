"""An actor's line survives its server, says what is hopeless, and gives up in time."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pappus.errors import RunError, UserError
from pappus.transports.addresses import Address
from pappus.transports.grpc_caller import GrpcCaller, Identity
from pappus.types import ArraySpec, DiscreteAction, EnvSpec
from tests.contracts.calls_contract import ENV, ENVS, answer, ask, open_all, reply, take, wait_for
from tests.wire_tools import desk_at, free_port


@pytest.fixture(
    params=["tcp:127.0.0.1:{port}", "127.0.0.1:{port}", "unix:{folder}/wire"], ids=["tcp", "beside", "unix"]
)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    yield request.param.format(port=free_port(), folder=tmp_path)


def caller_to(
    address: str, lanes: int = 1, patience: float = 20.0, spec: EnvSpec = ENV
) -> tuple[GrpcCaller, list[str]]:
    told: list[str] = []
    return GrpcCaller(Address.parse(address), spec, lanes, ENVS, Identity("test"), patience, told.append), told


def test_lanes_that_waited_when_the_server_went_ask_its_successor(address: str) -> None:
    caller, told = caller_to(address, lanes=2)
    with closing(caller):
        with desk_at(address) as desk:
            open_all(caller)
            ask(caller, 0, 1)
            ask(caller, 1, 2)
            calls = {int(call.request.reward[0]): call for call in take(desk, 2)}
            answer([calls[1]], 4)
            assert reply(caller, 0)[0] == 4
        with desk_at(address) as successor:
            (again,) = take(successor, 1)
            assert again.request.reward[0] == 2, "only the lane that waited asks again"
            answer([again], 3)
            assert reply(caller, 1).tolist() == [3] * ENVS
            ask(caller, 0, 5)
            answer(take(successor, 1), 1)
            assert reply(caller, 0)[0] == 1
        caller.check()
    assert [line.split()[0] for line in told[:3]] == ["connected", "lost", "connected"]


def test_a_request_sent_while_nobody_listens_is_answered_when_somebody_does(address: str) -> None:
    caller, _ = caller_to(address)
    with closing(caller):
        open_all(caller)
        ask(caller, 0, 8)
        assert caller.explain().startswith("no connection")
        with desk_at(address) as desk:
            answer(take(desk, 1), 2)
            assert reply(caller, 0)[0] == 2 and caller.explain().startswith("connected")


def test_a_server_that_comes_back_with_another_env_ends_the_caller(address: str) -> None:
    caller, _ = caller_to(address, spec=EnvSpec(ArraySpec((3,), "float32"), DiscreteAction(5)))
    with closing(caller), desk_at(address):
        wait_for(caller, lambda: caller._failure)
        with pytest.raises(UserError, match=r"refused the connection: tensor 0 is 'observation' float32 \[3\]"):
            caller.check()


def test_a_caller_that_is_refused_rings_so_that_nobody_waits_for_ever() -> None:
    with desk_at(max_envs=1) as desk:
        caller, _ = caller_to(desk.address)
        with closing(caller):
            wait_for(caller, lambda: caller._failure)
            with pytest.raises(UserError, match="4 more are too many: at most 1 may be"):
                caller.check()


def test_without_a_server_the_caller_gives_up_after_its_patience() -> None:
    port = free_port()
    caller, _ = caller_to(f"127.0.0.1:{port}", patience=0.2)
    with closing(caller):
        caller.check()
        wait_for(caller, lambda: caller._failure)
        with pytest.raises(RunError, match=f"nobody answered at 127.0.0.1:{port} for 0 s .*refused"):
            caller.check()


def test_a_listener_that_never_answers_does_not_outlast_the_callers_patience() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        caller, _ = caller_to(f"127.0.0.1:{listener.getsockname()[1]}", patience=0.3)
        with closing(caller):
            wait_for(caller, lambda: caller._failure)
            with pytest.raises(RunError, match="nobody answered"):
                caller.check()


def test_a_caller_leaves_at_once_even_while_it_connects() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        caller, told = caller_to(f"127.0.0.1:{listener.getsockname()[1]}")
        connection, _ = listener.accept()
        with connection:
            caller.close()
    assert not caller._thread.is_alive() and not told


def test_a_caller_that_leaves_does_not_say_that_it_lost_the_connection() -> None:
    with desk_at() as desk:
        caller, told = caller_to(desk.address)
        wait_for(caller, lambda: told)
        caller.close()
        assert len(told) == 1 and told[0].startswith("connected")
        wait_for(desk, desk.left)
