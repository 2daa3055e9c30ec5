"""The page over HTTP: the standard library's server with a thread for each connection, and everything bounded.

A connection carries one request. Its head must come within seconds, its answer must be taken within as many; who is
slower is cut off, and who comes while too many are here is told so. No thread here is waited for.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import socketserver
import ssl
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any

from pappus.config import PageConfig
from pappus.errors import UserError
from pappus.page.access import Access, tls_of
from pappus.page.answers import Answer, Part, Shown, answer, refused
from pappus.page.streams import Stream, WatchedRun
from pappus.transports.addresses import Address, read_token

MOST_CONNECTIONS, MOST_STREAMS = 64, 32
HEAD_BYTES, HEAD_SECONDS, SEND_SECONDS = 16 << 10, 10.0, 30.0
LOOK_SECONDS, KEEPALIVE_SECONDS = 1.0, 15.0
END_SECONDS, POLL_SECONDS = 0.5, 0.1
"""How long the end waits until all streams have the last events, and how often the server looks whether it has come."""
FILE_BLOCK = 256 << 10
BUSY = b"HTTP/1.0 503 Service Unavailable\r\nContent-Type: text/plain\r\nRetry-After: 10\r\n\r\ntoo many look at it\n"
ALWAYS = {
    "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer", "Cross-Origin-Resource-Policy": "same-origin", "Connection": "close",
}
Socket = socket.socket | ssl.SSLSocket


class PageServer(socketserver.ThreadingTCPServer):
    """Serves from `start` to `close`."""

    daemon_threads, block_on_close, allow_reuse_address = True, False, True
    request_queue_size = MOST_CONNECTIONS

    def __init__(self, shown: Shown, config: PageConfig | None = None, port: int = 0) -> None:
        """Listens at once; `UserError` where that is impossible. `port` is meant where the config has no address."""
        config = config or PageConfig()
        self.address = Address.parse(config.listen) if config.listen else Address("127.0.0.1", port)
        self.shown, self.tls = shown, tls_of(config)
        self.address_family = socket.AF_INET6 if ":" in self.address.host else socket.AF_INET
        self._room = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._streams = threading.BoundedSemaphore(MOST_STREAMS)
        self._sending, self._over, self._started = set[int](), threading.Event(), False
        try:
            super().__init__((self.address.host, self.address.port), Handler)
        except OSError as error:
            reason = error.strerror or str(error)
            text = f"no page can be served at {self.address}: {reason}; give a free port of this machine"
            raise UserError(text) from None
        self.port = int(self.server_address[1])
        self.access = Access(read_token(config.token_file), f"pappus-{self.port}")

    @property
    def url(self) -> str:
        """What to open in a browser; the token is for its reader to fill in."""
        everywhere = self.address.host in ("0.0.0.0", "::")
        at = Address(socket.gethostname() if everywhere else self.address.host, self.port)
        return f"http{'s' * (self.tls is not None)}://{at}/{'?token=…' * bool(self.access.token)}"

    def start(self) -> None:
        """Serve beside the caller."""
        for work in (self._look, lambda: self.serve_forever(POLL_SECONDS)):
            threading.Thread(target=work, name="page", daemon=True).start()
        self._started = True

    def wait(self) -> None:
        """Until the server is closed, or Ctrl-C."""
        self._over.wait()

    def close(self) -> None:
        """Send the last events, wait a moment until they are taken, and serve no more."""
        for run in self.shown.watched():
            run.end()
        until = time.monotonic() + END_SECONDS
        while self._sending and time.monotonic() < until:
            time.sleep(0.01)
        self._over.set()
        if self._started:
            self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """As the base class, but for no more than so many at a time."""
        if self._room.acquire(blocking=False):
            try:
                return super().process_request(request, client_address)
            except RuntimeError:  # no thread can be started
                self._room.release()
        with contextlib.suppress(OSError):
            request.setblocking(False)
            request.send(BUSY)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that fails concerns nobody else."""

    def stream(self, run: WatchedRun, after: str, connection: Socket) -> bool:
        """Send events until the browser leaves, is too slow, or nothing more comes; False if there are too many."""
        if not self._streams.acquire(blocking=False):
            return False
        try:
            self._send_events(run, run.subscribe(after), connection)
        finally:
            self._streams.release()
        return True

    def _send_events(self, run: WatchedRun, stream: Stream, connection: Socket) -> None:
        self._sending.add(id(stream))
        try:
            connection.sendall(b"retry: 2000\n\n")
            while not self._over.is_set() and (message := stream.get(KEEPALIVE_SECONDS)) != b"":
                connection.sendall(b":\n\n" if message is None else message)
        finally:
            self._sending.discard(id(stream))
            run.leave(stream)

    def _look(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            for run in self.shown.watched():
                with contextlib.suppress(Exception):  # of one run that cannot be read; the others go on
                    run.look()


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: PageServer
    server_version, sys_version = "pappus", ""
    default_request_version = "HTTP/1.0"  # of a request that names none: its answer has a status, too

    def setup(self) -> None:
        self.request.settimeout(HEAD_SECONDS)
        if self.server.tls is not None:
            self.request = self.server.tls.wrap_socket(self.request, server_side=True)
        super().setup()

    def handle(self) -> None:
        """Read a head, answer, and take what else comes, so that the answer arrives."""
        with contextlib.suppress(OSError):
            head = read_head(self.connection, time.monotonic() + HEAD_SECONDS)
            self.connection.settimeout(SEND_SECONDS)
            self.rfile = io.BufferedReader(io.BytesIO(head))
            if head.partition(b"\n")[0].strip() and (b"\r\n\r\n" in head or b"\n\n" in head):
                self.handle_one_request()
            elif head:
                self.requestline, self.request_version, self.command = "", "HTTP/1.0", ""
                self.send_error(HTTPStatus.BAD_REQUEST, "the head of a request is missing, or too long")
            self._drain()

    def do_GET(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            found = answer(self.server.shown, self.server.access, self.path, headers, self.server.tls is not None)
        except Exception as error:  # of files that are odd in a way that nobody thought of
            found = refused(HTTPStatus.INTERNAL_SERVER_ERROR, f"the run cannot be shown: {type(error).__name__}")
        self._send(found)

    do_HEAD = do_GET

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """A sentence in place of the base class's page."""
        status = HTTPStatus(code)
        self._send(refused(status, message or status.phrase))

    def log_message(self, format: str, *args: Any) -> None:
        """A run has other things to say."""

    def _send(self, found: Answer) -> None:
        part = found.part
        try:
            self._send_head(found)
            if self.command == "HEAD":
                return
            if part is not None:
                self._send_part(part)
            elif found.events is None:
                self.connection.sendall(found.body)
            elif not self.server.stream(found.events, found.after, self.connection):
                self.connection.sendall(b"retry: 30000\n\n")
        finally:
            if part is not None:
                os.close(part.descriptor)

    def _send_head(self, found: Answer) -> None:
        self.send_response(found.status)
        length = [] if found.events else [("Content-Length", str(found.part.length if found.part else len(found.body)))]
        for name, value in (*ALWAYS.items(), ("Content-Type", found.kind), *length, *found.headers):
            self.send_header(name, value)
        self.end_headers()

    def _send_part(self, part: Part) -> None:
        at, end = part.start, part.start + part.length
        while at < end and (block := os.pread(part.descriptor, min(FILE_BLOCK, end - at), at)):
            self.connection.sendall(block)
            at += len(block)

    def _drain(self) -> None:
        """A connection that is closed with something unread takes the answer with it."""
        self.connection.settimeout(0.2)
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            for _ in range(16):
                if not self.connection.recv(HEAD_BYTES):
                    return


def read_head(connection: Socket, until: float) -> bytes:
    """What comes up to the end of a request's head, or as much of it as comes in time and is not too long."""
    head = b""
    while len(head) < HEAD_BYTES and (left := until - time.monotonic()) > 0:
        connection.settimeout(left)
        try:
            block = connection.recv(HEAD_BYTES - len(head))
        except TimeoutError:
            break
        head += block
        if not block or b"\r\n\r\n" in head or b"\n\n" in head:
            break
    return head
