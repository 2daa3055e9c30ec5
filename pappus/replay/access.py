"""How a client reaches a service: directly, through memory that processes share, or over a wire.

All that differs between the three is behind `Access`. One access is one session: what it holds is freed when it is
closed, or when its process dies.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from pappus.errors import UserError
from pappus.replay.chunks import Layout
from pappus.replay.deadlines import Deadline
from pappus.replay.field_evaluation import Source
from pappus.replay.items import Drawn, Windows
from pappus.replay.service import Service
from pappus.replay.sources import ChunkSource, PackedSource
from pappus.replay.tables import Table
from pappus.replay.waiting import Session
from pappus.types import Array

MOST_WAITING = 2
"""Groups of items that may wait for a limiter before whoever makes more has to. One step of a recorder makes as many:
it looks before a step whether any wait, and in a thread that samples too it must not wait within one."""


class Held(NamedTuple):
    """Sampled items, and where their steps are until `Access.done`."""

    number: int
    drawn: Drawn
    source: Source


class Access(Protocol):
    """A session with a service."""

    @property
    def layout(self) -> Layout: ...

    @property
    def tables(self) -> Mapping[str, Table]: ...

    @property
    def columns(self) -> dict[str, Array]:
        """Where a writer puts its rows: `columns[name][chunk · chunk_length + i]`."""

    def take_chunks(self, count: int, seconds: float | None) -> Array:
        """So many chunks to write into; none if time was not enough."""

    def give_back(self, chunks: Array) -> None:
        """The writer will refer to these no more."""

    def link(self, before: Array, after: Array) -> None:
        """Streams go on from one chunk in another."""

    def publish(self, chunks: Array, begin: int, end: int) -> None:
        """Rows `begin` … `end` of these chunks are written."""

    def insert(self, table: str, priorities: Array, windows: Windows) -> None:
        """Items over rows that were published. May return before they are in; `flush` does not."""

    def flush(self, seconds: float | None) -> bool:
        """Whether all items are in, after so many seconds at most."""

    def sample(
        self, table: str, count: int, columns: frozenset[str], lead: int, seconds: float, partial: bool
    ) -> Held | None:
        """Items, and of their steps these columns at least, with so many before; as in `Service.sample`."""

    def done(self, held: Held) -> None:
        """The batch was read."""

    def update(self, table: str, keys: Array, priorities: Array, wait: bool) -> int:
        """How many keys were still there; or 0 at once, without waiting for the change."""

    def delete(self, table: str, keys: Array) -> int: ...

    def reset(self, table: str) -> None: ...

    def move_bounds(self, table: str, least: float | None, most: float | None, min_size: int | None) -> None: ...

    def weigh(self, table: str) -> tuple[float, int]: ...

    def info(self, table: str) -> dict[str, Any]: ...

    def explain(self, table: str) -> str: ...

    def checkpoint(self, path: str) -> str: ...

    def fileno(self) -> int:
        """A descriptor that becomes readable when an answer has come; -1 where there is none."""

    def close(self) -> None: ...


class DirectAccess:
    """The service is in this process."""

    def __init__(self, service: Service, name: str = "this process") -> None:
        service.refuse_closed()
        # Nothing here refers to itself: a service that nobody uses any more gives its memory back at once.
        closed = self._closed = threading.Event()
        self._service, self._session = service, Session(name, lambda: not closed.is_set())
        self.layout, self.tables, self.columns = service.layout, service.tables, service.chunks.columns
        self._source = ChunkSource(service.chunks)
        self._waiting: deque[tuple[str, Array, Windows]] = deque()
        """Items that the limiter did not let in yet."""
        self._left: list[Array] = []
        """Chunks that were given back, and in which some of these may lie."""

    def take_chunks(self, count: int, seconds: float | None) -> Array:
        return self._service.take_chunks(self._session, count, seconds)

    def give_back(self, chunks: Array) -> None:
        if self._left:  # one step of a recorder gives back at most one block
            self.flush(None)
        self._left.append(chunks)
        self.flush(0.0)

    def link(self, before: Array, after: Array) -> None:
        self._service.link(self._session, before, after)

    def publish(self, chunks: Array, begin: int, end: int) -> None: ...

    def insert(self, table: str, priorities: Array, windows: Windows) -> None:
        if len(self._waiting) >= MOST_WAITING:
            self.flush(None)
        self._waiting.append((table, priorities, windows))
        self.flush(0.0)

    def flush(self, seconds: float | None) -> bool:
        deadline = Deadline(seconds)
        while self._waiting:
            table, priorities, windows = self._waiting[0]
            try:
                done = len(self._service.insert(self._session, table, priorities, windows, deadline.left))
            except UserError:  # these can never be inserted; those behind them may
                self._waiting.popleft()
                raise
            if done < windows.num_items:
                rest = slice(done, None)
                self._waiting[0] = (table, priorities[rest], windows.pick(rest))
                return False
            self._waiting.popleft()
        while self._left:
            self._service.give_back(self._session, self._left.pop(0))
        return True

    def sample(
        self, table: str, count: int, columns: frozenset[str], lead: int, seconds: float, partial: bool
    ) -> Held | None:
        number, drawn = self._service.sample(self._session, table, count, seconds, partial)
        if drawn is None:
            return None
        packed = self._service.unpacked(drawn.windows, columns, lead)
        if not packed:
            return Held(number, drawn, self._source)
        return Held(number, drawn, PackedSource(packed, drawn.windows, list(self.columns), lead, self._source))

    def done(self, held: Held) -> None:
        self._service.done(self._session, held.number)

    def update(self, table: str, keys: Array, priorities: Array, wait: bool) -> int:
        return self._service.update(table, keys, priorities)

    def delete(self, table: str, keys: Array) -> int:
        return self._service.delete(table, keys)

    def reset(self, table: str) -> None:
        self._service.reset(table)

    def move_bounds(self, table: str, least: float | None, most: float | None, min_size: int | None) -> None:
        self._service.move_bounds(table, least, most, min_size)

    def weigh(self, table: str) -> tuple[float, int]:
        return self._service.weigh(table)

    def info(self, table: str) -> dict[str, Any]:
        return self._service.info(table)

    def explain(self, table: str) -> str:
        return self._service.explain(table)

    def checkpoint(self, path: str) -> str:
        from pappus.replay.checkpoint import save

        return str(save(self._service, path))

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        self._closed.set()
        self._service.leave(self._session)
