"""How long something may take, all of its parts together."""

from __future__ import annotations

import time


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
