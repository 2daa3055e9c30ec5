"""How long something may take, all of its parts together."""

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
"""How often somebody who waits looks whether the other side is still there."""

PATIENCE_SECONDS = 10.0
"""After so long a wait the log says why; and again after twice, four times as long."""

log = logging.getLogger("pappus.replay")

Deed: TypeAlias = Literal["write steps", "insert", "sample"]


class Holder:
    """What one client holds: chunks that it writes or may still refer to, and batches that it is reading."""

    def __init__(self, name: str, alive: Callable[[], bool] = lambda: True) -> None:
        self.name, self.alive = name, alive
        self.chunks: dict[int, None] = {}
        self.batches: dict[int, list[Array]] = {}


@dataclass
class Wait:
    """Somebody whom a limiter, or a lack of room, keeps waiting; who writes steps waits for no table."""

    who: str
    what: Deed
    table: str
    since: float


class Waits:
    """All who wait. Everything here is done with the service's lock held."""

    def __init__(self, lock: threading.Lock) -> None:
        self._changed = threading.Condition(lock)
        self._waits: dict[int, Wait] = {}
        self._numbers = itertools.count(1)

    def tries(
        self, holder: Holder, what: Deed, table: str, seconds: float | None, explain: Callable[[str], list[str]],
        go_on: Callable[[], bool],
    ) -> Iterator[bool]:
        """Yields whenever something changed; with True when time is up, and then no more.

        As long as `go_on` says so, time does not end. What `explain` says of the table is logged when it takes long.
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
                    raise RunError(f"{holder.name} is gone")
                if time.monotonic() - began > patience:
                    patience *= 2
                    for sentence in explain(table):
                        log.warning("%s", sentence)
        finally:
            self._waits.pop(number, None)

    def tell(self) -> None:
        """Something changed: all who wait look again."""
        if self._waits:
            self._changed.notify_all()

    def tables(self, what: Deed) -> set[str]:
        """The tables with which somebody waits to do something."""
        return {wait.table for wait in self._waits.values() if wait.what == what}

    def named(self, table: str) -> list[str]:
        """Who waits for a table, or for room, to do what, and since when."""
        now = time.monotonic()
        return [
            f"{wait.who} waits to {wait.what} for {now - wait.since:.1f} s"
            for wait in self._waits.values() if wait.table in (table, "")
        ]


def now() -> float:
    """Seconds on a clock that is never set."""
    return time.monotonic()


class Deadline:
    """Begins to count when it is made; without `seconds` it never ends."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds, self._began = seconds, now()

    @property
    def waited(self) -> float:
        """Seconds so far."""
        return now() - self._began

    @property
    def left(self) -> float | None:
        """Seconds to go, 0 when time is up; None if it never ends."""
        return None if self.seconds is None else max(0.0, self.seconds - self.waited)
