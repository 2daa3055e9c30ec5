"""Whatever a client says, it gets an error or a closed connection; others notice nothing, and no chunk is lost."""

from __future__ import annotations

import contextlib
import queue
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol
from unittest.mock import patch

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pappus.config import WireConfig
from pappus.errors import UserError
from pappus.replay.clients.client import Client
from pappus.replay.service.service import Holder, Service
from pappus.replay.tables import table as tables
from pappus.replay.wire import grpc_wire, sockets
from pappus.replay.wire.grpc_wire import METHOD, SIZE, GrpcServer, Parts
from pappus.replay.wire.messages import MAX_MESSAGE, Buffer, Message, decode, encode
from pappus.replay.wire.served_session import MAX_HELLO, PROTOCOL, ServedSession
from pappus.replay.wire.sockets import SharedMemory, SocketServer
from pappus.transports.grpc_request_client import Identity
from pappus.types import Array, ArraySpec
from tests.contracts.replay_tools import (
    NUMBER,
    SECONDS,
    Background,
    add,
    drawn,
    only_items_hold_chunks,
    put,
    replay,
    waiting,
)
from tests.process_tools import eventually

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning", "ignore::RuntimeWarning"),
]
COLUMNS = {"x": ArraySpec((), "int64"), "v": ArraySpec((2,), "float32")}
TABLES = [
    replay("t", 8), replay("led", 8, lead=2, signature=COLUMNS), tables.queue("q", 1, NUMBER),
    replay("once", 8, max_times_sampled=1),
]
LENGTH, ROWS = 4, 4 * (8 + 16)
HUGE = 1 << 62
"""Far too many: an array of so many numbers cannot even be asked for."""


def message(words: dict[str, Any], **arrays: Any) -> bytes:
    found = {name: np.asarray(value) for name, value in arrays.items()}
    return b"".join(encode(words, found).pieces)


def hello(**changes: Any) -> bytes:
    return message({"do": "hello", "protocol": PROTOCOL, "token": "", "name": "mallory", **changes})


class Line(Protocol):
    """A connection that says whatever it is told to."""

    def say(self, message: bytes) -> None: ...

    def say_raw(self, data: bytes) -> None:
        """Without a frame that tells where a message ends."""

    def hear(self) -> Message | None:
        """The next answer; None if the connection is closed."""

    def close(self) -> None: ...


