"""A service for other machines: the same messages over gRPC, one stream per session.

    service pappus.Replay {
      rpc Session(stream bytes) returns (stream bytes);
    }

The bytes are those of `messages.py` and `served_session.py`. A message begins with its size (uint64) and is cut into
parts of about a megabyte: one end gathers and sends the next part while the other receives the last one.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import queue
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from typing import Any

import grpc
import numpy as np

from pappus.config import WireConfig
from pappus.errors import RunError, UserError
from pappus.replay.sampling.evaluation import Recycler
from pappus.replay.service.service import Service
from pappus.replay.wire.messages import MAX_MESSAGE, Buffer, Encoded
from pappus.replay.wire.remote import FarSession
from pappus.replay.wire.served_session import ServedSession
from pappus.transports.addresses import Address, nearest, read_token
from pappus.transports.grpc_request_client import Identity
from pappus.transports.grpc_server import SERVER_OPTIONS, listen
from pappus.transports.memory import EventNotifier

METHOD = "/pappus.Replay/Session"
PART_BYTES = 1 << 20
SIZE = struct.Struct("<Q")
MAX_SESSIONS = 1024
"""Maximum number of sessions; each has a thread, which mostly sleeps."""
CONNECT_SECONDS = HELLO_SECONDS = 10.0
"""Time limits for a server to answer, and for a client to authenticate."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""As glibc's malloc.h numbers them."""
KEPT_FREE, LARGEST_KEPT = 64 << 20, 32 << 20
"""Bytes that the C library may keep at the end of a heap, and the largest block that is allocated from a heap (glibc
allows at most 32 MiB)."""


