"""The role that keeps a run's experience: tables that actors write and the learner draws from."""

from __future__ import annotations

import time
from typing import Any, Protocol

from pappus.core import Waitable
from pappus.replay.service import Service
from pappus.roles.role import IDLE, Role

LOOK_SECONDS = 1.0
"""How often to look at the tables, which need nobody: others call, and are answered by threads."""


class Keeper(Protocol):
    """A service, and who can reach it."""

    @property
    def service(self) -> Service: ...

    def open(self) -> None:
        """Let others in."""
        ...

    def close(self) -> None: ...


class ReplayKeeper(Role):
    """Opens the service and reports on it."""

    def __init__(self, name: str, keeper: Keeper) -> None:
        super().__init__(name)
        self._keeper = keeper
        self._opened = False

    def step(self) -> Waitable | None:
        """Let others in, and look every now and then."""
        if not self._opened:
            self._keeper.open()
            self._opened = True
            return None
        self.wake_at = time.perf_counter() + LOOK_SECONDS
        for table in self._keeper.service.tables:
            self._report(self._keeper.service.info(table))
        return IDLE

    def _report(self, info: dict[str, Any]) -> None:
        self.metrics.gauge("replay/size", info["size"])

    def close(self) -> None:
        self._keeper.close()
