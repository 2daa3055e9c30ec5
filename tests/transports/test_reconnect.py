"""An actor's line survives its server, says what is hopeless, and gives up in time."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pappus.errors import RunError, RunOver, UserError
from pappus.transports.addresses import Address, free_port
from pappus.transports.grpc_request_client import GrpcRequestClient, Identity
from pappus.types import ArraySpec, DiscreteAction, EnvSpec
from tests.contracts.calls_contract import ENV, ENVS, answer, ask, open_all, reply, take, wait_for
from tests.wire_tools import open_request_server, request_server_at


@pytest.fixture(
    params=["tcp:127.0.0.1:{port}", "127.0.0.1:{port}", "unix:{folder}/wire"], ids=["tcp", "beside", "unix"]
)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    yield request.param.format(port=free_port("127.0.0.1"), folder=tmp_path)


def request_client_to(
    address: str, env_groups: int = 1, patience: float = 20.0, spec: EnvSpec = ENV
) -> tuple[GrpcRequestClient, list[str]]:
    told: list[str] = []
    where = Address.parse(address)
    return GrpcRequestClient(where, spec, env_groups, ENVS, Identity("test"), patience, told.append), told


def test_env_groups_that_waited_when_the_server_went_ask_its_successor(address: str) -> None:
    request_client, told = request_client_to(address, env_groups=2)
    with closing(request_client):
        with request_server_at(address) as request_server:
            open_all(request_client)
            ask(request_client, 0, 1)
            ask(request_client, 1, 2)
            calls = {int(call.request.reward[0]): call for call in take(request_server, 2)}
            answer([calls[1]], 4)
            assert reply(request_client, 0)[0] == 4
        with request_server_at(address) as successor:
            (again,) = take(successor, 1)
            assert again.request.reward[0] == 2, "only the env group that waited asks again"
            answer([again], 3)
            assert reply(request_client, 1).tolist() == [3] * ENVS
            ask(request_client, 0, 5)
            answer(take(successor, 1), 1)
            assert reply(request_client, 0)[0] == 1
        request_client.check()
    assert [line.split()[0] for line in told[:3]] == ["connected", "lost", "connected"]


def test_a_request_sent_while_nobody_listens_is_answered_when_somebody_does(address: str) -> None:
    request_client, _ = request_client_to(address)
    with closing(request_client):
        open_all(request_client)
        ask(request_client, 0, 8)
        assert request_client.explain().startswith("no connection")
        with request_server_at(address) as request_server:
            answer(take(request_server, 1), 2)
            assert reply(request_client, 0)[0] == 2 and request_client.explain().startswith("connected")


def test_a_server_that_comes_back_with_another_env_ends_the_request_client(address: str) -> None:
    request_client, _ = request_client_to(address, spec=EnvSpec(ArraySpec((3,), "float32"), DiscreteAction(5)))
    with closing(request_client), request_server_at(address):
        wait_for(request_client, lambda: request_client._failure)
        with pytest.raises(UserError, match=r"refused the connection: tensor 0 is 'observation' float32 \[3\]"):
            request_client.check()


def test_a_request_client_that_is_refused_rings_so_that_nobody_waits_for_ever() -> None:
    with request_server_at(max_envs=1) as request_server:
        request_client, _ = request_client_to(request_server.address)
        with closing(request_client):
            wait_for(request_client, lambda: request_client._failure)
            with pytest.raises(UserError, match="4 more are too many: at most 1 may be"):
                request_client.check()


def test_without_a_server_the_request_client_gives_up_after_its_patience() -> None:
    port = free_port("127.0.0.1")
    request_client, _ = request_client_to(f"127.0.0.1:{port}", patience=0.2)
    with closing(request_client):
        request_client.check()
        wait_for(request_client, lambda: request_client._failure)
        with pytest.raises(RunError, match=f"nobody answered at 127.0.0.1:{port} for 0 s .*refused"):
            request_client.check()


def test_a_listener_that_never_answers_does_not_outlast_the_request_clients_patience() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        request_client, _ = request_client_to(f"127.0.0.1:{listener.getsockname()[1]}", patience=0.3)
        with closing(request_client):
            wait_for(request_client, lambda: request_client._failure)
            with pytest.raises(RunError, match="nobody answered"):
                request_client.check()


def test_a_request_client_leaves_at_once_even_while_it_connects() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        request_client, told = request_client_to(f"127.0.0.1:{listener.getsockname()[1]}")
        connection, _ = listener.accept()
        with connection:
            request_client.close()
    assert not request_client._thread.is_alive() and not told


def test_a_request_client_that_leaves_does_not_say_that_it_lost_the_connection() -> None:
    with request_server_at() as request_server:
        request_client, told = request_client_to(request_server.address)
        wait_for(request_client, lambda: told)
        request_client.close()
        assert len(told) == 1 and told[0].startswith("connected")
        wait_for(request_server, request_server.left)


def test_a_run_that_is_over_says_so_and_its_clients_end() -> None:
    request_server = open_request_server()
    request_client, told = request_client_to(request_server.address)
    with closing(request_client):
        open_all(request_client)
        ask(request_client, 0, 1)
        take(request_server, 1)
        request_server.close("target reached")
        wait_for(request_client, lambda: request_client._failure)
        with pytest.raises(RunOver, match=r"^the run is over: target reached$"):
            request_client.check()
    assert [line.split()[0] for line in told] == ["connected"]


def test_metrics_come_with_the_next_request_of_whoever_is_connected() -> None:
    due = [{"success": (1.5, 2.0)}, {}, {"success": (1.0, 1.0), "speed": (3.0, 1.0)}]
    with request_server_at() as request_server:
        request_client, _ = request_client_to(request_server.address)
        with closing(request_client):
            open_all(request_client)
            ask(request_client, 0, 0)  # nobody may be connected yet
            answer(take(request_server, 1), 1)
            assert reply(request_client, 0)[0] == 1
            request_client.measured = lambda: due.pop(0)
            while due:
                ask(request_client, 0, 1)
                answer(take(request_server, 1), 1)
                reply(request_client, 0)
            assert request_server.take_metrics() == {"success": (2.5, 3.0), "speed": (3.0, 1.0)}
            assert request_server.take_metrics() == {}
