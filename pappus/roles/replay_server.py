"""The role that keeps a run's experience: tables that actors write and the learner draws from."""

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
"""How often to look at the tables, which need nobody: others call, and are answered by threads."""
KEPT = 2
"""Checkpoints of the tables that are kept: they are large, and only the newest ones are resumed from."""


class ReplayHost(Protocol):
    """A service, and who can reach it."""

    @property
    def service(self) -> Service: ...

    @property
    def inserted(self) -> int:
        """Items that were ever inserted, as far as a predecessor in this run has noted."""
        ...

    @inserted.setter
    def inserted(self, count: int) -> None: ...

    def open(self) -> None:
        """Let others in."""
        ...

    def close(self) -> None: ...


class ReplayServer(Role):
    """Opens the service, reports on it, and writes it into `directory` with every checkpoint of the run."""

    def __init__(self, name: str, replay_server: ReplayHost, directory: Path | None) -> None:
        super().__init__(name)
        self._replay_server, self._directory = replay_server, directory
        self._opened = False

    def step(self) -> Waitable | None:
        """Let others in, and look every now and then."""
        if not self._opened:
            self._opened = True
            self._say_what_is_lost()
            self._replay_server.open()
            return None
        self.wake_at = time.perf_counter() + LOOK_SECONDS
        self._replay_server.inserted = self._inserted()
        return IDLE

    def _inserted(self) -> int:
        service = self._replay_server.service
        return sum(int(service.info(table)["inserts"]) for table in service.tables)

    def _say_what_is_lost(self) -> None:
        """When a predecessor was killed: what came after its last checkpoint is gone."""
        here, noted = self._inserted(), self._replay_server.inserted
        if noted > here:
            self.metrics.count("items_lost", noted - here)
            self.metrics.event(f"back with {here:,} of {noted:,} items that had come: {noted - here:,} are lost")

    def save(self) -> Nest | None:
        """Where the tables were written to."""
        if self._directory is None:
            return None
        folder = self._directory / f"replay-{time.time_ns():020d}"
        self._directory.mkdir(parents=True, exist_ok=True)
        save(self._replay_server.service, folder)
        for old in sorted(self._directory.glob("replay-*"))[:-KEPT]:
            shutil.rmtree(old, ignore_errors=True)
        return {"folder": folder.name}

    def load(self, state: Nest) -> None:
        """Go on with the tables of a checkpoint; without them, where they are no longer there."""
        assert self._directory is not None
        folder = self._directory / state["folder"]
        try:
            load(self._replay_server.service, folder)
        except PappusError as error:
            self.metrics.event(f"begins with empty tables: {error}")

    def close(self) -> None:
        self._replay_server.close()
