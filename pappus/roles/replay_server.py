"""The role that holds a run's replay tables, which actors write and the learner samples from."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Protocol

from pappus.core import Waitable
from pappus.data.identity import what_changed
from pappus.errors import PappusError
from pappus.replay.service.checkpoint import digest_of, load
from pappus.replay.service.retention import remove_own, write_own
from pappus.replay.service.service import Service
from pappus.roles.role import IDLE, Role
from pappus.types import Nest

LOOK_SECONDS = 0.25
"""How often to look at the tables; threads of the service answer its clients."""
FOLDER = "replay"
"""Where the tables are, within a run's directory."""
KEPT = 2
"""Checkpoints of the tables that are kept: they are large, and only the newest ones are resumed from."""


class ReplayHost(Protocol):
    """A replay service, and the servers through which clients reach it."""

    service: Service
    alone: bool
    """Whether all its clients share this thread, and are saved and loaded with it."""
    inserted: int
    """Items that were ever inserted, as far as a predecessor in this run has noted."""

    def open(self) -> None:
        """Accept clients."""
        ...

    def close(self) -> None: ...


class ReplayServer(Role):
    """Opens the service, reports on it, and writes it into `directory` with every checkpoint of the run."""

    afresh = "it has no directory to keep tables in"

    def __init__(self, name: str, host: ReplayHost, directory: Path | None, within: str = "") -> None:
        """`within`: its part of the folder of tables, where there are several."""
        super().__init__(name)
        self._host, self._directory, self._within = host, directory, within
        self._opened = False
        self._written: Path | None = None
        """The tables that were written last; no complete checkpoint may refer to them yet."""
        self._number = 0
        """The last number that this process gave to tables: it gives none twice, also when they were removed."""
        self._committed: list[Path] = []
        """Tables that complete checkpoints refer to, oldest first."""

    def step(self) -> Waitable | None:
        if not self._opened:
            self._opened = True
            self._say_what_is_lost()
            self._host.open()
            self.metrics.begin()
            return None
        self.wake_at = time.perf_counter() + LOOK_SECONDS
        self._host.inserted = self._inserted()
        return IDLE

    def _inserted(self) -> int:
        service = self._host.service
        return sum(int(service.info(table)["inserts"]) for table in service.tables)

    def _say_what_is_lost(self) -> None:
        """What came after the last checkpoint of a predecessor that was killed."""
        here, noted = self._inserted(), self._host.inserted
        if noted > here:
            self.metrics.count("items_lost", noted - here)
            self.metrics.event(f"back with {here:,} of {noted:,} inserted items: {noted - here:,} are lost")

    def save(self) -> Nest | None:
        """Where the tables were written to. Those of a checkpoint that came to nothing make room first."""
        if self._directory is None:
            return None
        if self._written is not None:
            self._written = None
            self._remove_others()
        self._written = write_own(self._host.service, self._directory, self._number, self._host.alone)
        self._number = int(self._written.name.rpartition("-")[2])
        return {"folder": self._written.name, **({"sha256": digest_of(self._written)} if self._host.alone else {})}

    def stored_in(self, directory: Path) -> None:
        if self._directory is not None:
            self._directory = directory / FOLDER / self._within

    def committed(self) -> None:
        """Only now are older tables removed: the checkpoint before this one may have been the last that is complete."""
        if self._written is not None:
            self._committed.append(self._written)
            self._written = None
            self._remove_others()

    def _remove_others(self) -> None:
        if self._directory is not None:
            here = [path for path in self._committed if path.parent == self._directory]
            remove_own(self._directory, here[-KEPT:])

    def load(self, state: Nest) -> None:
        """Continue with the tables of a checkpoint, or without them if they are no longer there."""
        assert self._directory is not None
        folder = self._directory / state["folder"]
        self._committed = [folder]
        try:
            load(self._host.service, folder, self._host.alone)
        except PappusError as error:
            self.lost = f"tables begin empty: {error}"
            self.metrics.event(f"starts with empty tables: {error}")

    def close(self) -> None:
        self._host.close()


class DataTableServer(ReplayServer):
    """Holds a table that readers fill from a data set. Its checkpoints have no rows: readers read those again, in the
    same order. When all `items` are in, the table goes on as it stood: same priorities, same random numbers. Where
    data is streamed (`items` is 0), or is no longer what it was, it begins anew."""

    def __init__(self, name: str, host: ReplayHost, items: int, data: dict[str, Any]) -> None:
        """`data`: its `identity_of`."""
        super().__init__(name, host, None)
        self._items, self._data = items, data
        self._drawing: Nest = None
        """What to continue with when all items are in."""

    def step(self) -> Waitable | None:
        port = super().step()
        if self._drawing is not None:
            with self._host.service.standing_still() as tables:
                (table,) = tables.values()
                if table.size == self._items:
                    table.draw_on(self._drawing)
                    self._drawing = None
        return port

    def _say_what_is_lost(self) -> None:
        """Nothing is: the readers read it again."""

    def save(self) -> Nest:
        """Nothing before all items are in, when nothing was drawn."""
        with self._host.service.standing_still() as tables:
            (table,) = tables.values()
            whole = self._items > 0 and table.size == self._items and self._drawing is None
            return {"drawing": table.drawing() if whole else self._drawing, "data": self._data}

    def load(self, state: Nest) -> None:
        """Continue with the drawing of a checkpoint, unless it was from other data: places and priorities are those of
        its items."""
        self.lost = what_changed(state.get("data"), self._data)
        if self.lost:
            self.metrics.event(f"{self.lost}; its table starts empty")
        elif self._items:
            self._drawing = state["drawing"]
