"""Weights and their statistics that all change in place, without a lock (Recht et al. 2011, "Hogwild!").

Writers may overwrite each other's changes, and a reader may see some numbers before and some after a change; a single
number is never torn, since aligned words of four bytes are written whole. Who changes how much is counted elsewhere, by
a `SharedCounters`, in which no count is lost.
"""

from __future__ import annotations

import numpy as np

from pappus.telemetry.meter import Meter
from pappus.transports.memory import ALIGNMENT, Block, aligned


class ParameterMemory:
    """Rows of float32 over raw memory, whether they hold anything yet, and whether they shall rest."""

    def __init__(self, name: str, size: int, rows: int, block: Block) -> None:
        self.name = name
        self.meter = Meter()
        header = block.memory[:ALIGNMENT].view(np.int64)
        self._opened, self.counted, self._rests = header[0:1], header[1:3], header[3:4]
        stride = aligned(size * 4) // 4
        self.rows = block.memory[ALIGNMENT:].view(np.float32).reshape(rows, stride)[:, :size]
        self._bytes = 4 * size
        self._notifier = block.notifiers[0]

    @staticmethod
    def footprint(size: int, rows: int) -> tuple[int, int]:
        """Bytes and notifiers that its block must have."""
        return ALIGNMENT + rows * aligned(size * 4), 1

    def ready(self) -> bool:
        """Whether somebody has opened it."""
        return bool(self._opened[0])

    def open(self) -> None:
        """The first weights are there: wake those who wait for them."""
        self._opened[0] = 1
        self._notifier.notify()  # never cleared: from now on nobody has to wait

    def resting(self) -> bool:
        """Whether somebody has asked for rest."""
        return bool(self._rests[0])

    def rest(self) -> None:
        """Ask all to change nothing any more."""
        self._rests[0] = 1

    def moved(self) -> None:
        self.meter.total += self._bytes

    def explain(self) -> str:
        return "the first weights are not there yet"

    def fileno(self) -> int:
        return self._notifier.fileno()

    def clear(self) -> None: ...
