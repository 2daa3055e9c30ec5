"""Lines between the driver and the roles: what is said arrives whole and in order, and strangers are not heard."""

from __future__ import annotations

import json
import select
import socket
import time
from typing import Any

import pytest

from pappus.runtimes import connections
from pappus.runtimes.connections import (
    HELLO_SECONDS,
    MAX_HELLO,
    ConnectionListener,
    PacketConnection,
    StreamConnection,
)
from tests.process_tools import eventually

SECONDS = 10.0


def heard(line: StreamConnection | PacketConnection, count: int) -> list[dict[str, Any]]:
    """So many messages, as they come."""
    messages: list[dict[str, Any]] = []
    while len(messages) < count:
        assert select.select([line.fileno()], [], [], SECONDS)[0], "nothing came"
        messages += line.receive()
    return messages


def arrivals(run_stats: ConnectionListener, count: int = 1) -> list[tuple[dict[str, Any], StreamConnection]]:
    """So many who have introduced themselves."""
    found: list[tuple[dict[str, Any], StreamConnection]] = []
    deadline = time.monotonic() + SECONDS
    while len(found) < count and time.monotonic() < deadline:
        select.select(run_stats.descriptors(), [], [], 0.1)
        found += run_stats.arrivals(time.monotonic())
    return found


@pytest.fixture
def pair() -> tuple[StreamConnection, StreamConnection]:
    run_stats = ConnectionListener("127.0.0.1", "secret")
    theirs = StreamConnection.connect(run_stats.address, {"token": "secret", "group": "actor-0"})
    ((_, ours),) = arrivals(run_stats)
    run_stats.close()
    return ours, theirs


def test_messages_keep_their_borders_and_their_order(pair: tuple[StreamConnection, StreamConnection]) -> None:
    ours, theirs = pair
    sent = [{"number": i, "text": "ü\n" * i} for i in range(50)]
    for message in sent:
        ours.send(message)
    assert heard(theirs, 50) == sent


def test_what_was_said_before_the_end_is_heard(pair: tuple[StreamConnection, StreamConnection]) -> None:
    ours, theirs = pair
    ours.send({"died": "a traceback"})
    ours.close()
    assert heard(theirs, 1) == [{"died": "a traceback"}]
    with pytest.raises(ConnectionResetError):
        theirs.receive()


def test_packets_of_a_pair_are_heard_before_its_end() -> None:
    one, other = (PacketConnection(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    one.send({"saved": "here"})
    one.close()
    assert other.receive() == [{"saved": "here"}]
    with pytest.raises(ConnectionResetError):
        other.receive()


@pytest.mark.parametrize("hello", [b'{"token": "wrong"}\n', b'{"token": 5}\n', b"\xff\xfe\n", b"[1, 2]\n", b"7\n"])
def test_a_stranger_is_not_heard_and_others_still_are(hello: bytes) -> None:
    run_stats = ConnectionListener("127.0.0.1", "secret")
    stranger = socket.create_connection(run_stats.address)
    stranger.sendall(hello)
    line = StreamConnection.connect(run_stats.address, {"token": "secret", "group": "learner"})
    assert [greeting["group"] for greeting, _ in arrivals(run_stats)] == ["learner"]
    stranger.settimeout(SECONDS)
    assert stranger.recv(1) == b"", "its connection is closed"
    line.close()
    run_stats.close()


def test_who_says_nothing_is_let_go_after_a_while() -> None:
    run_stats = ConnectionListener("127.0.0.1", "secret")
    silent = socket.create_connection(run_stats.address)
    select.select(run_stats.descriptors(), [], [], SECONDS)
    assert run_stats.arrivals(100.0) == [] and len(run_stats.descriptors()) == 2
    assert run_stats.arrivals(100.0 + HELLO_SECONDS + 1) == [] and len(run_stats.descriptors()) == 1
    silent.close()
    run_stats.close()


def test_a_hello_in_two_pieces_is_understood() -> None:
    run_stats = ConnectionListener("127.0.0.1", "secret")
    end = socket.create_connection(run_stats.address)
    text = json.dumps({"token": "secret", "group": "replay"}).encode() + b"\n"
    end.sendall(text[:9])
    select.select(run_stats.descriptors(), [], [], SECONDS)
    assert run_stats.arrivals(time.monotonic()) == []
    end.sendall(text[9:])
    assert arrivals(run_stats)[0][0]["group"] == "replay"
    end.close()
    run_stats.close()


@pytest.mark.parametrize(
    "hello",
    [
        '{"token":"é"}\n'.encode(), b'{"token":"\\ud800"}\n', b"[" * 100_000 + b"\n", b'{"a":' * 3000 + b"\n",
        b"x" * 1_000_000,
    ],
    ids=["not ASCII", "a lone surrogate", "deep lists", "deep objects", "no end of the line"],
)
def test_no_bytes_of_a_stranger_end_the_listener(hello: bytes) -> None:
    listener = ConnectionListener("127.0.0.1", "secret")
    stranger = socket.create_connection(listener.address)
    stranger.setblocking(False)
    stranger.send(hello)
    line = StreamConnection.connect(listener.address, {"token": "secret", "group": "learner"})
    assert [greeting["group"] for greeting, _ in arrivals(listener)] == ["learner"]
    eventually(lambda: listener.arrivals(time.monotonic()) or len(listener.descriptors()) == 1, SECONDS)
    assert len(listener.descriptors()) == 1, "the stranger was dropped"
    line.close()
    stranger.close()
    listener.close()


def test_a_stranger_who_sends_without_end_costs_a_bounded_number_of_bytes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        theirs = socket.create_connection(server.getsockname())
        line = StreamConnection(server.accept()[0])
    with pytest.raises(ValueError, match="without an end of the line"):
        for _ in range(MAX_HELLO // 1000 + 1):
            theirs.sendall(b"x" * 1000)
            select.select([line.fileno()], [], [], SECONDS)
            assert line.hello() is None
    theirs.close()
    line.close()


def test_of_too_many_who_say_nothing_the_oldest_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_UNIDENTIFIED", 4)
    listener = ConnectionListener("127.0.0.1", "secret")
    silent = [socket.create_connection(listener.address) for _ in range(10)]
    line = StreamConnection.connect(listener.address, {"token": "secret", "group": "learner"})
    assert [greeting["group"] for greeting, _ in arrivals(listener)] == ["learner"]
    assert len(listener.descriptors()) <= 1 + 4
    for end in [*silent, line, listener]:
        end.close()


def test_what_follows_a_hello_is_not_lost() -> None:
    listener = ConnectionListener("127.0.0.1", "secret")
    line = StreamConnection.connect(listener.address, {"token": "secret", "group": "learner"})
    line.send({"report": 1})
    ((_, ours),) = arrivals(listener)
    assert heard(ours, 1) == [{"report": 1}]
    line.close()
    listener.close()
