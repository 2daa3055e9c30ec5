"""Reports of roles that take turns in one thread: many brief ones, on which decisions rest, and a few whole ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from pappus.roles.role import Role
from pappus.telemetry.metrics import Report
from pappus.telemetry.usage import SharedUsage

WHOLE_SECONDS = 0.25
"""Between two whole reports: reading what the thread computed takes as long as a small update."""


class TurnReports:
    """Hands what the roles have counted to `receive`. What decisions depend on comes at once, so that a run decides
    the same whatever the time is; what only curves show comes a few times a second, for all roles together."""

    def __init__(self, receive: Callable[[Report], None], clock: Callable[[], float] = time.perf_counter) -> None:
        self._receive, self._clock = receive, clock
        self.begin()

    def begin(self) -> None:
        """The roles take their first turns from now on."""
        self._usage, self._whole_at = SharedUsage(), self._clock() + WHOLE_SECONDS

    def send(self, roles: Mapping[str, Role], whole: bool = False) -> None:
        """`whole`: leave nothing for later."""
        now = self._clock()
        if whole or now >= self._whole_at or any(role.metrics.starts for role in roles.values()):
            self._whole_at = now + WHOLE_SECONDS
            self._send_whole(roles)
            return
        for role in roles.values():
            if role.metrics.has_news:
                self._receive(role.metrics.drain_news())

    def _send_whole(self, roles: Mapping[str, Role]) -> None:
        reports = [role.metrics.drain() for role in roles.values()]
        usages = self._usage.take([report["busy"] for report in reports], [report["usage"] for report in reports])
        for report, usage in zip(reports, usages, strict=True):
            report["usage"] |= usage
            self._receive(report)
