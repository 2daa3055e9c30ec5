"""How a client reaches a service: directly, through memory that processes share, or over a wire.

All that differs between the three is behind `Session`. One session is one session: what it holds is freed when it is
closed, or when its process dies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from pappus.replay.sampling.evaluation import Source
from pappus.replay.storage.chunks import Layout
from pappus.replay.storage.items import Drawn, Windows
from pappus.replay.tables.table import Table
from pappus.types import Array


class Held(NamedTuple):
    """Sampled items, and where their steps are until `Session.done`."""

    number: int
    drawn: Drawn
    source: Source


class Session(Protocol):
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
