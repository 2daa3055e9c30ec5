"""The service's end of a connection: requests in, answers out, in order.

A request has the word `do` and its arguments; an answer has the words of its result, or `error` (a sentence) and
`kind`. On the same machine rows are not in the messages: both ends map the chunks. Far clients send rows before the
items over them, and receive rows with sampled items:

    request     words                                              arrays
    ───────     ─────                                              ──────
    take        count, seconds                                     →  chunks
    give        –                                                  chunks
    link        –                                                  before, after
    rows        begin, end                                         chunks, and every column `[chunks, end − begin, …]`
    insert      table                                              priorities, base, lead, span, start, length
    sample      table, count, seconds, partial, columns, lead      →  the items, and from elsewhere their rows
    done        number
    update      table                                              keys, priorities
    delete      table                                              keys
    reset, weigh, info, explain  table
    bounds      table, least, most, min_size
    checkpoint  path
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Iterator

import numpy as np

from pappus.errors import PappusError, UserError, WireError
from pappus.replay.service.service import Holder, Service
from pappus.replay.storage.chunks import Windows
from pappus.replay.storage.row_copies import rows_to_copy, slices_of
from pappus.replay.wire.messages import MAX_MESSAGE, Blocks, Buffer, Encoded, Message, Words, decode, encode, pieces_of
from pappus.types import Array

PROTOCOL = 2
MAX_HELLO = 64 << 10
"""Bytes of a message before authentication: enough for a name and a token."""
MAX_BATCH = 1 << 24
MAX_SECONDS = 1e6
MAX_BOUND = 1e15
MAX_INTEGER = (1 << 63) - 1


class ServedSession:
    """One client of a service. A `near` client maps the chunks itself."""

    def __init__(
        self, service: Service, name: str, near: bool, token: str, alive: Callable[[], bool], checkpoints: str = "/"
    ) -> None:
        self._service, self._near, self._token, self._checkpoints = service, near, token, checkpoints
        self._holder = Holder(name, alive)
        self.welcomed = False
        self._chunk_of: dict[int, int] = {}
        """For far clients: our number of each chunk, by the client's number."""
        self._written: dict[int, int] = {}
        """For far clients: how many rows of each chunk are written, by our number."""

    @property
    def max_message(self) -> int:
        """Maximum bytes of the next request; small before authentication."""
        return MAX_MESSAGE if self.welcomed else MAX_HELLO

    def answer(self, request: Buffer) -> Encoded:
        """Execute a request. Errors are returned in the answer, and the session continues."""
        try:
            return self._do(decode(request)) if self.welcomed else self._welcome(decode(request))
        except (PappusError, KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            kind = "user" if isinstance(error, UserError) else "wire"
            text = str(error) if isinstance(error, PappusError) else f"a request cannot be read: {error!r}"
            return encode({"error": text, "kind": kind}, {})

    def end(self) -> None:
        self._service.leave(self._holder)

    def _welcome(self, message: Message) -> Encoded:
        words = message.words
        if words.get("do") != "hello" or words.get("protocol") != PROTOCOL:
            raise WireError(f"this service speaks protocol {PROTOCOL}, and begins with a hello")
        if not hmac.compare_digest(str(words.get("token", "")).encode(), self._token.encode()):
            raise UserError("the token is wrong; give the file that the server was given")
        self.welcomed = True
        name = str(words.get("name", ""))[:100]
        self._holder.name = name if name.isprintable() and name else self._holder.name
        layout = self._service.layout
        return encode(
            {
                "tables": [table.to_dict() for table in self._service.tables.values()],
                "signature": {name: [list(spec.shape), spec.dtype] for name, spec in layout.signature.items()},
                "chunk_length": layout.chunk_length, "num_chunks": layout.num_chunks, "near": self._near,
            },
            {},
        )

    def _do(self, message: Message) -> Encoded:
        words, service, session = Words(message.words), self._service, self._holder
        arrays = message.arrays
        match words.text("do"):
            case "take":
                count, seconds = words.whole("count", 1, 1 << 31), words.number("seconds", 0, MAX_SECONDS)
                return encode({}, {"chunks": service.take_chunks(session, count, seconds)})
            case "give":
                chunks = np.unique(_chunks(arrays["chunks"]))
                service.give_back(session, self._ours(chunks))
                for chunk in chunks.tolist():
                    self._written.pop(self._chunk_of.pop(chunk, -1), None)
            case "link":
                before, after = _chunks(arrays["before"]), _chunks(arrays["after"])
                service.link(session, self._ours(before), self._ours(after, new=True))
            case "rows":
                self._write_rows(message)
            case "insert":
                windows = self._read_windows(arrays)
                service.insert_admitted(session, words.text("table"), arrays["priorities"].astype(np.float64), windows)
            case "sample":
                return self._sample(words)
            case "done":
                service.done(session, words.whole("number", 0, 1 << 62))
            case "update":
                count = service.update(words.text("table"), _integers(arrays["keys"]), arrays["priorities"])
                return encode({"count": count}, {})
            case "delete":
                return encode({"count": service.delete(words.text("table"), _integers(arrays["keys"]))}, {})
            case "reset":
                service.reset(words.text("table"))
            case "bounds":
                size = None if words.given("min_size") is None else words.whole("min_size", -(1 << 62), 1 << 62)
                least, most = (words.number(name, -MAX_BOUND, MAX_BOUND, UserError) for name in ("least", "most"))
                service.move_bounds(words.text("table"), least, most, size)
            case "weigh":
                mass, items = service.weigh(words.text("table"))
                return encode({"mass": mass, "size": items}, {})
            case "info":
                return encode(service.info(words.text("table")), {})
            case "explain":
                return encode({"text": service.explain(words.text("table"))}, {})
            case "checkpoint":
                return encode({"path": self._checkpoint(words.text("path"))}, {})
            case unknown:
                raise WireError(f"{unknown!r:.60} is not a request of protocol {PROTOCOL}")
        return encode({}, {})

    def _checkpoint(self, path: str) -> str:
        """Write a checkpoint within the folder that clients may use."""
        from pappus.replay.service.checkpoint import save

        if not self._checkpoints:
            raise UserError("this server writes no checkpoints for others; start it with --checkpoints DIR")
        root = os.path.realpath(self._checkpoints)
        wanted = os.path.realpath(os.path.join(root, path))
        if os.path.commonpath([root, wanted]) != root:
            raise UserError(f"checkpoint {path!r} lies outside {root!r}, where this server writes them; give a name")
        return str(save(self._service, wanted))

    def _ours(self, chunks: Array, new: bool = False) -> Array:
        """Our numbers of a client's chunks; with `new`, chunks are taken for unknown ones."""
        if self._near:
            return chunks.astype(np.int64)
        theirs = chunks.tolist()
        unknown = list(dict.fromkeys(chunk for chunk in theirs if chunk not in self._chunk_of))
        if unknown and not new:
            raise WireError(f"chunk {unknown[0]} was never written")
        if unknown:
            taken = self._service.take_chunks(self._holder, len(unknown))
            self._chunk_of.update(zip(unknown, taken.tolist(), strict=True))
        return np.array([self._chunk_of[chunk] for chunk in theirs], np.int64)

    def _write_rows(self, message: Message) -> None:
        """Write rows that a far client sent, each once: items over them may have been judged."""
        layout, words = self._service.layout, Words(message.words)
        end = words.whole("end", 0, layout.chunk_length)
        begin = words.whole("begin", 0, end)
        for name in layout.signature:
            if f"column/{name}" not in message.arrays:
                raise WireError(f"column {name!r} is missing")
        chunks = self._ours(_chunks(message.arrays["chunks"]), new=True)
        if any(self._written.get(chunk, 0) > begin for chunk in chunks.tolist()):
            raise WireError(f"rows from {begin} on were written already; a row is written once")
        self._written.update(dict.fromkeys(chunks.tolist(), end))
        rows = chunks[:, None] * layout.chunk_length + np.arange(begin, end)
        for name, spec in layout.signature.items():
            values = message.arrays[f"column/{name}"]
            if values.dtype != spec.dtype or values.shape != (*rows.shape, *spec.shape):
                raise WireError(f"column {name!r} came as {values.dtype}{list(values.shape)}")
            self._service.chunks.columns[name][rows] = values

    def _read_windows(self, arrays: dict[str, Array]) -> Windows:
        """Windows of items with our row numbers. The service checks that they are legal."""
        most = self._service.layout.rows
        base, count, columns = _integers(arrays["base"]), arrays["base"].size, len(self._service.layout.signature)
        for name in Windows._fields:
            found = _integers(arrays[name])
            if found.size and not (found.min() >= 0 and found.max() <= (most if name != "base" else np.inf)):
                raise WireError(f"{name!r} of an item lies outside what there is")
        fields = [arrays[name].astype(np.int32) for name in ("lead", "span", "start", "length")]
        shapes = [field.shape for field in fields]
        if base.ndim != 1 or shapes != [(count,), (count,), (count, columns), (count, columns)]:
            raise WireError(f"the records of {count} items have the shapes {shapes}")
        if arrays["priorities"].shape != (count,):
            raise WireError(f"{count} items came with priorities of shape {arrays['priorities'].shape}")
        if not self._near:
            length = self._service.layout.chunk_length
            base = self._ours(base // length) * length + base % length
        return Windows(base, *fields)

    def _sample(self, asked: Words) -> Encoded:
        columns, lead = asked.columns(list(self._service.layout.signature)), asked.whole("lead", 0, 1 << 30)
        number, drawn = self._service.sample(
            self._holder, asked.text("table"), asked.whole("count", -MAX_BATCH, MAX_BATCH),
            asked.number("seconds", 0, MAX_SECONDS), bool(asked.given("partial")),
        )
        if drawn is None:
            return encode({"number": 0}, {})
        words = {"number": number, "table_size": drawn.table_size, "mass": drawn.mass}
        try:
            rows = self._rows_of(drawn.windows, columns, lead)
        except BaseException:
            self._service.done(self._holder, number)
            raise
        answer = encode(words, {**drawn.records(), **drawn.windows._asdict(), **rows})
        if self._near:  # it reads the rest in shared memory, and sends `done`
            return answer
        return answer._replace(pieces=self._until_sent(answer.pieces, number))

    def _until_sent(self, pieces: Iterator[Buffer], number: int) -> Iterator[Buffer]:
        """Hold the chunks of a sampled batch until its last piece was sent."""
        try:
            yield from pieces
        finally:
            self._service.done(self._holder, number)

    def _rows_of(self, windows: Windows, columns: list[str], lead: int) -> dict[str, Array | Blocks]:
        """The rows to send of some columns: all, or to a near client those that are compressed."""
        chunks, names = self._service.chunks, list(self._service.layout.signature)
        found: dict[str, Array | Blocks] = dict(self._service.unpacked(windows, frozenset(columns), lead))
        alike: dict[tuple[bytes, bytes], Array] = {}
        for name in [] if self._near else [name for name in columns if name not in found]:
            index, column = names.index(name), chunks.columns[name]
            slices = slices_of(windows, index)
            if slices not in alike:
                alike[slices] = rows_to_copy(chunks, windows, index, lead)
            rows = alike[slices]
            found[name] = Blocks(column.dtype, (len(rows), *column.shape[1:]), pieces_of(column, rows))
        return {f"column/{name}": values for name, values in found.items()}


def _integers(array: Array) -> Array:
    if array.dtype.kind not in "iu" or (array.dtype == np.uint64 and array.size and array.max() > MAX_INTEGER):
        raise WireError(f"an array of {array.dtype} came where whole numbers belong")
    return array.astype(np.int64)


def _chunks(array: Array) -> Array:
    found = _integers(array)
    if found.ndim != 1 or found.min(initial=0) < 0 or len(np.unique(found)) < len(found):
        raise WireError("chunks must be different numbers of at least 0, in a row")
    return found
