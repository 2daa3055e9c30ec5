"""What is known of one role of a run, from its reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pappus.kinds import RoleKind
from pappus.telemetry.env_timer import quantile, share_beyond
from pappus.telemetry.metrics import Report
from pappus.telemetry.role_view import RoleView
from pappus.telemetry.window import Totals, Window, add_to, totals_of

CPU = ("computing", "polling", "helpers")
SLOW = 5.0
"""A step of envs is slow that takes so many times as long as the median."""


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
    start: float | None = None
    """Seconds from its process's beginning until its first count; None until then."""
    _brief: dict[str, float] = field(default_factory=dict)
    """Counts of brief reports, whose time is not told yet."""
    _pending: Totals = field(default_factory=Totals)
    """Since the last count."""
    _started: bool = False
    _counts: bool = False

    def add(self, report: Report) -> None:
        """Rates and shares start with the first count, and `run` ends with the last one; a role that counts nothing
        says when it has started."""
        self.gauges.update(report["gauges"])
        if report["brief"]:  # what it counts belongs to a time that is told later
            add_to(self._brief, report["counts"])
            return
        latest = totals_of(report)
        add_to(latest.counts, self._brief)
        self._brief = {}
        if report["start"] is not None:
            self.start = report["start"]
        self._counts = self._counts or bool(latest.counts)
        if (latest.counts or report["start"] is not None) and not self._started:
            self._started = True
            self.window.clear()
        self.window.add(latest)
        if self._started:
            self._pending.add(latest)
        if latest.counts or not self._counts:
            self.run.add(self._pending)
            self._pending = Totals()

    def view(
        self, name: str, totals: Totals, seconds: float, silent_seconds: float, memory: int | None = None
    ) -> RoleView:
        """What it did in `totals`, as shares of `seconds`; `memory` is what its process holds."""
        waiting = {what: spent / seconds for what, spent in totals.waiting_for_others.items()}
        what, share = max(waiting.items(), key=lambda item: item[1], default=("", 0.0))
        state = "busy" if totals.busy / seconds >= share else f"waits for {what}"
        return RoleView(
            role=name, kind=self.kind, state=state if totals.seconds else "no report", busy=totals.busy / seconds,
            waiting=waiting, restarts=self.restarts, memory=memory, node=self.node, silent_seconds=silent_seconds,
            start=self.start, **_used(totals, seconds),
        )


def _used(totals: Totals, seconds: float) -> dict[str, Any]:
    def share(spent: float | None) -> float | None:
        return None if spent is None else spent / seconds

    used, durations = totals.usage, totals.durations
    median, late = quantile(durations, 0.5), quantile(durations, 0.99)
    return {
        "computing": share(used.get("computing")), "queued": share(used.get("queued")),
        "cpu": share(sum(used.get(name, 0.0) for name in CPU)) if "computing" in used else None,
        "helpers": share(used.get("helpers")), "children": share(used.get("children")),
        "asleep": share(totals.asleep), "in_envs": share(used.get("env")), "env_asleep": share(totals.env_asleep),
        "step_seconds": None if median is None or late is None else (median, late),
        "slow_steps": 0.0 if median is None else share_beyond(durations, SLOW * median),
    }
