"""The interface through which clients and writers reach a service.

`DirectSession` (client.py) calls a service in this process, `NearSession` one on this machine (rows in shared memory,
messages over a unix socket), and `FarSession` one anywhere (gRPC).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from pappus.replay.sampling.evaluation import Source
from pappus.replay.storage.chunks import Drawn, Layout, Windows
from pappus.replay.tables.table import Table
from pappus.types import Array


class Held(NamedTuple):
    """Sampled items, and where their steps are; valid until `Session.done`."""

    number: int
    drawn: Drawn
    source: Source


class Session(Protocol):
    """A session with a service. What it holds is released when it is closed, or when its process dies.

    Methods without a description do what those of `Service` do.
    """

    @property
    def layout(self) -> Layout: ...

    @property
    def tables(self) -> Mapping[str, Table]: ...

    @property
    def columns(self) -> dict[str, Array]:
        """Where a writer writes its rows: `columns[name][chunk · chunk_length + i]`."""

    def take_chunks(self, count: int, seconds: float | None) -> Array: ...

    def give_back(self, chunks: Array) -> None: ...

    def link(self, before: Array, after: Array) -> None: ...

    def publish(self, chunks: Array, begin: int, end: int) -> None:
        """Announce that rows `begin` … `end` of chunks are written."""

    def insert(self, table: str, priorities: Array, windows: Windows) -> None:
        """Insert items over published rows. May return before they are inserted; `flush` waits for that."""

    def flush(self, seconds: float | None) -> bool:
        """Wait up to `seconds` until all items are inserted; returns whether they are."""

    def sample(
        self, table: str, count: int, columns: frozenset[str], lead: int, seconds: float, partial: bool
    ) -> Held | None:
        """Sample items, with at least these columns and `lead` earlier steps; see `Service.sample`."""

    def done(self, held: Held) -> None: ...

    def update(self, table: str, keys: Array, priorities: Array, wait: bool) -> int:
        """Change priorities; returns how many items still exist, or 0 without waiting."""

    def delete(self, table: str, keys: Array) -> int: ...

    def reset(self, table: str) -> None: ...

    def move_bounds(self, table: str, least: float | None, most: float | None, min_size: int | None) -> None: ...

    def weigh(self, table: str) -> tuple[float, int]: ...

    def info(self, table: str) -> dict[str, Any]: ...

    def explain(self, table: str) -> str: ...

    def checkpoint(self, path: str) -> str: ...

    def save(self) -> dict[str, Any]:
        """Items that are on their way, and chunks that go back after them; `UserError` where the service is elsewhere:
        then what it holds ends with it."""

    def load(self, saved: dict[str, Any], chunks: Array) -> None:
        """Continue from what `save` returned, with the chunks of a writer (`Service.claim`)."""

    def fileno(self) -> int:
        """A descriptor that becomes readable when an answer arrives; -1 if there is none."""

    def close(self) -> None: ...
