"""Where a gRPC server listens: its address, a unix socket beside it, and certificates."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from pappus.config import WireConfig
from pappus.errors import UserError
from pappus.transports.addresses import Address, ips_of, make_way, socket_beside

MAX_FRAME_BYTES = (1 << 24) - 1
"""The largest frame that HTTP/2 knows; the default of 16 KiB costs large messages a tenth of their speed."""
SERVER_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 10_000), ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1), ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.so_reuseport", 0), ("grpc.http2.max_frame_size", MAX_FRAME_BYTES),
]


class Listeners(NamedTuple):
    """Where a server is reached, and the unix socket to remove when it ends (or nothing)."""

    address: str
    socket: str


def listen(server: Any, wire: WireConfig) -> Listeners:
    """Have a server (sync or asyncio) listen as `wire` says."""
    address, credentials = Address.parse(wire.listen), server_credentials(wire)

    def add(target: str) -> int:
        try:
            if credentials is None:
                return int(server.add_insecure_port(target))
            return int(server.add_secure_port(target, credentials))
        except RuntimeError:
            return 0

    path = address.path
    if path:
        make_way(path)
    port = add(str(address))
    if not port:
        reason = "is its folder missing, or the path too long" if path else "is the port in use"
        raise UserError(f"listen={wire.listen!r} cannot be opened; {reason}? give another")
    if path:
        os.chmod(path, 0o600)
        return Listeners(str(address), path)
    reached = str(Address(address.host, port))
    beside = "" if credentials is not None else socket_beside(next(iter(ips_of(address.host)), address.host), port)
    if beside:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
        beside = beside if add(f"unix:{beside}") else ""
    return Listeners(reached, beside)


def server_credentials(wire: WireConfig) -> grpc.ServerCredentials | None:
    """What TLS needs, or None without it."""
    if not wire.certificate:
        return None
    authority = Path(wire.client_authority).read_bytes() if wire.client_authority else None
    pair = (Path(wire.key).read_bytes(), Path(wire.certificate).read_bytes())
    return grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)


def stop_listening(listeners: Listeners) -> None:
    if listeners.socket:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(listeners.socket)
