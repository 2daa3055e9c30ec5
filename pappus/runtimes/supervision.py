"""A worker process as its supervisor sees it: its line, its lives and its deaths."""

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
"""Seconds after which a death is no longer one of a row."""
FIRST_DELAY = 0.1
"""Seconds before the second restart in a row; each further one waits twice as long."""


class ClosableConnection(Connection, Protocol):
    """A line that its owner can close."""

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
        self.last_words: dict[str, str] = {}
        self._born = 0.0

    def begin(self, line: ClosableConnection) -> None:
        """The next incarnation is reached through this line."""
        self.close()
        self.line, self.last_words, self._born = line, {}, time.monotonic()

    def close(self) -> None:
        """Close what belongs to the present incarnation."""
        if self.line is not None:
            self.line.close()
            self.line = None

    def send(self, message: dict[str, Any]) -> None:
        """Tell the worker something; it is lost when the worker is dead."""
        if self.line is not None:
            with contextlib.suppress(OSError):
                self.line.send(message)

    def receive(self) -> list[dict[str, Any]]:
        """All messages that have arrived; a line that has ended is closed."""
        if self.line is None:
            return []
        try:
            return self.line.receive()
        except OSError:
            self.close()
            return []

    def note_progress(self, report: Report) -> None:
        """A life in which something was done ends the row of deaths."""
        if report["counts"]:
            self.deaths_in_a_row = 0

    @property
    def beyond_help(self) -> bool:
        """Whether it died of numbers that are not finite: its successor would meet the same ones."""
        return self.last_words.get("kind") == NonFiniteError.__name__

    def bury(self, notice: str) -> float:
        """Count a death; the seconds to wait before the next life."""
        if time.monotonic() - self._born >= LONG_LIFE:
            self.deaths_in_a_row = 0
        if self.deaths_in_a_row == 0:
            self.first_notice = notice
        self.deaths_in_a_row += 1
        self.pid = None
        return 0.0 if self.deaths_in_a_row == 1 else FIRST_DELAY * 2.0 ** (self.deaths_in_a_row - 2)


def death_notice(worker: ManagedProcess, how: str, fault: str = "") -> str:
    """What is known of a death: a line, then its last words, or what the system wrote when it crashed."""
    details = worker.last_words.get("died", "") or fault
    return f"{worker.group} died ({how})" + (f"\n{details}" if details else "")


def essential_death(worker: ManagedProcess, notice: str) -> PappusError:
    """The error that ends the run: the role's own sentence if it had one, its traceback otherwise."""
    sentence, kind = worker.last_words.get("error", ""), worker.last_words.get("kind", "")
    error = getattr(errors, kind, None) if sentence else None
    if error is not None:
        return error(sentence)  # type: ignore[no-any-return]
    row = f" {worker.deaths_in_a_row} times in a row" if worker.deaths_in_a_row > 1 else ""
    return RoleDied(f"{worker.group} died{row}; the first time:\n{notice}" if row else notice)
