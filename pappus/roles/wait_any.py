"""Waits for two ports at once."""

from __future__ import annotations

import select

from pappus.core import Waitable

SERVED_SECONDS = 0.002
"""How often to look at the first port while the second serves a connection."""


class WaitAny:
    """Two ports, each of which may let a role continue. The waiting time is booked under the first."""

    def __init__(self, first: Waitable, second: Waitable) -> None:
        self.name, self._first, self._second = first.name, first, second
        self.fileno, self.clear = first.fileno, first.clear

    def explain(self) -> str:
        """What both wait for."""
        return f"{self._first.explain()}; and {self._second.name}: {self._second.explain()}"

    def sleep(self, commands: int, seconds: float) -> bool:
        """Sleep until one of them has something or a command comes; return whether it was a command."""
        serve = getattr(self._second, "sleep", None)
        if serve is not None:  # a connection must be served meanwhile, and cannot wait for two things
            return bool(serve(commands, min(seconds, SERVED_SECONDS)))
        ports = {port.fileno(): port for port in (self._first, self._second) if port.fileno() >= 0}
        woken, _, _ = select.select([commands, *ports], [], [], seconds)
        for fd in woken:
            if fd in ports:
                ports[fd].clear()
        return commands in woken
