"""Weights and optimizer statistics that all workers update in place, without a lock (Recht et al. 2011, "Hogwild!").

Writers may overwrite each other's changes, and a reader may see some numbers before and some after a change; a single
number is never torn, since aligned words of four bytes are written whole. Updates are counted elsewhere, by
`SharedCounters`, in which no count is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from pappus.core import SharedParameters
from pappus.edges.edge import Edge, Port, PortRef
from pappus.telemetry.metrics import Meter
from pappus.transports.memory import ALIGNMENT, Block, aligned


@dataclass(frozen=True)
class SharedParametersEdge(Edge):
    """Rows of `size` float32 each, weights and their statistics, that all roles which hold an end change in place."""

    size: int
    rows: int

    def port(self) -> PortRef[SharedParameters]:
        return PortRef(self.name, ParameterMemory.port)

    def memory(self) -> tuple[int, int]:
        return ParameterMemory.footprint(self.size, self.rows)

    def open(self, block: Block) -> ParameterMemory:
        return ParameterMemory(self.name, self.size, self.rows, block)

    def shares_node(self, ref: PortRef[Any]) -> bool:
        return True


class ParameterMemory(Port):
    """Rows of float32 in memory, whether they were opened, and whether changes were asked to stop."""

    def __init__(self, name: str, size: int, rows: int, block: Block) -> None:
        super().__init__(name, block.notifiers[0])
        self.meter = Meter()
        header = block.memory[:ALIGNMENT].view(np.int64)
        self._opened, self.counted, self._rests = header[0:1], header[1:3], header[3:4]
        stride = aligned(size * 4) // 4
        self.rows = block.memory[ALIGNMENT:].view(np.float32).reshape(rows, stride)[:, :size]
        self._bytes = 4 * size

    @staticmethod
    def footprint(size: int, rows: int) -> tuple[int, int]:
        return ALIGNMENT + rows * aligned(size * 4), 1

    def port(self) -> ParameterMemory:
        return self

    def ready(self) -> bool:
        return bool(self._opened[0])

    def open(self) -> None:
        self._opened[0] = 1
        self._notifier.notify()  # never cleared: from now on there are weights

    def resting(self) -> bool:
        return bool(self._rests[0])

    def rest(self) -> None:
        self._rests[0] = 1

    def go_on(self) -> None:
        self._rests[0] = 0

    def moved(self) -> None:
        self.meter.total += self._bytes

    def explain(self) -> str:
        return "the first weights are not there yet"

    def clear(self) -> None: ...
