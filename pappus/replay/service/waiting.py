"""The clients of a service: what each one holds, and how they wait for the service to change."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

from pappus.errors import RunError
from pappus.types import Array

ALIVE_SECONDS = 0.5
"""Interval at which a waiting call checks that its client is still alive."""
PATIENCE_SECONDS = 10.0
"""After this time the log explains a wait; again after twice and four times as long."""

log = logging.getLogger("pappus.replay")

Deed: TypeAlias = Literal["write steps", "insert", "sample"]


class Holder:
    """One client of a service and what it holds: chunks that it may still refer to, and batches that it reads."""

    def __init__(self, name: str, alive: Callable[[], bool] = lambda: True) -> None:
        self.name, self.alive = name, alive
        self.chunks: dict[int, None] = {}
        self.batches: dict[int, list[Array]] = {}


@dataclass
class Wait:
    """A client that waits for a rate limiter, or (`table` is empty) for free steps."""

    who: str
    what: Deed
    table: str
    since: float


class Waits:
    """All waiting calls. The caller holds the service's lock."""

    def __init__(self, lock: threading.Lock) -> None:
        self._changed = threading.Condition(lock)
        self._waits: dict[int, Wait] = {}
        self._numbers = itertools.count(1)

    def tries(
        self, holder: Holder, what: Deed, table: str, seconds: float | None, explain: Callable[[str], list[str]],
        go_on: Callable[[], bool],
    ) -> Iterator[bool]:
        """Yield whenever something changed: False, or True for the last time when time is up.

        While `go_on` returns True, time does not run out. A long wait is logged with the table's explanation.
        """
        began, number, patience = time.monotonic(), next(self._numbers), PATIENCE_SECONDS
        try:
            while True:
                left = float("inf") if seconds is None else began + seconds - time.monotonic()
                yield left <= 0
                if left <= 0 and not go_on():
                    return
                self._waits[number] = Wait(holder.name, what, table, began)
                self._changed.wait(min(left, ALIVE_SECONDS) if left > 0 else ALIVE_SECONDS)
                if not holder.alive():
                    raise RunError(f"{holder.name} has disconnected")
                if time.monotonic() - began > patience:
                    patience *= 2
                    for sentence in explain(table):
                        log.warning("%s", sentence)
        finally:
            self._waits.pop(number, None)

    def tell(self) -> None:
        """Wake all waiting calls: something changed."""
        if self._waits:
            self._changed.notify_all()

    def tables(self, what: Deed) -> set[str]:
        """The tables for which a client waits to do `what`."""
        return {wait.table for wait in self._waits.values() if wait.what == what}

    def named(self, table: str) -> list[str]:
        """The waits for a table or for free steps, one sentence each."""
        now = time.monotonic()
        return [
            f"{wait.who} waits to {wait.what} for {now - wait.since:.1f} s"
            for wait in self._waits.values() if wait.table in (table, "")
        ]


def now() -> float:
    """Seconds of a monotonic clock."""
    return time.monotonic()


class Deadline:
    """A time limit over several waits, from its creation on; None: no limit."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds, self._began = seconds, now()

    @property
    def waited(self) -> float:
        """Seconds since it began."""
        return now() - self._began

    @property
    def left(self) -> float | None:
        """Seconds left, 0 when time is up; None without a limit."""
        return None if self.seconds is None else max(0.0, self.seconds - self.waited)
