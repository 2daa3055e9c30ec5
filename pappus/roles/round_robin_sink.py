"""One sink that is several: what is written goes to each of them in turn."""

from __future__ import annotations

from collections.abc import Sequence

from pappus.core import Sink
from pappus.types import Unroll


class RoundRobinSink:
    """Slots of several sinks in turn. It waits for the one whose turn it is: those behind them go on together."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self.name, self._sinks = sinks[0].name, sinks
        self.turn = 0
        """Whose slot is the next."""

    def acquire(self) -> Unroll | None:
        return self._sinks[self.turn].acquire()

    def commit(self) -> None:
        self._sinks[self.turn].commit()
        self.turn = (self.turn + 1) % len(self._sinks)

    def explain(self) -> str:
        return self._sinks[self.turn].explain()

    def fileno(self) -> int:
        return self._sinks[self.turn].fileno()

    def clear(self) -> None:
        self._sinks[self.turn].clear()
