"""How a role spends its time: busy, or waiting for something that has a name."""

from __future__ import annotations

import time
from collections.abc import Callable


class RoleClock:
    """Seconds per state. A role is in exactly one state at any time, so the states add up to the time passed."""

    __slots__ = ("_clock", "_seconds", "_since", "_state")

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: dict[str | None, float] = {}  # None is busy, anything else is what is waited for
        self._state: str | None = None
        self._since = clock()

    def busy(self) -> None:
        """The role works from now on."""
        self.waiting(None)

    def waiting(self, what: str | None) -> None:
        """The role waits for `what` from now on."""
        now = self._clock()
        seconds, state = self._seconds, self._state
        seconds[state] = seconds.get(state, 0.0) + now - self._since
        self._state = what
        self._since = now

    def drain(self) -> tuple[float, dict[str, float]]:
        """Busy seconds and seconds per thing waited for since the last drain, the present state included."""
        self.waiting(self._state)
        seconds, self._seconds = self._seconds, {}
        busy = seconds.pop(None, 0.0)
        return busy, {what: spent for what, spent in seconds.items() if what is not None}
