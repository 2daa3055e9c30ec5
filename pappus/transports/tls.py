"""TLS between the processes of one run on several nodes: all show a certificate that one authority signed.

gRPC brings its own TLS (`server_credentials`, `channel_credentials`). The connections to the driver are plain sockets
that nobody may hold up, so `TlsSocket` does no more than what has arrived allows.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pappus.polling import readable

if TYPE_CHECKING:  # roles that stay on one node need no grpc
    import grpc

PIECE = 1 << 14
"""Bytes of a record of TLS, at most."""


@dataclass(frozen=True)
class Tls:
    """PEM files, at the same paths on every node; a certificate names the address of its node."""

    certificate: str
    key: str
    authority: str

    def server_credentials(self) -> grpc.ServerCredentials:
        """For a gRPC server, which refuses clients without a certificate of the authority."""
        import grpc

        authority, certificate, key = self._contents()
        return grpc.ssl_server_credentials([(key, certificate)], authority, require_client_auth=True)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        import grpc

        authority, certificate, key = self._contents()
        return grpc.ssl_channel_credentials(authority, key, certificate)

    def context(self, server: bool) -> ssl.SSLContext:
        """For a plain socket; either side checks the other."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self.certificate, self.key, password="")
        context.load_verify_locations(self.authority)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _contents(self) -> tuple[bytes, bytes, bytes]:
        authority, certificate, key = (
            Path(path).read_bytes() for path in (self.authority, self.certificate, self.key)
        )
        return authority, certificate, key


class TlsSocket:
    """A TCP connection under TLS. `recv` never waits; `sendall` and `handshake` do, for as long as the socket's timeout
    says. Any thread may call them. `OSError` where the other side is not who it has to be."""

    def __init__(self, end: socket.socket, context: ssl.SSLContext, host: str | None = None) -> None:
        """`host`: whom a client connects to; None for the server's side."""
        self._socket = end
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, host is None, host)
        self._lock = threading.Lock()
        self._agreed = self._ended = False
        self.fileno, self.close, self.settimeout, self.setsockopt = (
            end.fileno, end.close, end.settimeout, end.setsockopt
        )

    def recv(self, most: int) -> bytes | None:
        """What has arrived, at least a byte; None if nothing has, and nothing (b"") when no more will come."""
        with self._lock:
            while True:
                try:
                    self._agree()
                    return self._tls.read(most)
                except ssl.SSLWantReadError:
                    if not self._take_in():
                        return b"" if self._ended else None
                except ssl.SSLZeroReturnError:
                    return b""
                finally:
                    self._send_out()

    def sendall(self, data: bytes) -> None:
        """Send it, once both sides have agreed on keys."""
        with self._lock:
            self._tls.write(data)
            self._send_out()

    def handshake(self, seconds: float) -> None:
        """Agree on keys; `TimeoutError` if the other side does not answer in time."""
        deadline = time.monotonic() + seconds
        while not self._agreed:
            with self._lock:
                try:
                    self._agree()
                except ssl.SSLWantReadError:
                    self._send_out()
                    if self._take_in():
                        continue
                self._send_out()
            if self._ended:
                raise ConnectionResetError("the connection ended before it was encrypted")
            if not self._agreed and not readable([self.fileno()], max(0.0, deadline - time.monotonic())):
                raise TimeoutError("the other side does not speak TLS, or does not answer")

    def _agree(self) -> None:
        if not self._agreed:
            self._tls.do_handshake()
            self._agreed = True

    def _take_in(self) -> bool:
        """Whether something new has arrived for TLS to read."""
        if self._ended or not readable([self.fileno()], 0.0):
            return False
        piece = self._socket.recv(PIECE)
        self._ended = not piece
        if piece:
            self._incoming.write(piece)
        return bool(piece)

    def _send_out(self) -> None:
        if self._outgoing.pending:
            self._socket.sendall(self._outgoing.read())


def tls_of(config: Any) -> Tls | None:
    """The TLS of a `ClusterConfig`; None without."""
    return Tls(config.certificate, config.key, config.authority) if config.certificate else None
