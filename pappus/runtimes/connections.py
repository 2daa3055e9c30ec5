"""Connections between the main process of a run and those of its roles: JSON objects, one after the other.

On one machine each is a packet of a pair of sockets; from another node it is a line of a TCP connection.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import socket
from typing import Any, Protocol

from pappus.errors import RunError
from pappus.polling import readable
from pappus.transports.tls import Tls, TlsSocket

MAX_PACKET = 1 << 20
HELLO_SECONDS = 10.0
"""A connection that has not introduced itself by then is closed."""
MAX_HELLO = 16 << 10
"""Bytes of the line with which a process introduces itself: ten times what ours need."""
MAX_UNIDENTIFIED = 1024
"""Connections that may be open without a hello; of more, the oldest is closed: processes of a run introduce themselves
at once."""
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

    def __init__(self, end: socket.socket | TlsSocket) -> None:
        self._socket: Any = end
        self.fileno, self.close = end.fileno, end.close

    def send(self, message: dict[str, Any]) -> None:
        self._socket.send(json.dumps(message).encode())

    def receive(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        while (piece := self._arrived(MAX_PACKET)) is not None:
            if not piece and messages:
                break
            if not piece:
                raise ConnectionResetError("the other end of the connection is closed")
            messages += [json.loads(text) for text in self._whole(piece)]
        return messages

    def _arrived(self, most: int) -> bytes | None:
        """What has arrived; None if nothing has, and nothing (b"") when no more will come."""
        return self._socket.recv(most) if readable([self.fileno()], 0.0) else None

    def _whole(self, piece: bytes) -> list[bytes]:
        """The messages that a piece completes."""
        return [piece]


class StreamConnection(PacketConnection):
    """One end of a TCP connection, encrypted or not."""

    def __init__(self, end: socket.socket | TlsSocket) -> None:
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

    def hello(self) -> dict[str, Any] | None:
        """The first message, from somebody who may be anybody; None while it is incomplete, `ValueError` if it is none.
        What follows it is left for `receive`."""
        while not self._rest.endswith(b"\n"):
            piece = self._until_newline(MAX_HELLO - len(self._rest))
            if piece is None:
                return None
            if len(self._rest) >= MAX_HELLO:
                raise ValueError(f"{MAX_HELLO} bytes came without an end of the line")
            if not piece:
                raise ValueError("the connection ended before its hello")
            self._rest += piece
        line, self._rest = self._rest, b""
        try:
            message = json.loads(line)
        except RecursionError:
            raise ValueError("the hello is nested too deeply") from None
        if not isinstance(message, dict):
            raise ValueError("the hello is no JSON object")
        return message

    def _until_newline(self, most: int) -> bytes | None:
        """As `_arrived`, but what follows an end of a line stays where it is."""
        if isinstance(self._socket, TlsSocket):
            return self._socket.recv(1) if most else b""
        there = self._socket.recv(most, socket.MSG_PEEK) if readable([self.fileno()], 0.0) else None
        return self._socket.recv(there.find(b"\n") + 1 or len(there)) if there else there

    def _arrived(self, most: int) -> bytes | None:
        return self._socket.recv(most) if isinstance(self._socket, TlsSocket) else super()._arrived(most)

    def _whole(self, piece: bytes) -> list[bytes]:
        *whole, self._rest = (self._rest + piece).split(b"\n")
        return whole

    @classmethod
    def connect(cls, address: tuple[str, int], hello: dict[str, Any], tls: Tls | None = None) -> StreamConnection:
        """Connect to a `ConnectionListener`; `hello` says which process this is."""
        end = socket.create_connection(address, timeout=HELLO_SECONDS)
        line = cls(end if tls is None else _encrypted(end, tls, address[0]))
        line.send(hello)
        return line


def _encrypted(end: socket.socket, tls: Tls, host: str) -> TlsSocket:
    encrypted = TlsSocket(end, tls.context(server=False), host)
    try:
        encrypted.handshake(HELLO_SECONDS)
    except OSError as error:
        end.close()
        raise RunError(f"{host} presents no certificate that this node trusts, or rejects ours: {error}") from None
    return encrypted


class ConnectionListener:
    """Accepts TCP connections that present the token; with `tls` also a certificate."""

    def __init__(self, ip: str, token: str, tls: Tls | None = None) -> None:
        self._token, self._tls = token, None if tls is None else tls.context(server=True)
        self._listener = socket.create_server((ip, 0), backlog=1024)
        self._listener.setblocking(False)
        self._unidentified: dict[StreamConnection, float] = {}
        self.address: tuple[str, int] = self._listener.getsockname()[:2]

    def descriptors(self) -> list[int]:
        """Readable when there may be a new connection."""
        return [self._listener.fileno(), *(line.fileno() for line in self._unidentified)]

    def arrivals(self, now: float) -> list[tuple[dict[str, Any], StreamConnection]]:
        """Connections that were accepted since the last call, each with its hello."""
        self._accept(now + HELLO_SECONDS)
        arrived = []
        for line, until in list(self._unidentified.items()):
            try:
                hello = line.hello()
            except (OSError, ValueError):
                self._drop(line)
                continue
            if hello is not None and self._knows(hello):
                del self._unidentified[line]
                arrived.append((hello, line))
            elif hello is not None or now > until:
                self._drop(line)
        return arrived

    def _accept(self, until: float) -> None:
        """Take new connections, a bounded number: who connects without end must not hold up the run."""
        with contextlib.suppress(OSError):  # nobody is there, or he has gone, or there is no descriptor for him
            for _ in range(MAX_UNIDENTIFIED // 4):
                end = self._listener.accept()[0]
                line = StreamConnection(end if self._tls is None else TlsSocket(end, self._tls))
                self._unidentified[line] = until
                if len(self._unidentified) > MAX_UNIDENTIFIED:
                    self._drop(next(iter(self._unidentified)))

    def _knows(self, hello: dict[str, Any]) -> bool:
        token = str(hello.get("token")).encode(errors="replace")  # texts of JSON may hold what UTF-8 cannot
        return hmac.compare_digest(token, self._token.encode())

    def _drop(self, line: StreamConnection) -> None:
        del self._unidentified[line]
        line.close()

    def close(self) -> None:
        self._listener.close()
        for line in self._unidentified:
            line.close()
