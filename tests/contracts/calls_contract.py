"""What every line between envs and a central policy must do, whatever it crosses.

Subclasses provide `request_server()` (once per test) and `request_client(env_groups)`, which connects to it.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from pappus.core import Call, RequestClient, RequestServer
from pappus.roles.seed_actor import write_request
from pappus.types import Array, ArraySpec, DiscreteAction, EnvSpec, Episodes, Timestep, request_spec

ENV = EnvSpec({"a": ArraySpec((2, 3), "float32"), "b": ArraySpec((), "uint8")}, DiscreteAction(5))
ENVS = 4
SECONDS = 10.0
REQUEST, ACTION = request_spec(ENV), ENV.action.array


def timestep(mark: int) -> Timestep:
    return Timestep(
        {"a": np.full((ENVS, 2, 3), mark / 4, np.float32), "b": np.arange(ENVS, dtype=np.uint8) + mark},
        np.arange(ENVS) == 1, np.full(ENVS, mark, np.float32), np.array([1, 0, 1, 1], np.float32), np.arange(ENVS) != 1,
        Episodes(np.array([7.5]), np.array([3]), np.array([2])),
    )


def wait_for(port: Any, look: Callable[[], Any]) -> Any:
    """What `look` finds, as soon as it finds something."""
    deadline = time.monotonic() + SECONDS
    while not (found := look()):
        assert time.monotonic() < deadline, port.explain()
        if port.fileno() >= 0:
            select.select([port.fileno()], [], [], 0.1)
            port.clear()
    return found


def take(request_server: RequestServer, count: int) -> list[Call]:
    calls: list[Call] = []

    def enough() -> bool:
        calls.extend(request_server.calls())
        return len(calls) >= count

    wait_for(request_server, enough)
    assert len(calls) == count
    return calls


def ask(request_client: RequestClient, env_group: int, mark: int) -> None:
    write_request(request_client.env_groups[env_group].request, timestep(mark))
    request_client.env_groups[env_group].send()


def open_all(request_client: RequestClient) -> None:
    wait_for(request_client, lambda: all(env_group.open() for env_group in request_client.env_groups))


def reply(request_client: RequestClient, env_group: int) -> Array:
    def replies() -> list[Any]:
        found = request_client.env_groups[env_group].reply()
        return [] if found is None else [found]

    return np.array(wait_for(request_client, replies)[0])


def answer(calls: Sequence[Call], action: int) -> None:
    for call in calls:
        call.reply[...] = action
        call.answer()


class CallsContract:
    @pytest.fixture
    def request_server(self) -> Any:
        raise NotImplementedError

    def client(self, env_groups: int) -> Any:
        raise NotImplementedError

    def test_a_request_arrives_as_it_was_written(self, request_server: RequestServer) -> None:
        request_client = self.client(1)
        open_all(request_client)
        ask(request_client, 0, 9)
        (call,) = take(request_server, 1)
        sent, request = timestep(9), call.request
        assert (request.observation["a"] == sent.observation["a"]).all()
        assert (request.observation["b"] == sent.observation["b"]).all()
        for name in ("first", "reward", "discount", "valid"):
            assert (getattr(request, name) == getattr(sent, name)).all(), name
        assert request.episode_length.tolist() == [0, 0, 3, 0] and request.episode_return[2] == 7.5
        assert request.first.dtype == bool and request.observation["b"].dtype == np.uint8

    def test_actions_come_back_to_the_env_group_that_asked(self, request_server: RequestServer) -> None:
        request_client = self.client(2)
        open_all(request_client)
        ask(request_client, 0, 10)
        ask(request_client, 1, 11)
        calls = {int(call.request.reward[0]): call for call in take(request_server, 2)}
        assert request_client.env_groups[0].reply() is None and request_client.env_groups[1].reply() is None
        answer([calls[11]], 1)
        assert reply(request_client, 1).tolist() == [1] * ENVS
        assert request_client.env_groups[0].reply() is None, "the other env group still waits"
        answer([calls[10]], 0)
        assert reply(request_client, 0).tolist() == [0] * ENVS

    def test_a_request_is_seen_once_and_the_next_one_again(self, request_server: RequestServer) -> None:
        request_client = self.client(1)
        open_all(request_client)
        for turn in range(50):
            ask(request_client, 0, turn)
            (call,) = take(request_server, 1)
            assert not request_server.calls() and call.request.reward[0] == turn
            call.reply[...] = turn % 5
            call.answer()
            assert reply(request_client, 0)[0] == turn % 5

    def test_replies_have_the_shape_and_dtype_of_the_action(self, request_server: RequestServer) -> None:
        request_client = self.client(1)
        open_all(request_client)
        ask(request_client, 0, 0)
        (call,) = take(request_server, 1)
        assert call.reply.shape == (ENVS,) and call.reply.dtype == np.int64
        answer([call], 4)
        assert reply(request_client, 0).dtype == np.int64

    def test_a_successor_is_told_apart_from_its_predecessor(self, request_server: RequestServer) -> None:
        first = self.client(1)
        open_all(first)
        ask(first, 0, 1)
        (old,) = take(request_server, 1)
        identity = (old.env_group, old.session)
        self.kill(first)
        second = self.client(1)
        answer([old], 3)
        open_all(second)
        ask(second, 0, 2)
        (new,) = take(request_server, 1)
        assert (new.env_group, new.session) != identity and new.request.reward[0] == 2
        answer([new], 4)
        assert reply(second, 0)[0] == 4

    def kill(self, request_client: Any) -> None:
        """End a client without farewell, as far as a test can."""

    def test_both_ends_say_what_they_wait_for(self, request_server: RequestServer) -> None:
        request_client = self.client(1)
        assert request_client.explain() and request_server.explain() and request_client.name and request_server.name