class SocketLine:
    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(SECONDS)
        self._socket.connect(path)
        for descriptor in socket.recv_fds(self._socket, 1, 1)[1]:
            socket.close(descriptor)

    def say(self, message: bytes) -> None:
        self.say_raw(SIZE.pack(len(message)) + message)

    def say_raw(self, data: bytes) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(data)

    def hear(self) -> Message | None:
        try:
            head = self._read(SIZE.size)
            return decode(self._read(SIZE.unpack(head)[0]))
        except (EOFError, ConnectionResetError):
            return None

    def close(self) -> None:
        self._socket.close()

    def _read(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            if not (more := self._socket.recv(count - len(found))):
                raise EOFError
            found += more
        return found


class GrpcLine:
    def __init__(self, address: str) -> None:
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._channel = grpc.insecure_channel(address)
        self._stream = self._channel.stream_stream(METHOD)(iter(self._outgoing.get, None), timeout=4 * SECONDS)
        self._parts = Parts(self._stream)

    def say(self, message: bytes) -> None:
        self.say_raw(SIZE.pack(len(message)) + message)

    def say_raw(self, data: bytes) -> None:
        self._outgoing.put(data)

    def hear(self) -> Message | None:
        try:
            answer: Buffer | None = self._parts.join()
        except (grpc.RpcError, StopIteration) as error:
            code = error.code() if isinstance(error, grpc.RpcError) else None
            assert code != grpc.StatusCode.DEADLINE_EXCEEDED, "no answer"
            return None
        return None if answer is None else decode(answer)

    def close(self) -> None:
        self._outgoing.put(None)
        self._stream.cancel()
        self._channel.close()


class Site:
    """A service, somebody who uses it properly, and somebody who does not."""

    def __init__(self, kind: str, folder: Path, token: str = "") -> None:
        self.kind, self.near = kind, kind == "socket"
        self._server: SocketServer | GrpcServer
        if self.near:
            memory = SharedMemory()
            self.service = Service(TABLES, 32, LENGTH, allocate=memory.allocate)
            self._server = server = SocketServer(self.service, memory, str(folder / "s"))
            self.client = Client(lambda: sockets.connect(server.path))
        else:
            self.service = Service(TABLES, 32, LENGTH)
            self._server = far = GrpcServer(self.service, WireConfig(listen="127.0.0.1:0", token_file=token))
            self.client = Client(lambda: grpc_wire.connect(f"tcp:{far.address}", Identity(token_file=token)))
        assert self.service.layout.rows == ROWS
        put(self.client, "t", [1, 2, 3])
        self._lines: list[Line] = []
        self._open: Line | None = None

    def line(self, *messages: bytes) -> Line:
        """A new connection."""
        line: Line
        if isinstance(self._server, SocketServer):
            line = SocketLine(self._server.path)
        else:
            line = GrpcLine(self._server.address)
        self._lines.append(line)
        for one in messages:
            line.say(one)
        return line

    def say(self, message: bytes) -> Line:
        """By way of a connection that was welcomed: another one after the last was closed."""
        if self._open is None:
            self._open = self.line(hello())
            welcome = self._open.hear()
            assert welcome is not None and "error" not in welcome.words
        self._open.say(message)
        return self._open

    def ask(self, words: dict[str, Any], **arrays: Any) -> Message | None:
        """The answer; None if the connection was closed instead."""
        answer = self.say(message(words, **arrays)).hear()
        if answer is None:
            self._open = None
        return answer

    def done(self, words: dict[str, Any], **arrays: Any) -> Message:
        """Something to which nobody can object."""
        answer = self.ask(words, **arrays)
        assert answer is not None and "error" not in answer.words, answer
        return answer

    def refused(self, words: dict[str, Any], **arrays: Any) -> str:
        """The sentence, or an empty one with a closed connection."""
        answer = self.ask(words, **arrays)
        if answer is None:
            return ""
        assert "error" in answer.words, f"{words} was done"
        assert answer.words["error"] and answer.words["kind"] in ("user", "wire")
        return str(answer.words["error"])

    def all_refused(self, requests: Iterable[tuple[Any, ...]]) -> None:
        """Each `(what is wrong, words)`, or with arrays behind; those that were done are named."""
        done = []
        for wrong, words, *arrays in requests:
            answer = self.ask(words, **(arrays[0] if arrays else {}))
            if answer is not None and "error" not in answer.words:
                done.append((words["do"], wrong))
        assert not done, f"{done} were done"

    def chunks(self, count: int) -> Array:
        """Chunks of the hostile client's own, by the numbers that it knows them by, each leading to the next."""
        if self.near:
            chunks = self.done({"do": "take", "count": count, "seconds": 1.0}).arrays["chunks"].copy()
        else:
            chunks = np.arange(count)
            self.done({"do": "rows", "begin": 0, "end": LENGTH}, chunks=chunks, **{
                f"column/{name}": np.zeros((count, LENGTH, *spec.shape), spec.dtype) for name, spec in COLUMNS.items()
            })
        self.done({"do": "link"}, before=chunks[:-1], after=chunks[1:])
        return chunks

    def leave(self) -> None:
        """All hostile connections end."""
        for line in self._lines:
            line.close()
        self._lines, self._open = [], None

    @property
    def path(self) -> str:
        """The unix socket."""
        assert isinstance(self._server, SocketServer)
        return self._server.path

    def unharmed(self) -> None:
        """Others can do everything as before; when all is deleted, every chunk is free, and once."""
        Background(self._use).result()
        self.leave()
        eventually(lambda: only_items_hold_chunks(self.service), SECONDS / 2)
        for table in self.service.tables:
            self.client.reset(table)
        eventually(lambda: self.client.info("t")["chunks"] == 0, SECONDS / 2)
        session, count = Holder("auditor"), self.service.layout.num_chunks
        assert sorted(self.service.take_chunks(session, count, 0.0).tolist()) == list(range(count))
        self.service.leave(session)

    def _use(self) -> None:
        own = self.client
        put(own, "t", [11, 12, 13, 14, 15, 16, 17, 18])
        assert set(drawn(own, "t", 200)) == set(range(11, 19))
        assert own.info("t")["size"] == 8 and "open" in own.explain("t")
        own.reset("q")
        own.reset("once")
        put(own, "q", [5])
        assert drawn(own, "q") == [5]
        put(own, "once", [6, 7])
        assert sorted(drawn(own, "once", 2)) == [6, 7]

    def close(self) -> None:
        self.leave()
        self.client.close()
        self._server.close()


@pytest.fixture(params=["socket", "grpc"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    found = Site(request.param, tmp_path)
    yield found
    found.close()


def test_requests_before_hello_are_refused(site: Site) -> None:
    line = site.line()
    for words in ({"do": "reset", "table": "t"}, {"do": "take", "count": 3, "seconds": None}, {"do": "info"}, {}):
        line.say(message(words))
        answer = line.hear()
        assert answer is not None and "begins with a hello" in answer.words["error"]
    line.say(hello())
    answer = line.hear()
    assert answer is not None and "error" not in answer.words, "it may still introduce itself"
    assert site.client.info("t")["size"] == 3
    site.unharmed()


def test_a_stranger_is_not_listened_to_for_long(site: Site) -> None:
    """What it announces is too large: the connection is closed, and nothing more is waited for."""
    for size in (MAX_HELLO + 1, MAX_MESSAGE):
        line = site.line()
        line.say_raw(SIZE.pack(size) + bytes(100))
        assert line.hear() is None
    answer = site.line(hello(name="n" * (MAX_HELLO - 1000))).hear()
    assert answer is not None and "error" not in answer.words
    long = site.ask({"do": "delete", "table": "t"}, keys=np.arange(MAX_HELLO) + 10_000)
    assert long is not None and long.words["count"] == 0, "who was welcomed may say more"
    site.unharmed()


def test_silent_clients_are_disconnected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pappus.replay.wire.grpc_wire.HELLO_SECONDS", 0.05)
    site = Site("grpc", tmp_path)
    try:
        assert site.line().hear() is None, "the connection is closed without a word"
        welcome = site.line()
        welcome.say(hello())
        answer = welcome.hear()
        assert answer is not None and "error" not in answer.words
        site.unharmed()
    finally:
        site.close()


def test_another_protocol_is_not_spoken(site: Site) -> None:
    others = ({"protocol": other} for other in (PROTOCOL - 1, PROTOCOL + 1, str(PROTOCOL), None))
    for change in (*others, {"do": "hi"}, {"do": []}):
        answer = site.line(hello(**change)).hear()
        assert answer is not None and f"speaks protocol {PROTOCOL}" in answer.words["error"]
    site.unharmed()


def test_only_the_right_token_opens(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("sesame\n")
    site = Site("grpc", tmp_path, str(tmp_path / "token"))
    try:
        for token in ("", "sesame ", "Sesame", "sesamesesame", None, 7, ["sesame"], "\ud800", "x" * 10_000):
            line = site.line(hello(token=token))
            for request in (b"", message({"do": "reset", "table": "t"})):
                answer = line.hear()
                assert answer is None or "error" in answer.words
                if answer is None:
                    break
                line.say(request)
        welcome = site.line(hello(token="sesame")).hear()
        assert welcome is not None and "error" not in welcome.words
        assert site.client.info("t")["size"] == 3
        site.unharmed()
    finally:
        site.close()


def test_a_client_without_the_token_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("sesame")
    server = GrpcServer(Service(TABLES), WireConfig(listen="127.0.0.1:0", token_file=str(tmp_path / "token")))
    try:
        with pytest.raises(UserError, match="the token is wrong"):
            grpc_wire.connect(f"tcp:{server.address}")
    finally:
        server.close()


def test_names_of_nonsense_are_borne(site: Site) -> None:
    for name in ("\x1b[31m", "", None, ["a"], "n" * 10_000, "\ud800"):
        answer = site.line(hello(name=name)).hear()
        assert answer is None or "error" not in answer.words or answer.words["kind"] == "wire"
    site.unharmed()


def test_noise_is_answered_with_an_error(site: Site) -> None:
    rng = np.random.default_rng(0)
    for size in (0, 1, 3, 4, 5, 8, 64, 1000):
        for welcomed in (False, True):
            line = site.line(*[hello()] * welcomed)
            assert not welcomed or line.hear() is not None
            line.say(rng.bytes(size))
            answer = line.hear()
            assert answer is None or "error" in answer.words
            line.close()
    site.unharmed()


def test_frames_that_do_not_hold_what_they_promise_end_the_connection(site: Site) -> None:
    wrong = [SIZE.pack((1 << 64) - 1), SIZE.pack(1 << 40) + b"abc"]
    if not site.near:
        wrong += [b"", b"abc", SIZE.pack(3) + b"more than three"]
    for data in wrong:
        line = site.line()
        line.say_raw(data)
        assert line.hear() is None
    site.unharmed()


def test_half_a_message_and_silent_clients_cost_nothing(site: Site) -> None:
    for data in (b"", b"\1\2\3", SIZE.pack(1000) + b"only this"):
        line = site.line()
        if data:
            line.say_raw(data)
        line.close()
    assert len([site.line() for _ in range(20)]) == 20
    site.unharmed()


REQUESTS = [
    "take", "give", "link", "rows", "insert", "sample", "done", "update", "delete", "reset", "bounds", "weigh", "info",
    "explain", "checkpoint",
]
ONE_ITEM = {"priorities": [1.0], "base": [0], "lead": [0], "span": [1], "start": [[0, 0]], "length": [[1, 0]]}
SAMPLE = {"do": "sample", "table": "t", "count": 1, "seconds": 0.0, "partial": True, "columns": ["x"], "lead": 0}
BOUNDS = {"do": "bounds", "table": "t", "least": None, "most": None, "min_size": None}


def test_requests_without_their_words_are_refused(site: Site) -> None:
    site.all_refused((request, {"do": request}) for request in REQUESTS)
    site.all_refused(
        (request, {"do": request, "table": "t"})
        for request in REQUESTS if request not in ("reset", "weigh", "info", "explain")
    )
    site.unharmed()


def test_unknown_requests_are_refused(site: Site) -> None:
    unknown: list[Any] = ["fly", "", None, 3, ["take"], {"a": 1}, "hello", "__class__"]
    site.all_refused((one, {"do": one, "protocol": PROTOCOL}) for one in unknown)
    site.refused({"table": "t"})
    site.unharmed()


def test_illegal_tables_are_refused(site: Site) -> None:
    for table in ("T", "", None, 0, ["t"], {"t": 1}, True):
        site.all_refused([
            (table, {"do": "insert", "table": table}, ONE_ITEM), (table, {**SAMPLE, "table": table}),
            (table, {"do": "update", "table": table}, {"keys": [0], "priorities": [1.0]}),
            (table, {"do": "delete", "table": table}, {"keys": [0]}), (table, {**BOUNDS, "table": table}),
            *((table, {"do": request, "table": table}) for request in ("reset", "weigh", "info", "explain")),
        ])
    site.unharmed()


def test_chunks_are_not_given_out_by_impossible_numbers(site: Site) -> None:
    site.all_refused(
        (count, {"do": "take", "count": count, "seconds": 0.0})
        for count in (HUGE, 10**30, float("inf"), float("nan"), "many", None, [1], ROWS)
    )
    site.unharmed()


@pytest.mark.parametrize("count", [-1, -100])
def test_a_negative_number_of_chunks_adds_none(site: Site, count: int) -> None:
    site.ask({"do": "take", "count": count, "seconds": 0.0})
    site.unharmed()


def test_illegal_time_limits_are_refused(site: Site) -> None:
    for seconds in ("soon", [], {}, "1"):
        site.refused({"do": "take", "count": 1, "seconds": seconds})
        site.refused({**SAMPLE, "table": "q", "seconds": seconds})
    site.unharmed()


def test_chunks_of_others_are_neither_given_back_nor_linked(site: Site) -> None:
    """Giving back what one does not have may be answered as one likes, but has no effect."""
    site.client.reset("t")
    with site.client.writer(history=8) as writer:
        for i in range(6):
            add(writer, "t", i)
        assert writer.flush()
        held = site.client.info("t")["chunks"]
        for chunks in ([*range(8)], [-1], [ROWS], [HUGE], [[0], [1]], [0.5], [np.nan], [True]):
            site.ask({"do": "give"}, chunks=chunks)
            site.refused({"do": "link"}, before=chunks, after=chunks)
        assert site.client.info("t")["chunks"] == held
        add(writer, "t", 6)
    assert set(drawn(site.client, "t", 400)) == set(range(7))
    site.unharmed()


def test_a_chunk_that_is_given_back_twice_is_free_once(site: Site) -> None:
    chunks = site.chunks(3)
    site.ask({"do": "give"}, chunks=np.array([chunks[0], chunks[0], chunks[1], chunks[0]]))
    site.ask({"do": "give"}, chunks=chunks)
    site.ask({"do": "give"}, chunks=chunks)
    site.unharmed()


def test_links_that_do_not_fit_are_refused(site: Site) -> None:
    known = dict(enumerate(site.chunks(3).tolist()))

    def own(numbers: Any) -> Array:
        return np.vectorize(lambda n: known.get(n, n), otypes=[np.int64])(np.array(numbers, np.int64))

    wrong: list[tuple[Any, Any]] = [
        ([0], [0, 1]), ([0, 1], [0]), ([[0]], [1]), ([0], [[1, 2]]), ([0], []), ([99], [0]), ([-1], [0]),
    ]
    if site.near:  # from elsewhere a chunk that is heard of first is a new one
        wrong.append(([0], [99]))
    site.all_refused((pair, {"do": "link"}, {"before": own(pair[0]), "after": own(pair[1])}) for pair in wrong)
    site.unharmed()


def item(base: int, span: int = 1, lead: int = 0, start: Any = (0, 0), length: Any = (1, 0)) -> dict[str, Array]:
    """The record of one item for table `led`, to which nobody could object if `base` is the hostile client's."""
    return {
        "priorities": np.ones(1), "base": np.array([base]), "lead": np.array([lead]), "span": np.array([span]),
        "start": np.array([start]), "length": np.array([length]),
    }


def test_a_ring_of_chunks_is_no_trap(site: Site) -> None:
    chunks = site.chunks(2)
    site.ask({"do": "link"}, before=chunks[1:], after=chunks[:1])
    answer = site.ask({"do": "insert", "table": "led"}, **item(int(chunks[0]) * LENGTH, ROWS, length=(ROWS, 0)))
    assert answer is not None
    site.unharmed()


def test_streams_that_were_linked_are_not_led_elsewhere_under_their_items(site: Site) -> None:
    """Otherwise the item would let go of other chunks than it holds."""
    chunks = site.chunks(3)
    site.done({"do": "insert", "table": "led"}, **item(int(chunks[0]) * LENGTH, 2 * LENGTH, length=(2 * LENGTH, 0)))
    site.ask({"do": "link"}, before=chunks[:1], after=chunks[2:])
    assert site.client.info("led")["size"] == 1
    site.client.reset("led")
    site.unharmed()


I32 = (1 << 31) - 1
OUTSIDE: list[dict[str, Any]] = [
    {"base": -1}, {"base": ROWS}, {"base": HUGE}, {"base": -HUGE}, {"span": 0}, {"span": -1}, {"span": ROWS + 1},
    {"span": 3 * LENGTH}, {"span": I32}, {"lead": -1}, {"lead": 3, "span": 6}, {"lead": 2, "span": 2},
    {"start": (-1, 0)}, {"start": (1, 0)}, {"length": (-1, 0)}, {"length": (2, 0)}, {"length": (1, I32)},
]
OVERFLOWING: list[dict[str, Any]] = [
    {"lead": 1, "span": -I32 - 1}, {"start": (I32, 0)}, {"start": (I32, 0), "length": (I32, 0)},
    {"start": (1, 0), "length": (I32, 0)}, {"start": (HUGE, 0)}, {"length": (HUGE + 1, 0)},
    {"lead": 2, "span": 3, "start": (I32 - 1, 0), "length": (2, 0)}, {"span": (1 << 32) + 1}, {"lead": 1 << 32},
]


@pytest.mark.parametrize("changes", [OUTSIDE, OVERFLOWING], ids=["outside", "overflowing"])
def test_windows_outside_the_client_s_own_steps_are_refused(site: Site, changes: list[dict[str, Any]]) -> None:
    base = int(site.chunks(2)[0]) * LENGTH
    site.all_refused(
        (change, {"do": "insert", "table": "led"}, item(**{"base": base, **change})) for change in changes
    )
    assert site.client.info("led")["inserts"] == 0
    site.unharmed()


def test_windows_over_the_steps_of_others_are_refused(site: Site) -> None:
    with site.client.writer(history=8) as writer:
        add(writer, "t", 1)
        assert writer.flush()
        site.chunks(1)
        for chunk in range(ROWS // LENGTH):
            answer = site.ask({"do": "insert", "table": "led"}, **item(chunk * LENGTH))
            assert answer is not None
        assert site.client.info("led")["inserts"] == 1, "only the client's own"
    site.unharmed()


def test_records_of_the_wrong_shape_are_refused(site: Site) -> None:
    good = item(int(site.chunks(1)[0]) * LENGTH)
    for field, value in good.items():
        others = {name: array for name, array in good.items() if name != field}
        flat = value[0] if value.ndim == 1 else value.reshape(-1)
        wrong = {"longer": np.repeat(value, 2, axis=0), "shorter": value[:0], "flat": flat, "deep": value[..., None]}
        site.all_refused([
            (f"{field} missing", {"do": "insert", "table": "led"}, others),
            *((f"{field} {how}", {"do": "insert", "table": "led"}, {**others, field: array})
              for how, array in wrong.items()),
        ])
    assert site.client.info("led")["inserts"] == 0
    site.unharmed()


def test_items_without_a_priority_or_with_a_foreign_column_are_refused(site: Site) -> None:
    base = int(site.chunks(1)[0]) * LENGTH
    for priority in (np.nan, np.inf, -np.inf):
        record = {**item(base), "priorities": [priority]}
        assert "priority=" in site.refused({"do": "insert", "table": "led"}, **record)
    assert "column 'v'" in site.refused({"do": "insert", "table": "t"}, **item(base, length=(1, 1)))
    site.unharmed()


def test_batches_of_impossible_sizes_are_refused(site: Site) -> None:
    put(site.client, "once", [1, 2])
    counts = (0, -1, -HUGE, HUGE, 10**30, float("inf"), float("nan"), "x", None, [])
    site.all_refused((count, {**SAMPLE, "count": count}) for count in counts)
    for count in counts:  # a table that runs empty may give what it has
        site.ask({**SAMPLE, "table": "once", "count": count})
    site.unharmed()


def test_a_batch_that_cannot_be_sent_is_not_held(site: Site) -> None:
    """On the same machine rows are not sent, so columns and lead may not even be looked at."""
    held = []
    for change in (
        {"columns": ["y"]}, {"columns": None}, {"columns": [["x"]]}, {"columns": 3}, {"columns": "x"},
        {"columns": [None]}, {"lead": "x"}, {"lead": None}, {"lead": 10**30}, {"lead": HUGE}, {"lead": -5},
        {"lead": []},
    ):
        answer = site.ask({**SAMPLE, "count": 2, **change})
        if answer is not None and answer.words.get("number"):
            site.done({"do": "done", "number": answer.words["number"]})
        if answer is not None and not only_items_hold_chunks(site.service):
            held.append(change)
            site.leave()
        eventually(lambda: only_items_hold_chunks(site.service), SECONDS)
    assert not held
    site.unharmed()


def test_unread_batches_stay_held(site: Site) -> None:
    reader = sockets.connect(site.path) if site.near else None
    held = reader.sample("t", 2, frozenset(["x"]), 0, 1.0, True) if reader is not None else None
    for number in (0, -1, HUGE, 10**30, "x", None, 1.5, float("nan"), float("inf"), *range(20)):
        site.ask({"do": "done", "number": number})
    if reader is not None and held is not None:
        before = site.client.info("t")["chunks"]
        site.client.reset("t")
        assert site.client.info("t")["chunks"] == before > 0, "the reader still reads"
        reader.close()
    site.unharmed()


def test_updates_that_do_not_fit_change_nothing(site: Site) -> None:
    before = set(site.client.sample("t", 50).info.priorities.tolist())
    for keys, priorities in (
        ([0], []), ([], [1.0]), ([0, 1], [7.0]), ([0], [np.nan]), ([0], [np.inf]), ([[0]], [7.0]), (0, [7.0, 2.0]),
        ([0, 1], [[7.0], [2.0]]),
    ):
        answer = site.ask({"do": "update", "table": "t"}, keys=keys, priorities=priorities)
        assert answer is None or "error" in answer.words or answer.words["count"] == 0
    assert set(site.client.sample("t", 50).info.priorities.tolist()) == before
    site.unharmed()


def test_illegal_keys_match_no_item(site: Site) -> None:
    for keys in ([-1], [HUGE], [-HUGE], [1e300], [np.nan], [], [[7]], 7):
        for request in ("update", "delete"):
            answer = site.ask({"do": request, "table": "t"}, keys=keys, priorities=np.ones(np.shape(keys)))
            assert answer is None or "error" in answer.words or answer.words["count"] == 0
    assert site.client.info("t")["size"] == 3
    site.unharmed()


@pytest.mark.parametrize("bound", ["least", "most", "min_size"])
@pytest.mark.parametrize(
    "value", ["x", [1.0], float("nan"), 10**400, -(10**400)], ids=["text", "list", "nan", "huge", "-huge"]
)
def test_bounds_that_are_no_numbers_change_nothing(site: Site, bound: str, value: Any) -> None:
    site.refused({**BOUNDS, bound: value})
    site.unharmed()


def test_a_min_size_that_no_table_can_have_is_refused(site: Site) -> None:
    for value in (0, -1, 9, 2.5, 1.5, HUGE):
        for table in ("t", "once"):
            site.refused({**BOUNDS, "table": table, "min_size": value})
    site.unharmed()


def test_rows_that_do_not_fit_are_refused(site: Site) -> None:
    if site.near:
        pytest.skip("rows are written in place")
    words = {"do": "rows", "begin": 0, "end": 2}
    arrays = {
        "chunks": np.array([5]), "column/x": np.zeros((1, 2), np.int64), "column/v": np.zeros((1, 2, 2), np.float32),
    }
    site.all_refused((change, {**words, **change}, arrays) for change in (
        {"begin": -1}, {"end": LENGTH + 1}, {"begin": 3, "end": 2}, {"begin": HUGE, "end": HUGE}, {"begin": "x"},
        {"end": None}, {"begin": float("inf")},
    ))
    site.all_refused((name, words, {**arrays, name: array}) for name, array in (
        ("column/x", np.zeros((1, 2), np.int32)), ("column/x", np.zeros((1, 2), np.float64)),
        ("column/x", np.zeros((1, 3), np.int64)), ("column/x", np.zeros(2, np.int64)),
        ("column/v", np.zeros((1, 2, 3), np.float32)), ("chunks", np.arange(ROWS)),
        ("chunks", np.zeros((1, 1), np.int64)),
    ))
    site.refused(words, **{name: array for name, array in arrays.items() if name != "column/v"})
    site.unharmed()


def test_chunks_of_strange_names_are_freed_too(site: Site) -> None:
    if site.near:
        pytest.skip("chunks have the service's own numbers")
    for number in (-1, -HUGE, HUGE, 7, 0.5, np.nan, np.inf, True):
        answer = site.ask(
            {"do": "rows", "begin": 0, "end": 1}, chunks=[number],
            **{f"column/{name}": np.zeros((1, 1, *spec.shape), spec.dtype) for name, spec in COLUMNS.items()},
        )
        assert answer is not None
    site.refused({"do": "insert", "table": "led"}, **item(7 * LENGTH, ROWS + 1))
    site.unharmed()


def test_checkpoints_that_cannot_be_written_are_refused(site: Site) -> None:
    paths: list[Any] = [3, None, "", "/proc/nowhere/x", "/dev/null/x", "a\0b", [], "x" * 5000]
    site.all_refused((path, {"do": "checkpoint", "path": path}) for path in paths)
    site.unharmed()


def test_a_client_that_dies_while_it_waits_is_forgotten(site: Site) -> None:
    put(site.client, "q", [1])
    record = item(int(site.chunks(2)[0]) * LENGTH)
    site.say(message({"do": "insert", "table": "q"}, **record))
    sampling = site.line(hello(name="eve"))
    assert sampling.hear() is not None
    sampling.say(message({**SAMPLE, "table": "led", "seconds": None, "partial": False}))
    waiting(site.service, "q", "mallory waits to insert")
    waiting(site.service, "led", "eve waits to sample")
    site.leave()
    eventually(lambda: "waits to" not in site.service.explain("q") + site.service.explain("led"), SECONDS)
    eventually(lambda: only_items_hold_chunks(site.service), SECONDS)
    assert site.client.info("q")["inserts"] == 1
    site.unharmed()


def test_a_client_that_dies_while_it_waits_with_more_to_say_is_forgotten(site: Site) -> None:
    """What it sent behind the request that waits is still unread when it is gone."""
    put(site.client, "q", [1])
    record = item(int(site.chunks(2)[0]) * LENGTH)
    for _ in range(3):
        site.say(message({"do": "insert", "table": "q"}, **record))
    waiting(site.service, "q", "mallory waits to insert")
    site.leave()
    eventually(lambda: "waits to" not in site.service.explain("q"), SECONDS)
    eventually(lambda: only_items_hold_chunks(site.service), SECONDS)
    assert site.client.info("q")["inserts"] == 1
    site.unharmed()


def test_a_client_that_holds_everything_releases_it_when_it_disconnects(site: Site) -> None:
    while (answer := site.ask({"do": "take", "count": 1, "seconds": 0.0})) is not None and len(answer.arrays["chunks"]):
        pass
    writing = Background(lambda: put(site.client, "t", [4, 5]))
    waiting(site.service, "t", "waits to write steps")
    site.leave()
    writing.result()
    site.unharmed()


VALUES = st.sampled_from([
    None, True, -1, 0, 1, 2, 3, LENGTH, HUGE, -HUGE, 10**30, 1.5, -0.5, float("nan"), float("inf"), "", "t", "led", "q",
    "once", "x", "v", [], ["x"], ["x", "v"], {}, [1], "0",
])
SMALL = st.sampled_from([-HUGE, -1, 0, 1, 2, 3, 4, 5, 7, LENGTH * 3, I32, HUGE])
ARRAY = st.one_of(
    st.lists(SMALL, max_size=4).map(lambda values: np.array(values, np.int64)),
    st.lists(SMALL, min_size=2, max_size=2).map(lambda values: np.array([values], np.int64)),
    st.lists(st.sampled_from([0.0, 1.0, -1.0, np.nan, np.inf]), max_size=4).map(np.array),
    st.sampled_from([np.zeros((), np.int8), np.zeros((1, 2, 3), np.float16), np.ones(1, bool)]),
)
WORD_NAMES = [
    "table", "count", "seconds", "partial", "columns", "lead", "number", "least", "most", "min_size", "begin", "end",
]
ARRAY_NAMES = [
    "chunks", "before", "after", "priorities", "base", "lead", "span", "start", "length", "keys", "column/x",
    "column/v",
]
TALK = st.lists(
    st.tuples(
        st.sampled_from([name for name in REQUESTS if name != "checkpoint"]),
        st.fixed_dictionaries({}, optional={name: VALUES for name in WORD_NAMES}),
        st.fixed_dictionaries({}, optional={name: ARRAY for name in ARRAY_NAMES}),
    ),
    max_size=12,
)


@pytest.mark.parametrize("near", [True, False], ids=["near", "far"])
@settings(max_examples=120, deadline=None)
@given(talk=TALK)
def test_whatever_is_asked_no_chunk_is_lost(near: bool, talk: list[Any]) -> None:
    """Nothing waits, since time is up at once and the client is gone when somebody looks."""
    service = Service(TABLES, 32, LENGTH)
    session = ServedSession(service, "mallory", near, "", lambda: False)
    session.answer(hello())
    with patch("pappus.replay.service.service.ALIVE_SECONDS", 0.001):
        for request, words, arrays in [("take", {"count": 3}, {}), *talk]:
            seconds = words.get("seconds")
            said = {**words, "do": request, "seconds": seconds if isinstance(seconds, str | list | dict) else 0.0}
            try:
                decode(b"".join(session.answer(message(said, **arrays)).pieces))
            except Exception:  # servers close the connection
                break
    session.end()
    assert only_items_hold_chunks(service)
    for table in service.tables:
        service.reset(table)
        assert table in service.explain(table)
    auditor = Holder("auditor")
    taken = service.take_chunks(auditor, service.layout.num_chunks, 0.0)
    assert sorted(taken.tolist()) == list(range(service.layout.num_chunks))


@pytest.mark.parametrize("near", [True, False], ids=["near", "far"])
@pytest.mark.parametrize(
    "words",
    [
        {"do": "take", "count": float("inf"), "seconds": 0.0}, {"do": "done", "number": float("inf")},
        {"do": "rows", "begin": float("inf"), "end": 1}, {"do": "sample", "table": "t", "count": float("inf")},
        {"do": "bounds", "table": "t", "least": 10**400, "most": None, "min_size": None},
        {"do": "take", "count": 1, "seconds": 10**400}, {"do": "checkpoint", "path": "x" * 5000},
    ],
    ids=lambda words: " ".join(f"{name}={str(value)[:9]}" for name, value in words.items()),
)
def test_numbers_beyond_all_bounds_are_answered_too(near: bool, words: dict[str, Any]) -> None:
    """As `answer` says: what cannot be done is said in the answer, and the session goes on."""
    session = ServedSession(Service(TABLES, 32, LENGTH), "mallory", near, "", lambda: False)
    session.answer(hello())
    assert "error" in decode(b"".join(session.answer(message(words)).pieces)).words
    session.end()
