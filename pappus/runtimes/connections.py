"""Connections between the main process of a run and those of its roles: JSON objects, one after the other.

On one machine each is a packet of a pair of sockets; from another node it is a line of a TCP connection.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import select
import socket
from typing import Any, Protocol

MAX_PACKET = 1 << 20
HELLO_SECONDS = 10.0
"""A connection that has not introduced itself by then is closed."""
SILENT_SECONDS = 20
"""A TCP connection whose other machine does not answer for so long is broken."""


class Connection(Protocol):
    """How a process of roles gets commands and sends reports."""

    def fileno(self) -> int: ...

    def send(self, message: dict[str, Any]) -> None:
        """`OSError` when the other end is gone."""

    def receive(self) -> list[dict[str, Any]]:
        """All messages that have arrived; `ConnectionResetError` when there will be no more."""


class PacketConnection:
    """One end of a pair of sockets of this machine."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self.fileno, self.close = end.fileno, end.close

    def send(self, message: dict[str, Any]) -> None:
        self._socket.send(json.dumps(message).encode())

    def receive(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        while readable(self._socket):
            piece = self._socket.recv(MAX_PACKET)
            if not piece and messages:
                break
            if not piece:
                raise ConnectionResetError("the other end of the connection is closed")
            messages += [json.loads(text) for text in self._whole(piece)]
        return messages

    def _whole(self, piece: bytes) -> list[bytes]:
        """The messages that a piece completes."""
        return [piece]


class StreamConnection(PacketConnection):
    """One end of a TCP connection."""

    def __init__(self, end: socket.socket) -> None:
        super().__init__(end)
        self._rest = b""
        end.settimeout(SILENT_SECONDS)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            ("TCP_KEEPIDLE", SILENT_SECONDS // 4), ("TCP_KEEPINTVL", SILENT_SECONDS // 4), ("TCP_KEEPCNT", 3),
            ("TCP_USER_TIMEOUT", 1000 * SILENT_SECONDS),
        ):
            if hasattr(socket, option):
                end.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)

    def send(self, message: dict[str, Any]) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def _whole(self, piece: bytes) -> list[bytes]:
        *whole, self._rest = (self._rest + piece).split(b"\n")
        return whole

    @classmethod
    def connect(cls, address: tuple[str, int], hello: dict[str, Any]) -> StreamConnection:
        """Connect to a `ConnectionListener`; `hello` says which process this is."""
        line = cls(socket.create_connection(address, timeout=HELLO_SECONDS))
        line.send(hello)
        return line


class ConnectionListener:
    """Accepts TCP connections that present the token."""

    def __init__(self, ip: str, token: str) -> None:
        self._token = token
        self._listener = socket.create_server((ip, 0), backlog=1024)
        self._listener.setblocking(False)
        self._unidentified: dict[StreamConnection, float] = {}
        self.address: tuple[str, int] = self._listener.getsockname()[:2]

    def descriptors(self) -> list[int]:
        """Readable when there may be a new connection."""
        return [self._listener.fileno(), *(line.fileno() for line in self._unidentified)]

    def arrivals(self, now: float) -> list[tuple[dict[str, Any], StreamConnection]]:
        """Connections that were accepted since the last call, each with its hello."""
        with contextlib.suppress(BlockingIOError):
            while True:
                end, _ = self._listener.accept()
                self._unidentified[StreamConnection(end)] = now + HELLO_SECONDS
        arrived = []
        for line, until in list(self._unidentified.items()):
            try:
                heard = line.receive()
                known = bool(heard) and hmac.compare_digest(str(heard[0].get("token")), self._token)
            except (OSError, ValueError, AttributeError):
                heard, known = [{}], False
            if known:
                arrived.append((heard[0], line))
            elif heard or now > until:
                line.close()
            else:
                continue
            del self._unidentified[line]
        return arrived

    def close(self) -> None:
        self._listener.close()
        for line in self._unidentified:
            line.close()


def readable(end: socket.socket) -> bool:
    """Whether something has arrived, or the other end is gone."""
    poll = select.poll()  # select itself knows no descriptor above 1,023
    poll.register(end, select.POLLIN)
    return bool(poll.poll(0))
