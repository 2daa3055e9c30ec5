"""The owner of blocks sends their descriptors to other processes, over a unix socket.

One packet asks for the descriptors of one block from a position on, and one packet returns them, as many as the system
passes at once; so neither side ever waits for space in the socket. The connection stays open: when it ends, the owner
has exited.
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
from pappus.transports.memory import SharedBlock
from pappus.transports.private_folder import private_socket

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
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.path)
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._clients: set[socket.socket] = set()
        loop.add_reader(self._listener, self._accept)

    def close(self) -> None:
        for client in list(self._clients):
            self._drop(client)
        self._loop.remove_reader(self._listener)
        self._listener.close()
        with suppress(FileNotFoundError):
            os.unlink(self.path)

    def _accept(self) -> None:
        with suppress(BlockingIOError, ConnectionError):
            client, _ = self._listener.accept()
            client.setblocking(False)
            self._clients.add(client)
            self._loop.add_reader(client, self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        try:
            packet = client.recv(_PACKET)
            if packet:
                return self._answer(client, json.loads(packet))
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass  # it exited, does not read its answers, or asks for what cannot be
        self._drop(client)

    def _answer(self, client: socket.socket, question: dict[str, Any]) -> None:
        name, start = question["block"], question["from"]
        try:
            block = self._block(name)
        except KeyError:
            client.send(json.dumps({"error": f"there is no block {name!r}"}).encode())
            return
        unique = {fd: i for i, fd in enumerate(dict.fromkeys(block.descriptors))}  # an eventfd is there twice
        head = {"bytes": block.nbytes, "order": [] if start else [unique[fd] for fd in block.descriptors]}
        socket.send_fds(client, [json.dumps(head).encode()], list(unique)[start : start + MAX_DESCRIPTORS])

    def _drop(self, client: socket.socket) -> None:
        self._clients.discard(client)
        self._loop.remove_reader(client)
        client.close()


def fetch_blocks(socket_path: str, names: Sequence[str]) -> tuple[socket.socket, dict[str, SharedBlock]]:
    """Map the blocks of these names. The returned connection stays open: it ends when their owner exits."""
    line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.settimeout(ANSWER_SECONDS)
    try:
        line.connect(socket_path)
        blocks = {name: _fetch(line, name) for name in names}
    except (OSError, RunError) as error:
        line.close()
        raise RunError(f"the node agent at {socket_path!r} provides no shared memory: {error}") from error
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
