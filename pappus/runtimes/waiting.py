"""How a role waits: it sleeps for most of the time and polls for the rest, if there is a free core.

Waking a process that sleeps on another core takes tens of microseconds, longer than many requests take to answer.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from pappus.core import Waitable
from pappus.polling import readable

SPIN_SECONDS = 200e-6
"""How long to poll: a little longer than a small network needs for an answer."""
ASLEEP = 0.9
"""Share of the usual waiting time to sleep before polling."""
DECAY = 0.9


class Waiter:
    """Waits for the ports of one role. `spin` is how long it may poll at a time; 0: not at all."""

    def __init__(self, spin: float) -> None:
        self._spin = spin
        self._usual = 0.0
        self.polled = 0.0
        """CPU seconds that went into waiting so far."""

    def wait(self, port: Waitable, commands: int, seconds: float) -> bool:
        """Until the port or the descriptor `commands` is ready, or time is up; whether it was `commands`."""
        sleep = getattr(port, "sleep", None)
        if sleep is not None:
            computed = time.thread_time()
            told = bool(sleep(commands, seconds))
            self.polled += time.thread_time() - computed
            return told
        ready = getattr(port, "ready", None) if self._spin else None
        if ready is None:
            return _sleep(port, commands, seconds)
        start = time.perf_counter()
        asleep, awake = ASLEEP * self._usual - self._spin, self._usual + self._spin
        told = asleep > 0 and _sleep(port, commands, min(seconds, asleep))
        began = time.perf_counter()
        found = told or self._spin_until(ready, start + min(seconds, awake))
        self.polled += time.perf_counter() - began
        if not found:
            told = _sleep(port, commands, max(0.0, start + seconds - time.perf_counter()))
        self._usual = DECAY * self._usual + (1 - DECAY) * (time.perf_counter() - start)
        return told

    @staticmethod
    def _spin_until(ready: Callable[[], bool], until: float) -> bool:
        """Whether it became ready. Checks at least once: the sleep before may have cleared the signal already."""
        while not ready():
            if time.perf_counter() >= until:
                return False
            os.sched_yield()
        return True  # a notifier that was not cleared only makes the next sleep short


def _sleep(port: Waitable, commands: int, seconds: float) -> bool:
    fd = port.fileno()
    woken = readable([commands, fd] if fd >= 0 else [commands], seconds)
    if fd in woken:
        port.clear()
    return commands in woken


def spin_for(processes: int, cores: int) -> float:
    """Seconds that each of so many processes may poll: none if there are more of them than cores."""
    return SPIN_SECONDS if cores >= processes else 0.0
