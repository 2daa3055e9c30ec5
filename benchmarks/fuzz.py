"""Does any listener crash, hang or grow when it hears nonsense?

    python -m benchmarks.fuzz --messages 1000000

Good messages are mutated (bits, bytes, pieces lost, doubled, moved), from a seed, and given to the code that listens:
the wire of envs, the replay server, the node agents, the driver's TCP listener and the page of a run (these two over
sockets). After it, a client without a fault must be served. Memory is what the process holds after a tenth of the
messages, and at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import socket
import struct
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio
import numpy as np

from pappus.config import WireConfig
from pappus.page.folder import OneRun
from pappus.page.following import FollowedRun
from pappus.page.server import PageServer
from pappus.replay.service.service import Service
from pappus.replay.tables.table import Table, queue
from pappus.replay.wire.messages import decode, encode
from pappus.replay.wire.served_session import PROTOCOL, ServedSession
from pappus.runtimes.connections import ConnectionListener, StreamConnection
from pappus.telemetry.processes import resident_bytes
from pappus.transports.codec import Hello, Welcome, encode_env_group, layout
from pappus.transports.grpc_mirrors import TOKEN, Streams
from pappus.transports.grpc_request_server import GrpcRequestServer
from pappus.transports.memory import EventNotifier
from pappus.types import ArraySpec, DiscreteAction, EnvSpec, leaves_of, map_leaves, request_spec

ENV = EnvSpec({"a": ArraySpec((3,), "float32"), "b": ArraySpec((), "int64", (4,))}, DiscreteAction(5))
SECRET = "sesame"
TURNS = 1000
"""Messages between two looks at the time."""
SECONDS = 60.0
"""`TURNS` messages take seconds; a listener that takes longer hangs."""
LINGER = struct.pack("ii", 1, 0)
"""A socket that is closed at once, so that a million of them find ports."""


def mutate(rng: random.Random, message: bytes) -> bytes:
    """A message with some of its bytes changed, lost, doubled or moved."""
    data = bytearray(message)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        at, size = rng.randrange(len(data) + 1), rng.randrange(1, 16)
        kind = rng.randrange(5)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and at < len(data):
            data[at] = rng.choice((0, 1, 2, 127, 128, 255))
        elif kind == 2:
            del data[at : at + size]
        elif kind == 3:
            data[at:at] = rng.randbytes(size)
        else:
            data[at:at] = data[at : at + size]
    return bytes(data)


class Target(Protocol):
    """A listener under test."""

    def hear(self, rng: random.Random, count: int) -> None:
        """So many mutated messages; any exception is a crash."""

    def serves(self) -> bool:
        """Whether a good client gets what it wants."""

    def close(self) -> None: ...


class Ended(Exception):
    """A stream was ended by its server, with a status."""


class Conversation:
    """The server's end of a gRPC stream that says what it is told to, and then nothing more."""

    def __init__(self, *messages: bytes, metadata: Sequence[tuple[str, Any]] = ()) -> None:
        self._messages, self._metadata = list(messages), metadata
        self.heard: list[bytes] = []

    async def read(self) -> Any:
        return self._messages.pop(0) if self._messages else grpc.aio.EOF

    async def write(self, message: bytes) -> None:
        self.heard.append(message)

    async def abort(self, code: grpc.StatusCode, text: str) -> None:
        assert isinstance(code, grpc.StatusCode) and text.isprintable(), text
        raise Ended

    def peer(self) -> str:
        return "fuzz"

    def invocation_metadata(self) -> Sequence[tuple[str, Any]]:
        return self._metadata


async def _converse(serve: Any, conversations: Sequence[Conversation]) -> None:
    for conversation in conversations:
        with contextlib.suppress(Ended):
            await asyncio.wait_for(serve(None, conversation), SECONDS)


