"""Memory is handed on: whoever owns blocks gives their descriptors to other processes, over a unix socket.

One packet asks for the descriptors of one block from a position on, and one packet brings them, as many as the system
passes at once; so neither side ever waits for room in the socket. The line stays open: when it ends, the owner is gone.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from pappus.errors import RunError
from pappus.transports.addresses import private_socket
from pappus.transports.memory import SharedBlock

MAX_DESCRIPTORS = 250
"""The system passes no more at once (SCM_MAX_FD is 253)."""
ANSWER_SECONDS = 60.0
_PACKET = 65536


class FdServer:
    """The owner's side; runs in an event loop. `block` finds or makes the block of a name, or raises KeyError."""

    def __init__(self, loop: asyncio.AbstractEventLoop, block: Callable[[str], SharedBlock]) -> None:
        self._loop, self._block = loop, block
        self.path = private_socket(f"blocks of process {os.getpid()}, {os.urandom(8).hex()}")
        if not self.path:
            raise RunError("there is no folder for sockets that only this user can enter; set TMPDIR to another")
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._door.bind(self.path)
        self._door.listen(128)
        self._door.setblocking(False)
        self._visitors: set[socket.socket] = set()
        loop.add_reader(self._door, self._admit)

    def close(self) -> None:
        """End all lines."""
        for visitor in list(self._visitors):
            self._dismiss(visitor)
        self._loop.remove_reader(self._door)
        self._door.close()
        with suppress(FileNotFoundError):
            os.unlink(self.path)

    def _admit(self) -> None:
        with suppress(BlockingIOError, ConnectionError):
            visitor, _ = self._door.accept()
            visitor.setblocking(False)
            self._visitors.add(visitor)
            self._loop.add_reader(visitor, self._serve, visitor)

    def _serve(self, visitor: socket.socket) -> None:
        try:
            packet = visitor.recv(_PACKET)
            if packet:
                return self._answer(visitor, json.loads(packet))
        except OSError:
            pass  # it went away, or does not listen to its answers
        self._dismiss(visitor)

    def _answer(self, visitor: socket.socket, question: dict[str, Any]) -> None:
        name, start = question["block"], question["from"]
        try:
            block = self._block(name)
        except KeyError:
            visitor.send(json.dumps({"error": f"there is no block {name!r}"}).encode())
            return
        unique = {fd: i for i, fd in enumerate(dict.fromkeys(block.descriptors))}  # an eventfd is both ends of a notifier
        head = {"bytes": block.nbytes, "order": [] if start else [unique[fd] for fd in block.descriptors]}
        socket.send_fds(visitor, [json.dumps(head).encode()], list(unique)[start : start + MAX_DESCRIPTORS])

    def _dismiss(self, visitor: socket.socket) -> None:
        self._visitors.discard(visitor)
        self._loop.remove_reader(visitor)
        visitor.close()


def fetch_blocks(socket_path: str, names: Sequence[str]) -> tuple[socket.socket, dict[str, SharedBlock]]:
    """Map the blocks of these names. The line that comes along stays open: at its end their owner is gone."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.settimeout(ANSWER_SECONDS)
    try:
        line.connect(socket_path)
        blocks = {name: _fetch(line, name) for name in names}
    except OSError as error:
        line.close()
        raise RunError(f"the node agent at {socket_path!r} gives no blocks: {error}") from error
    except RunError:
        line.close()
        raise
    line.settimeout(None)
    return line, blocks


def _fetch(line: socket.socket, name: str) -> SharedBlock:
    descriptors: list[int] = []
    nbytes, order = 0, [0]
    while len(descriptors) <= max(order):
        line.send(json.dumps({"block": name, "from": len(descriptors)}).encode())
        packet, more, _, _ = socket.recv_fds(line, _PACKET, MAX_DESCRIPTORS, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
        answer: dict[str, Any] = json.loads(packet) if packet else {"error": "the node agent has ended"}
        if "error" in answer or not more:
            raise RunError(f"block {name!r} cannot be mapped: {answer.get('error', 'no descriptors came')}")
        nbytes, order = answer["bytes"], answer["order"] or order
        descriptors += more
    return SharedBlock(nbytes, [descriptors[i] for i in order])
