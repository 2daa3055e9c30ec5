"""What gRPC servers share: where they listen, what they check of what arrives, and how they refuse a stream."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio

from pappus.config import WireConfig
from pappus.errors import UserError, WireError
from pappus.transports.addresses import Address, ips_of, make_way, socket_beside
from pappus.transports.codec import Buffer

HANDSHAKE_SECONDS = 10.0
"""Time limit for a stream's first message, and for the answer to it."""
MAX_FRAME_BYTES = (1 << 24) - 1
"""The largest frame that HTTP/2 knows; the default of 16 KiB costs large messages a tenth of their speed."""
SERVER_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 10_000), ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1), ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.so_reuseport", 0), ("grpc.http2.max_frame_size", MAX_FRAME_BYTES),
]
MAX_REFUSAL = 1000
"""Characters of a status: gRPC sends it in a header, whose size is limited."""


class Listeners(NamedTuple):
    """Where a server is reached, and the unix socket to remove when it ends (or nothing)."""

    address: str
    socket: str

    def close(self) -> None:
        if self.socket:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.socket)


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
        raise UserError(f"listen={wire.listen!r} cannot be opened ({reason}?); give another")
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


class Refusal(Exception):
    """Ends one stream with a status."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code, self.text = grpc.StatusCode[code], text[:MAX_REFUSAL]


class Ration:
    """Lets so many lines a minute pass, and counts the others: refusals must not fill the disk."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most, self._clock = most, clock
        self._began, self._lines = clock(), 0

    def passes(self) -> tuple[bool, int]:
        """Whether another line may pass, and if a new minute begins, how many could not in the last one."""
        held = 0
        if self._clock() - self._began >= 60:
            held, self._began, self._lines = max(0, self._lines - self._most), self._clock(), 0
        self._lines += 1
        return self._lines <= self._most, held


class Strangers:
    """Streams whose first message has not come. Of more than `most` the oldest gives up: clients speak at once."""

    def __init__(self, most: int) -> None:
        self._most, self._limits = most, dict[asyncio.Timeout, None]()

    def add(self, limit: asyncio.Timeout) -> None:
        self._limits[limit] = None
        if len(self._limits) > self._most:
            oldest = next(iter(self._limits))
            del self._limits[oldest]
            oldest.reschedule(asyncio.get_running_loop().time())

    def remove(self, limit: asyncio.Timeout) -> None:
        self._limits.pop(limit, None)


async def first_message(context: Any, what: str, strangers: Strangers | None = None) -> bytes:
    """What a stream begins with; a `Refusal` if it does not come."""
    limit = asyncio.timeout(HANDSHAKE_SECONDS)
    try:
        async with limit:
            if strangers is not None:
                strangers.add(limit)
            message: bytes = await context.read()
    except TimeoutError:
        raise Refusal("DEADLINE_EXCEEDED", f"no {what} came within {HANDSHAKE_SECONDS:.0f} s") from None
    finally:
        if strangers is not None:
            strangers.remove(limit)
    if message is grpc.aio.EOF:
        raise Refusal("INVALID_ARGUMENT", f"the stream ended before {what}")
    return message


def understood(decode: Callable[..., Any], data: Buffer, *arguments: Any) -> Any:
    """The decoded message; a `Refusal` if it cannot be decoded."""
    try:
        return decode(data, *arguments)
    except WireError as error:
        raise Refusal("INVALID_ARGUMENT", str(error)) from None
