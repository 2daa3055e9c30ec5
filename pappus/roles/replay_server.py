"""The role that holds a run's replay tables, which actors write and the learner samples from."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Protocol

from pappus.core import Waitable
from pappus.errors import PappusError
from pappus.replay.service.checkpoint import load, save
from pappus.replay.service.service import Service
from pappus.roles.role import IDLE, Role
from pappus.types import Nest

LOOK_SECONDS = 0.25
"""How often to look at the tables; threads of the service answer its clients."""
KEPT = 2
"""Checkpoints of the tables that are kept: they are large, and only the newest ones are resumed from."""


class ReplayHost(Protocol):
    """A replay service, and the servers through which clients reach it."""

    service: Service
    inserted: int
    """Items that were ever inserted, as far as a predecessor in this run has noted."""

    def open(self) -> None:
        """Accept clients."""
        ...

    def close(self) -> None: ...


class ReplayServer(Role):
    """Opens the service, reports on it, and writes it into `directory` with every checkpoint of the run."""

    def __init__(self, name: str, host: ReplayHost, directory: Path | None) -> None:
        super().__init__(name)
        self._host, self._directory = host, directory
        self._opened = False

    def step(self) -> Waitable | None:
        if not self._opened:
            self._opened = True
            self._say_what_is_lost()
            self._host.open()
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
            self.metrics.event(f"back with {here:,} of {noted:,} items that had come: {noted - here:,} are lost")

    def save(self) -> Nest | None:
        """Where the tables were written to."""
        if self._directory is None:
            return None
        folder = self._directory / f"replay-{time.time_ns():020d}"
        self._directory.mkdir(parents=True, exist_ok=True)
        save(self._host.service, folder)
        for old in sorted(self._directory.glob("replay-*"))[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
        return {"folder": folder.name}

    def load(self, state: Nest) -> None:
        """Continue with the tables of a checkpoint, or without them if they are no longer there."""
        assert self._directory is not None
        folder = self._directory / state["folder"]
        try:
            load(self._host.service, folder)
        except PappusError as error:
            self.metrics.event(f"begins with empty tables: {error}")

    def close(self) -> None:
        self._host.close()


class DataTableServer(ReplayServer):
    """Holds a table that readers fill from a data set. Its checkpoints have no rows: readers read those again, in the
    same order. When all `items` are in, the table goes on as it stood: same priorities, same random numbers. Where
    data is streamed (`items` is 0), it begins with new data."""

    def __init__(self, name: str, host: ReplayHost, items: int) -> None:
        super().__init__(name, host, None)
        self._items = items
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
            return {"drawing": table.drawing() if whole else self._drawing}

    def load(self, state: Nest) -> None:
        self._drawing = state["drawing"] if self._items else None