class Wire:
    """Envs that join from elsewhere."""

    def __init__(self) -> None:
        request, action = request_spec(ENV), ENV.action.array
        notifier = EventNotifier(*EventNotifier.descriptors())
        wire = WireConfig(listen="127.0.0.1:0")
        self._server = GrpcRequestServer("fuzz", wire, request, action, (5,), "run", notifier)
        self._hello = Hello(layout(request), layout({"action": action})[0], 2, 4, "fuzz").encode()
        arrays = map_leaves(lambda leaf: np.zeros((4, *leaf.shape), leaf.dtype), request)
        self._steps = encode_env_group(0, leaves_of(arrays))

    def hear(self, rng: random.Random, count: int) -> None:
        talks = []
        for turn in range(count // 2):
            first = mutate(rng, self._hello) if turn % 4 == 0 else self._hello
            talks.append(Conversation(first, mutate(rng, self._steps), self._steps))
        asyncio.run_coroutine_threadsafe(_converse(self._server._act, talks), self._server._loop).result(SECONDS)
        for drained in (self._server.calls, self._server.left, self._server.news):
            drained()

    def serves(self) -> bool:
        channel = grpc.insecure_channel(self._server.address)
        stream = channel.stream_stream("/pappus.Inference/Act")(iter([self._hello]), timeout=SECONDS)
        welcome = Welcome.decode(bytes(next(stream)))
        stream.cancel()
        channel.close()
        return welcome.run == "run"

    def close(self) -> None:
        self._server.close()


class Replay:
    """A session of the stand-alone replay server."""

    def __init__(self) -> None:
        columns = {"x": ArraySpec((), "int64"), "v": ArraySpec((2,), "float32")}
        tables: list[Table] = [queue("q", 8, columns)]
        self._service = Service(tables, 64, 4)
        rows = {"column/x": np.zeros((2, 4), np.int64), "column/v": np.zeros((2, 4, 2), np.float32)}
        chunks = np.arange(2)
        item = {
            "priorities": np.ones(1), "base": np.zeros(1, np.int64), "lead": np.zeros(1, np.int64),
            "span": np.ones(1, np.int64), "start": np.zeros((1, 2), np.int64), "length": np.ones((1, 2), np.int64),
        }
        one = np.zeros(1, np.int64)
        sample = {"do": "sample", "table": "q", "count": 1, "seconds": 0.0, "partial": True, "columns": ["x"]}
        asked: list[tuple[dict[str, Any], dict[str, Any]]] = [
            ({"do": "rows", "begin": 0, "end": 4}, {"chunks": chunks, **rows}),
            ({"do": "link"}, {"before": chunks[:1], "after": chunks[1:]}), ({"do": "insert", "table": "q"}, item),
            ({**sample, "lead": 0}, {}), ({"do": "update", "table": "q"}, {"keys": one, "priorities": np.ones(1)}),
            ({"do": "delete", "table": "q"}, {"keys": one}), ({"do": "give"}, {"chunks": chunks}),
            ({"do": "take", "count": 1, "seconds": 0.0}, {}), ({"do": "reset", "table": "q"}, {}),
            ({"do": "bounds", "table": "q", "least": None, "most": None, "min_size": 1}, {}),
            ({"do": "weigh", "table": "q"}, {}), ({"do": "info", "table": "q"}, {}), ({"do": "done", "number": 1}, {}),
            ({"do": "checkpoint", "path": "x"}, {}),
        ]
        self._hello = self._bytes({"do": "hello", "protocol": PROTOCOL, "token": SECRET, "name": "fuzz"}, {})
        self._requests = [self._bytes(words, arrays) for words, arrays in asked]

    @staticmethod
    def _bytes(words: dict[str, Any], arrays: dict[str, Any]) -> bytes:
        return b"".join(bytes(piece) for piece in encode(words, arrays).pieces)

    def _session(self) -> ServedSession:
        return ServedSession(self._service, "fuzz", False, SECRET, lambda: False, "")

    def hear(self, rng: random.Random, count: int) -> None:
        session = self._session()
        for turn in range(count):
            if turn % 50 == 0:
                session.end()
                session = self._session()
                message = self._hello if turn % 100 else mutate(rng, self._hello)
            else:
                original = rng.choice(self._requests)
                message = original if turn % 3 == 0 else mutate(rng, original)
            for piece in session.answer(message).pieces:
                assert len(piece) >= 0
        session.end()
        for table in self._service.tables:
            self._service.reset(table)

    def serves(self) -> bool:
        session = self._session()
        welcome = decode(b"".join(bytes(piece) for piece in session.answer(self._hello).pieces))
        session.end()
        return "tables" in welcome.words

    def close(self) -> None: ...


class NodeAgent:
    """Streams between node agents; a tenth of them know the token."""

    def __init__(self) -> None:
        self._streams = Streams("node", SECRET)
        self._opening = json.dumps(["edge", 1, "other", 2]).encode() + b"\nhello"

    def hear(self, rng: random.Random, count: int) -> None:
        token = SECRET.encode()
        talks = [
            Conversation(
                mutate(rng, self._opening), metadata=((TOKEN, token if turn % 10 == 0 else mutate(rng, token)),)
            )
            for turn in range(count)
        ]
        asyncio.run(_converse(self._streams._serve, talks))

    def serves(self) -> bool:
        good = Conversation(self._opening, metadata=((TOKEN, SECRET.encode()),))
        asyncio.run(_converse(self._streams._serve, [good]))
        return not self._streams.traffic  # the hub of that edge is elsewhere: it was told so, and nothing is kept

    def close(self) -> None: ...


class DriverListener:
    """The driver of a Ray run, over real sockets."""

    def __init__(self) -> None:
        self._listener = ConnectionListener("127.0.0.1", SECRET)
        self._hello = {"token": SECRET, "group": "actor-0", "incarnation": 0, "pid": 7, "versions": {"python": "3.11"}}

    def hear(self, rng: random.Random, count: int) -> None:
        wrong = json.dumps({**self._hello, "token": "wrong"}).encode() + b"\n"
        ends = []
        for _ in range(count):
            end = socket.create_connection(self._listener.address)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
            end.sendall(mutate(rng, wrong))
            ends.append(end)
            if len(ends) == 50:
                self._let_go(ends)
        self._let_go(ends)

    def _let_go(self, ends: list[socket.socket]) -> None:
        assert not self._listener.arrivals(time.monotonic()), "nobody knew the token"
        for end in ends:
            end.close()
        ends.clear()
        self._listener.arrivals(time.monotonic())

    def serves(self) -> bool:
        line = StreamConnection.connect(self._listener.address, self._hello)
        deadline, arrived = time.monotonic() + SECONDS, list[Any]()
        while not arrived and time.monotonic() < deadline:
            arrived = self._listener.arrivals(time.monotonic())
        line.close()
        return [hello["group"] for hello, _ in arrived] == ["actor-0"]

    def close(self) -> None:
        self._listener.close()


class RunPage:
    """The page of a run, over real sockets; every request has an answer."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        (Path(self._folder.name) / "metrics.jsonl").write_text('{"step": 1, "time": 1.0}\n')
        self._server = PageServer(OneRun(FollowedRun(Path(self._folder.name))))
        self._server.start()
        self._good = b"GET /data?token=x HTTP/1.1\r\nHost: localhost\r\nCookie: a=b\r\nRange: bytes=0-3\r\n\r\n"

    def hear(self, rng: random.Random, count: int) -> None:
        for _ in range(count):
            assert self._answer(mutate(rng, self._good)).startswith(b"HTTP/1.0 ")

    def _answer(self, request: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self._server.port), timeout=SECONDS) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER)
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(1 << 16), b""))

    def serves(self) -> bool:
        return b'"mode":"run"' in self._answer(self._good)

    def close(self) -> None:
        self._server.close()
        self._folder.cleanup()


TARGETS: dict[str, type[Any]] = {
    "wire": Wire, "replay": Replay, "node agent": NodeAgent, "driver": DriverListener, "page": RunPage,
}


def fuzz(target: Target, messages: int, seed: int) -> tuple[float, int, int]:
    """Seconds, and the bytes that the process held after a tenth of the messages and at the end."""
    rng, began, early = random.Random(seed), time.perf_counter(), 0
    for heard in range(0, messages, TURNS):
        before = time.perf_counter()
        target.hear(rng, min(TURNS, messages - heard))
        assert time.perf_counter() - before < SECONDS, f"{TURNS} messages took longer than {SECONDS:.0f} s"
        if heard <= messages // 10:
            early = resident_bytes(os.getpid()) or 0
    assert target.serves(), "a good client is not served any more"
    return time.perf_counter() - began, early, resident_bytes(os.getpid()) or 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000, help="in all, in equal parts for all listeners")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"{'listener':<12} {'messages':>10} {'seconds':>8} {'MiB early':>10} {'MiB at the end':>15}")
    for name, make in TARGETS.items():
        target, share = make(), options.messages // len(TARGETS)
        seconds, early, late = fuzz(target, share, options.seed)
        print(f"{name:<12} {share:>10,} {seconds:>8.1f} {early / 2**20:>10.1f} {late / 2**20:>15.1f}", flush=True)
        target.close()


if __name__ == "__main__":
    main()
