"""The client's end of a connection to a service: with the chunks in shared memory, or with rows in messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from pappus.errors import PappusError, RunError, UserError
from pappus.replay.clients.session import Held
from pappus.replay.service.service import Deadline
from pappus.replay.storage.chunks import RECORDS, Columns, Drawn, Layout, Windows
from pappus.replay.storage.row_copies import RowCopies
from pappus.replay.tables.table import Table, table_from
from pappus.replay.wire.messages import Buffer, Encoded, Message, decode, encode
from pappus.replay.wire.served_session import PROTOCOL
from pappus.types import Array, ArraySpec

WINDOW_BYTES, WINDOW_MESSAGES = 32 << 20, 128
"""Requests that may be unanswered at a time; a writer that is further ahead waits."""
SPARE_CHUNKS = 4
"""Chunks per env that a writer fetches at a time, so that it seldom waits for one."""


class Connection(Protocol):
    """An ordered stream of messages in both directions."""

    def send(self, message: Encoded) -> None: ...

    def receive(self, seconds: float | None) -> Buffer | None:
        """The next answer; None if time ran out."""

    def fileno(self) -> int:
        """A descriptor that becomes readable when an answer arrives; -1 if there is none."""

    def close(self) -> None: ...


class RemoteSession:
    """What both kinds have in common. Requests without a result are not waited for: their errors are raised later."""

    def __init__(self, connection: Connection, name: str, token: str) -> None:
        self._connection = connection
        self._unanswered: deque[int] = deque()
        """Bytes of each request that was sent without waiting for its answer."""
        self._bytes = 0
        self._source: Columns | None = None
        """The rows that are not sent with sampled items."""
        welcome = self._ask({"do": "hello", "protocol": PROTOCOL, "token": token, "name": name}).words
        self.tables: Mapping[str, Table] = {
            table.name: table for table in (table_from(words) for words in welcome["tables"])
        }
        signature = {name: ArraySpec(tuple(shape), dtype) for name, (shape, dtype) in welcome["signature"].items()}
        self.layout = Layout(signature, welcome["chunk_length"], welcome["num_chunks"])

    def save(self) -> dict[str, Any]:
        raise UserError("what a session holds of a service in another process cannot be saved; open a new one")

    def load(self, saved: dict[str, Any], chunks: Array) -> None:
        self.save()

    def update(self, table: str, keys: Array, priorities: Array, wait: bool) -> int:
        request = {"do": "update", "table": table}
        if wait:
            return int(self._ask(request, keys=keys, priorities=priorities).words["count"])
        self._tell(request, keys=keys, priorities=priorities)
        return 0

    def delete(self, table: str, keys: Array) -> int:
        return int(self._ask({"do": "delete", "table": table}, keys=keys).words["count"])

    def reset(self, table: str) -> None:
        self._ask({"do": "reset", "table": table})

    def move_bounds(self, table: str, least: float | None, most: float | None, min_size: int | None) -> None:
        self._ask({"do": "bounds", "table": table, "least": least, "most": most, "min_size": min_size})

    def weigh(self, table: str) -> tuple[float, int]:
        words = self._ask({"do": "weigh", "table": table}).words
        return float(words["mass"]), int(words["size"])

    def info(self, table: str) -> dict[str, Any]:
        return self._ask({"do": "info", "table": table}).words

    def explain(self, table: str) -> str:
        return str(self._ask({"do": "explain", "table": table}).words["text"])

    def checkpoint(self, path: str) -> str:
        return str(self._ask({"do": "checkpoint", "path": path}).words["path"])

    def insert(self, table: str, priorities: Array, windows: Windows) -> None:
        self._tell({"do": "insert", "table": table}, priorities=priorities, **windows._asdict())

    def sample(
        self, table: str, count: int, columns: frozenset[str], lead: int, seconds: float, partial: bool
    ) -> Held | None:
        answer = self._ask(
            {
                "do": "sample", "table": table, "count": count, "columns": sorted(columns), "lead": lead,
                "seconds": seconds, "partial": partial,
            }
        )
        if not answer.words["number"]:
            return None
        number, source = int(answer.words["number"]), self._source
        drawn, copied = _drawn_from(answer), _columns_of(answer)
        if source is None or copied:
            return Held(number, drawn, RowCopies(copied, drawn.windows, list(self.layout.signature), lead, source))
        return Held(number, drawn, source)

    def link(self, before: Array, after: Array) -> None:
        self._tell({"do": "link"}, before=before, after=after)

    def flush(self, seconds: float | None) -> bool:
        deadline = Deadline(seconds)
        while self._unanswered:
            if not self._settle(deadline.left):
                return False
        return True

    def fileno(self) -> int:
        return self._connection.fileno()

    def close(self) -> None:
        self._connection.close()

    def _ask(self, words: dict[str, Any], **arrays: Array) -> Message:
        """Send a request and return its answer; errors of earlier requests are raised first."""
        self._connection.send(encode(words, arrays))
        earlier = [self._connection.receive(None) for _ in range(len(self._unanswered))]
        self._unanswered.clear()
        self._bytes = 0
        own = self._connection.receive(None)
        if own is None:
            raise RunError("the service does not answer")
        for answer in earlier:  # all are read before any is checked, so that answers still match requests
            if answer is not None:
                self._late(answer, own)
        return _checked(own)

    def _late(self, answer: Buffer, own: Buffer) -> None:
        """Raise the error of an earlier request, if there is one; keep chunks that the last answer brought."""
        try:
            _checked(answer)
        except PappusError:
            self._keep(decode(own))
            raise

    def _keep(self, answer: Message) -> None: ...

    def _tell(self, words: dict[str, Any], **arrays: Array) -> None:
        """Send a request whose answer has no result, without waiting for it."""
        message = encode(words, arrays)
        while self._unanswered and (
            self._bytes + message.size > WINDOW_BYTES or len(self._unanswered) >= WINDOW_MESSAGES
        ):
            self._settle(None)
        self._connection.send(message)
        self._unanswered.append(message.size)
        self._bytes += message.size

    def _settle(self, seconds: float | None) -> bool:
        """Receive the answer to the oldest unanswered request."""
        answer = self._connection.receive(seconds)
        if answer is None:
            return False
        self._bytes -= self._unanswered.popleft()
        _checked(answer)
        return True


class NearSession(RemoteSession):
    """A session on the same machine: chunks are in shared memory, and only a few numbers are sent."""

    def __init__(self, connection: Connection, memory: Array, name: str, token: str) -> None:
        super().__init__(connection, name, token)
        if len(memory) < self.layout.nbytes:
            raise RunError(f"the shared memory has {len(memory)} bytes, and {self.layout.nbytes} were announced")
        self._source = Columns(self.layout, memory)
        self.columns = self._source.columns
        self._spare: list[int] = []

    def take_chunks(self, count: int, seconds: float | None) -> Array:
        while len(self._spare) < count:
            wanted = count if count * SPARE_CHUNKS > self.layout.num_chunks // 16 else count * SPARE_CHUNKS
            answer = self._ask({"do": "take", "count": wanted, "seconds": seconds})
            if not len(answer.arrays["chunks"]):
                return np.zeros(0, np.int64)
            self._spare += answer.arrays["chunks"].tolist()
        taken, self._spare = self._spare[:count], self._spare[count:]
        return np.array(taken, np.int64)

    def _keep(self, answer: Message) -> None:
        self._spare += answer.arrays["chunks"].tolist() if "chunks" in answer.arrays else []

    def give_back(self, chunks: Array) -> None:
        self._tell({"do": "give"}, chunks=chunks)

    def publish(self, chunks: Array, begin: int, end: int) -> None: ...

    def done(self, held: Held) -> None:
        self._tell({"do": "done", "number": held.number})


class FarSession(RemoteSession):
    """A session over the network: rows are sent when they are written, and with every sampled item.

    A writer fills chunks in this process. Their number grows to what the writer holds.
    """

    def __init__(self, connection: Connection, name: str, token: str) -> None:
        super().__init__(connection, name, token)
        self.columns = {name: np.zeros((0, *spec.shape), spec.dtype) for name, spec in self.layout.signature.items()}
        self._free: list[int] = []
        self._num_chunks = 0

    def take_chunks(self, count: int, seconds: float | None) -> Array:
        if missing := max(0, count - len(self._free)):
            self._free += range(self._num_chunks, self._num_chunks + missing)
            self._num_chunks += missing
            for name, spec in self.layout.signature.items():
                more = np.zeros((missing * self.layout.chunk_length, *spec.shape), spec.dtype)
                self.columns[name] = np.concatenate([self.columns[name], more])
        taken, self._free = self._free[:count], self._free[count:]
        return np.array(taken, np.int64)

    def give_back(self, chunks: Array) -> None:
        self._tell({"do": "give"}, chunks=chunks)
        self._free += chunks.tolist()

    def publish(self, chunks: Array, begin: int, end: int) -> None:
        rows = chunks[:, None] * self.layout.chunk_length + np.arange(begin, end)
        columns = {f"column/{name}": values[rows] for name, values in self.columns.items()}
        self._tell({"do": "rows", "begin": begin, "end": end}, chunks=chunks, **columns)

    def done(self, held: Held) -> None: ...


def _drawn_from(message: Message) -> Drawn:
    """The records in an answer, as copies: they may outlive the rows that came with them."""
    records: dict[str, Any] = {name: message.arrays[name].copy() for name in RECORDS}
    windows = Windows(*(message.arrays[name].copy() for name in Windows._fields))
    return Drawn(
        **records, table_size=int(message.words["table_size"]), mass=float(message.words["mass"]), windows=windows
    )


def _columns_of(answer: Message) -> dict[str, Array]:
    """The columns whose rows came with sampled items."""
    return {
        name.removeprefix("column/"): array for name, array in answer.arrays.items() if name.startswith("column/")
    }


def _checked(answer: Buffer) -> Message:
    message = decode(answer)
    if "error" in message.words:
        raise (UserError if message.words.get("kind") == "user" else RunError)(message.words["error"])
    return message