class GrpcServer:
    """Serves a service at the address of `wire`, with its token and TLS settings."""

    def __init__(self, service: Service, wire: WireConfig, checkpoints: str = "") -> None:
        """`checkpoints` is the folder to which clients may write checkpoints; empty: none."""
        keep_freed_memory()
        self._service, self._checkpoints = service, checkpoints
        self._token = read_token(wire.token_file)
        self._numbers = iter(range(1, 1 << 62))
        self._server = grpc.server(
            ThreadPoolExecutor(MAX_SESSIONS, "replay"), maximum_concurrent_rpcs=MAX_SESSIONS,
            options=[*SERVER_OPTIONS, ("grpc.max_receive_message_length", 2 * PART_BYTES)],
        )
        handler = grpc.stream_stream_rpc_method_handler(self._session)
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("pappus.Replay", {"Session": handler}),)
        )
        self._doors = listen(self._server, wire)
        self.address = self._doors.address
        self._server.start()

    def close(self) -> None:
        """End all sessions."""
        self._server.stop(0.5).wait()
        self._doors.close()

    def _session(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        session = ServedSession(
            self._service, f"client {next(self._numbers)} at {context.peer()}", False, self._token, context.is_active,
            self._checkpoints,
        )
        context.add_callback(session.interrupt)
        hello = threading.Timer(HELLO_SECONDS, lambda: None if session.welcomed else context.cancel())
        hello.daemon = True
        hello.start()  # clients that do not authenticate must not occupy threads
        try:
            parts = Parts(requests)
            while (request := parts.join(session.max_message)) is not None:
                yield from cut(session.answer(request))
        finally:
            hello.cancel()
            session.end()


def cut(message: Encoded) -> Iterator[bytes]:
    """A message in parts of about `PART_BYTES`."""
    waiting: list[Buffer] = [SIZE.pack(message.size)]
    size = SIZE.size
    for piece in message.pieces:
        for begin in range(0, len(piece), PART_BYTES):
            part = memoryview(piece)[begin : begin + PART_BYTES]
            if size + len(part) > PART_BYTES:
                yield b"".join(waiting)
                waiting, size = [], 0
            waiting.append(part)
            size += len(part)
    yield b"".join(waiting)


class Parts:
    """Joins the parts of messages."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts = parts
        self._recycler = Recycler()

    def join(self, most: int = MAX_MESSAGE) -> Buffer | None:
        """The next message, of at most `most` bytes; None at the end of the stream."""
        part = next(self._parts, None)
        if part is None:
            return None
        size = SIZE.unpack_from(part)[0] if len(part) >= SIZE.size else most + 1
        if size > most:
            raise RunError(f"a message of {size} bytes is larger than {most}")
        if len(part) == SIZE.size + size:
            return memoryview(part)[SIZE.size :]
        whole = self._recycler.empty((size,), np.dtype(np.uint8))
        done = len(part) - SIZE.size
        whole[:done] = np.frombuffer(part, np.uint8, offset=SIZE.size)
        while done < size:
            part = next(self._parts)
            whole[done : done + len(part)] = np.frombuffer(part, np.uint8)
            done += len(part)
        return whole.data


class GrpcConnection:
    """Messages over one stream."""

    def __init__(self, address: Address, identity: Identity) -> None:
        keep_freed_memory()
        self._where = str(address)
        self._channel = identity.channel(nearest(address, identity.tls))
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        call = self._channel.stream_stream(METHOD)
        self._stream: Any = call(iter(self._outgoing.get, None))
        self._parts = Parts(self._stream)
        self._reader = ThreadPoolExecutor(1, "replay answers")  # used only for calls with a time limit
        self._pending: Future[Buffer | None] | None = None
        self._notifier: EventNotifier | None = None
        self._arrived: queue.SimpleQueue[Buffer | BaseException | None] = queue.SimpleQueue()
        """Answers, from the first call of `fileno` on."""

    def send(self, message: Encoded) -> None:
        if not self._stream.is_active():
            self._explain()
        for part in cut(message):
            self._outgoing.put(part)

    def receive(self, seconds: float | None) -> Buffer | None:
        try:
            if self._notifier is not None and self._pending is None:
                answer = self._next_arrived(seconds)
            elif seconds is None and self._pending is None:
                answer = self._parts.join()
            else:
                self._pending = self._pending or self._reader.submit(self._parts.join)
                answer = self._pending.result(seconds)
                self._pending = None
        except (NotYet, queue.Empty):
            return None
        except (grpc.RpcError, StopIteration):
            self._explain()
            raise
        if answer is None:
            self._explain()
        return answer

    def fileno(self) -> int:
        """From the first call on, a thread receives the answers and signals the descriptor."""
        if self._notifier is None:
            notifier = self._notifier = EventNotifier(*EventNotifier.descriptors())
            if self._pending is not None:
                self._pending.add_done_callback(lambda _: notifier.notify())
            self._reader.submit(self._take_in, notifier)
        return self._notifier.fileno()

    def _take_in(self, notifier: EventNotifier) -> None:
        while True:
            try:
                answer: Buffer | BaseException | None = self._parts.join()
            except BaseException as error:
                answer = error
            self._arrived.put(answer)
            notifier.notify()
            if answer is None or isinstance(answer, BaseException):
                return

    def _next_arrived(self, seconds: float | None) -> Buffer | None:
        assert self._notifier is not None
        if self._arrived.empty():
            self._notifier.clear()  # before the check: later answers signal again
        answer = self._arrived.get(timeout=seconds) if seconds else self._arrived.get(block=seconds is None)
        if isinstance(answer, BaseException):
            self._arrived.put(answer)
            raise answer
        return answer

    def close(self) -> None:
        self._outgoing.put(None)
        self._stream.cancel()
        if self._notifier is not None:
            self._reader.submit(os.close, self._notifier.fileno())  # after its last signal
        self._reader.shutdown(wait=False)
        self._channel.close()

    def _explain(self) -> None:
        detail = ""
        with contextlib.suppress(Exception):
            detail = f": {self._stream.details()}"
        raise RunError(f"the replay service at {self._where} is gone or refused the connection{detail}") from None


def connect(address: str, identity: Identity | None = None) -> FarSession:
    """A session with the service that listens at HOST:PORT or unix:PATH."""
    who = identity or Identity()
    connection = GrpcConnection(Address.parse(address), who)
    token = read_token(who.token_file)
    timer = threading.Timer(CONNECT_SECONDS, connection.close)
    timer.start()
    try:
        return FarSession(connection, who.name or f"process {os.getpid()}", token)
    except (RunError, grpc.FutureCancelledError, ValueError) as error:
        connection.close()
        raise UserError(f"no replay service answers at {address}: {error}") from None
    finally:
        timer.cancel()


@functools.cache
def keep_freed_memory() -> None:
    """Make the C library keep freed memory, up to `KEPT_FREE`. By default it returns blocks of a megabyte to the system
    at once, and page faults bring them back. This makes a stream of sequences a sixth faster."""
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_TRIM_THRESHOLD, KEPT_FREE)
        mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
