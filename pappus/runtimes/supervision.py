"""A worker process as its supervisor sees it: its connection, incarnations and deaths."""

from __future__ import annotations

import contextlib
import time
from typing import Any, Protocol

from pappus import errors
from pappus.errors import NonFiniteError, PappusError, RoleDied
from pappus.runtimes.connections import Connection
from pappus.telemetry.metrics import Report
from pappus.topologies.program import RoleSpec

LONG_LIFE = 60.0
"""A process that ran for so many seconds starts a new row of deaths."""
FIRST_DELAY = 0.1
"""Seconds before the second restart in a row; each further one waits twice as long."""


class ClosableConnection(Connection, Protocol):
    """A connection that its owner can close."""

    def close(self) -> None: ...


class ManagedProcess:
    """One group of roles, through all its incarnations."""

    def __init__(self, group: str, specs: list[RoleSpec]) -> None:
        self.group, self.specs = group, specs
        self.essential = any(spec.essential for spec in specs)
        self.saved = any(spec.saved for spec in specs)
        self.incarnation = 0
        self.pid: int | None = None
        self.line: ClosableConnection | None = None
        self.restart_at: float | None = None
        self.deaths_in_a_row = 0
        self.first_notice = ""
        self.failure: dict[str, str] = {}
        self._born = 0.0

    def begin(self, line: ClosableConnection) -> None:
        """The next incarnation is reached through this connection."""
        self.close()
        self.line, self.failure, self._born = line, {}, time.monotonic()

    def close(self) -> None:
        """Close the connection to the present incarnation."""
        if self.line is not None:
            self.line.close()
            self.line = None

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to the worker; it is lost if the worker is dead."""
        if self.line is not None:
            with contextlib.suppress(OSError):
                self.line.send(message)

    def receive(self) -> list[dict[str, Any]]:
        """All messages that have arrived; a connection that has ended is closed."""
        if self.line is None:
            return []
        try:
            return self.line.receive()
        except OSError:
            self.close()
            return []

    def note_progress(self, report: Report) -> None:
        """An incarnation that made progress ends the row of deaths."""
        if report["counts"]:
            self.deaths_in_a_row = 0

    @property
    def unrecoverable(self) -> bool:
        """Whether it died of non-finite numbers: its successor would compute the same ones."""
        return self.failure.get("kind") == NonFiniteError.__name__

    def record_death(self, notice: str) -> float:
        """Count a death; the seconds to wait before a restart."""
        if time.monotonic() - self._born >= LONG_LIFE:
            self.deaths_in_a_row = 0
        if self.deaths_in_a_row == 0:
            self.first_notice = notice
        self.deaths_in_a_row += 1
        self.pid = None
        return 0.0 if self.deaths_in_a_row == 1 else FIRST_DELAY * 2.0 ** (self.deaths_in_a_row - 2)


def failure_notice(worker: ManagedProcess, how: str, fault: str = "") -> str:
    """What is known of a death: one line, then its traceback or what faulthandler wrote."""
    details = worker.failure.get("died", "") or fault
    return f"{worker.group} died ({how})" + (f"\n{details}" if details else "")


def fatal_error(worker: ManagedProcess, notice: str) -> PappusError:
    """The error that ends the run: the role's own sentence if it had one, its traceback otherwise."""
    sentence, kind = worker.failure.get("error", ""), worker.failure.get("kind", "")
    error = getattr(errors, kind, None) if sentence else None
    if error is not None:
        return error(sentence)  # type: ignore[no-any-return]
    row = f" {worker.deaths_in_a_row} times in a row" if worker.deaths_in_a_row > 1 else ""
    return RoleDied(f"{worker.group} died{row}; the first time:\n{notice}" if row else notice)
