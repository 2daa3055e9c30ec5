"""A service for processes of this machine: messages over a unix socket, rows in shared memory.

The memory has no name in any file system. Each client receives its descriptor over the socket, so the memory is freed
with its last user, and only the user who may open the socket (its owner) can map it.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import select
import socket
import struct
import threading
import time

import numpy as np

from pappus.errors import RunError, UserError
from pappus.replay.service.service import Service
from pappus.replay.storage.compression import DiscardableMemory
from pappus.replay.wire.messages import MAX_MESSAGE, Buffer, Encoded
from pappus.replay.wire.remote import NearSession
from pappus.replay.wire.served_session import ServedSession
from pappus.transports.addresses import make_way
from pappus.transports.memory import SharedBlock

SIZE = struct.Struct("<Q")
ACCEPT_PAUSE_SECONDS = 0.1

log = logging.getLogger("pappus.replay")

GONE = "the replay service is gone, or this client was closed"


class SharedMemory:
    """Memory for a service whose clients map it: `Service(tables, allocate=memory.allocate)`."""

    def __init__(self) -> None:
        self.descriptor = -1

    def allocate(self, nbytes: int) -> DiscardableMemory:
        self.descriptor = SharedBlock.create(nbytes, num_notifiers=0).descriptors[0]
        mapping = mmap.mmap(self.descriptor, nbytes)
        return DiscardableMemory(np.frombuffer(mapping, np.uint8), mapping, self.close)

    def close(self) -> None:
        """Close the descriptor: no further process can map the memory."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


class SocketServer:
    """Serves a service on a unix socket, with a thread for every client."""

    def __init__(self, service: Service, memory: SharedMemory, path: str) -> None:
        if memory.descriptor < 0:
            raise UserError("the service was made without shared memory; make it with allocate=memory.allocate")
        self._service, self._memory = service, memory
        self.path = os.path.abspath(path)
        make_way(self.path)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            before = os.umask(0o077)
            try:
                self._listener.bind(self.path)
            finally:
                os.umask(before)
        except OSError as error:
            self._listener.close()
            text = f"unix socket {self.path!r} cannot be opened: {error.strerror}; give another path"
            raise UserError(text) from None
        self._listener.listen(128)
        self._clients: set[socket.socket] = set()
        self._closed = False
        self._thread = threading.Thread(target=self._accept, daemon=True, name="replay sockets")
        self._thread.start()

    def close(self) -> None:
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for client in list(self._clients):
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(OSError):
            os.unlink(self.path)

    def _accept(self) -> None:
        number = 0
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError as error:
                if self._closed:
                    return
                log.warning("a client could not be accepted: %s", error)
                time.sleep(ACCEPT_PAUSE_SECONDS)
                continue
            number += 1
            self._clients.add(client)
            threading.Thread(target=self._serve, args=(client, number), daemon=True).start()

    def _serve(self, client: socket.socket, number: int) -> None:
        session = ServedSession(self._service, f"client {number}", True, "", lambda: not _hung_up(client))
        try:
            socket.send_fds(client, [b"\0"], [self._memory.descriptor])
            stream = SocketConnection(client)
            while (request := stream.receive(None, session.max_message)) is not None:
                stream.send(session.answer(request))
        except (OSError, RunError):
            pass  # it has disconnected; what it held is released below
        finally:
            session.end()
            self._clients.discard(client)
            client.close()


class SocketConnection:
    """Messages over a stream socket: eight bytes of size, then the message."""

    def __init__(self, stream: socket.socket) -> None:
        self._socket = stream

    def send(self, message: Encoded) -> None:
        data = b"".join([SIZE.pack(message.size), *message.pieces])
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise RunError(f"{GONE}: {error.strerror}") from None

    def receive(self, seconds: float | None, most: int = MAX_MESSAGE) -> Buffer | None:
        try:
            self._socket.settimeout(seconds)
            first = self._socket.recv(1)
            self._socket.settimeout(None)
        except (TimeoutError, BlockingIOError):
            self._socket.settimeout(None)
            return None
        except OSError as error:
            raise RunError(f"{GONE}: {error.strerror}") from None
        if not first:
            raise RunError(GONE)
        size = SIZE.unpack(first + self._read(SIZE.size - 1))[0]
        if size > most:
            raise RunError(f"a message of {size} bytes is larger than {most}")
        return self._read(size)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _read(self, size: int) -> bytearray:
        data = bytearray(size)
        view, done = memoryview(data), 0
        while done < size:
            try:
                count = self._socket.recv_into(view[done:])
            except OSError as error:
                raise RunError(f"{GONE}: {error.strerror}") from None
            if not count:
                raise RunError(GONE)
            done += count
        return data


def connect(path: str, name: str = "") -> NearSession:
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.connect(path)
        _, descriptors, _, _ = socket.recv_fds(stream, 1, 1)
    except OSError as error:
        stream.close()
        raise UserError(f"no replay service answers on {path!r}: {error.strerror}; start it first") from None
    if not descriptors:
        stream.close()
        raise RunError(f"what listens on {path!r} is no replay service for this machine")
    try:
        mapping = mmap.mmap(descriptors[0], os.fstat(descriptors[0]).st_size)
    finally:
        os.close(descriptors[0])
    return NearSession(SocketConnection(stream), np.frombuffer(mapping, np.uint8), name or f"process {os.getpid()}", "")


def _hung_up(client: socket.socket) -> bool:
    """Whether the other side has disconnected, even if there is unread data."""
    if hasattr(select, "POLLRDHUP"):
        watch = select.poll()
        try:
            watch.register(client, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
            return bool(watch.poll(0))
        except (OSError, ValueError):
            return True
    try:
        return client.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
