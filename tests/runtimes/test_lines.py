"""Lines between the driver and the roles: what is said arrives whole and in order, and strangers are not heard."""

from __future__ import annotations

import json
import select
import socket
import time
from typing import Any

import pytest

from pappus.runtimes.lines import HELLO_SECONDS, PacketLine, StreamLine, Switchboard

SECONDS = 10.0


def heard(line: StreamLine | PacketLine, count: int) -> list[dict[str, Any]]:
    """So many messages, as they come."""
    messages: list[dict[str, Any]] = []
    while len(messages) < count:
        assert select.select([line.fileno()], [], [], SECONDS)[0], "nothing came"
        messages += line.receive()
    return messages


def arrivals(board: Switchboard, count: int = 1) -> list[tuple[dict[str, Any], StreamLine]]:
    """So many who have introduced themselves."""
    found: list[tuple[dict[str, Any], StreamLine]] = []
    deadline = time.monotonic() + SECONDS
    while len(found) < count and time.monotonic() < deadline:
        select.select(board.descriptors(), [], [], 0.1)
        found += board.arrivals(time.monotonic())
    return found


@pytest.fixture
def pair() -> tuple[StreamLine, StreamLine]:
    board = Switchboard("127.0.0.1", "secret")
    theirs = StreamLine.connect(board.address, {"token": "secret", "group": "actor-0"})
    ((_, ours),) = arrivals(board)
    board.close()
    return ours, theirs


def test_messages_keep_their_borders_and_their_order(pair: tuple[StreamLine, StreamLine]) -> None:
    ours, theirs = pair
    sent = [{"number": i, "text": "ü\n" * i} for i in range(50)]
    for message in sent:
        ours.send(message)
    assert heard(theirs, 50) == sent


def test_what_was_said_before_the_end_is_heard(pair: tuple[StreamLine, StreamLine]) -> None:
    ours, theirs = pair
    ours.send({"died": "a traceback"})
    ours.close()
    assert heard(theirs, 1) == [{"died": "a traceback"}]
    with pytest.raises(ConnectionResetError):
        theirs.receive()


def test_packets_of_a_pair_are_heard_before_its_end() -> None:
    one, other = (PacketLine(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    one.send({"saved": "here"})
    one.close()
    assert other.receive() == [{"saved": "here"}]
    with pytest.raises(ConnectionResetError):
        other.receive()


@pytest.mark.parametrize("hello", [b'{"token": "wrong"}\n', b'{"token": 5}\n', b"\xff\xfe\n", b"[1, 2]\n", b"7\n"])
def test_a_stranger_is_not_heard_and_others_still_are(hello: bytes) -> None:
    board = Switchboard("127.0.0.1", "secret")
    stranger = socket.create_connection(board.address)
    stranger.sendall(hello)
    line = StreamLine.connect(board.address, {"token": "secret", "group": "learner"})
    assert [greeting["group"] for greeting, _ in arrivals(board)] == ["learner"]
    stranger.settimeout(SECONDS)
    assert stranger.recv(1) == b"", "its connection is closed"
    line.close()
    board.close()


def test_who_says_nothing_is_let_go_after_a_while() -> None:
    board = Switchboard("127.0.0.1", "secret")
    silent = socket.create_connection(board.address)
    select.select(board.descriptors(), [], [], SECONDS)
    assert board.arrivals(100.0) == [] and len(board.descriptors()) == 2
    assert board.arrivals(100.0 + HELLO_SECONDS + 1) == [] and len(board.descriptors()) == 1
    silent.close()
    board.close()


def test_a_hello_in_two_pieces_is_understood() -> None:
    board = Switchboard("127.0.0.1", "secret")
    end = socket.create_connection(board.address)
    text = json.dumps({"token": "secret", "group": "replay"}).encode() + b"\n"
    end.sendall(text[:9])
    select.select(board.descriptors(), [], [], SECONDS)
    assert board.arrivals(time.monotonic()) == []
    end.sendall(text[9:])
    assert arrivals(board)[0][0]["group"] == "replay"
    end.close()
    board.close()
