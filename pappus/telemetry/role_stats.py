"""What is known of one role of a run, from its reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pappus.kinds import RoleKind
from pappus.telemetry.metrics import Report
from pappus.telemetry.processes import resident_bytes
from pappus.telemetry.window import Totals, Window, totals_of


class Event(NamedTuple):
    """A line for the log; `time` is wall time, `role` is empty for the run itself."""

    time: float
    role: str
    text: str

    def __str__(self) -> str:
        return f"{self.role}: {self.text}" if self.role else self.text


@dataclass
class RoleStats:
    """What one role has reported; of a role that was restarted, all its processes."""

    kind: RoleKind
    window: Window
    heard_at: float
    run: Totals = field(default_factory=Totals)
    gauges: dict[str, float] = field(default_factory=dict)
    pid: int | None = None
    node: str = ""
    measured: tuple[int, float] | None = None
    restarts: int = 0
    _pending: Totals = field(default_factory=Totals)
    _started: bool = False

    @property
    def memory(self) -> int | None:
        if self.measured is not None:
            return self.measured[0]
        return None if self.pid is None else resident_bytes(self.pid)

    def add(self, report: Report) -> None:
        """Rates and shares start with the first count, and `run` ends with the last one."""
        self.gauges.update(report["gauges"])
        if report["counts"] and not self._started:
            self._started = True
            self.window.clear()
        self.window.add(report)
        if self._started:
            self._pending.add(totals_of(report))
        if report["counts"]:
            self.run.add(self._pending)
            self._pending = Totals()
