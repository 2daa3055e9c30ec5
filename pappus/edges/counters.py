"""Counters that several roles add to and all can read: how many steps the actors of a run have made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pappus.core import StepCounter, StepTotal
from pappus.edges.edge import Edge, PortRef
from pappus.transports.memory import ALIGNMENT, Block

if TYPE_CHECKING:
    from pappus.recording.shared import ServiceDirectory
    from pappus.transports.mirrors import Hold, Mirror

PER_LINE = ALIGNMENT // 8


@dataclass(frozen=True)
class CounterEdge(Edge):
    """A sum that several roles add to, and all can read."""

    writers: int

    def counter(self, writer: int) -> PortRef[StepCounter]:
        """For the writer of that number."""
        return PortRef(self.name, SharedCounters.counter, (writer,))

    def reader(self) -> PortRef[StepTotal]:
        """For a role that only reads."""
        return PortRef(self.name, SharedCounters.reader)

    def memory(self) -> tuple[int, int]:
        return SharedCounters.footprint(self.writers)

    def open(self, block: Block, services: ServiceDirectory | None = None) -> SharedCounters:
        return SharedCounters(self.name, self.writers, block)

    def hub(self) -> PortRef[Any] | None:
        return self.reader()

    def spokes(self) -> Sequence[PortRef[Any]]:
        return [self.counter(writer) for writer in range(self.writers)]

    def mirror(self, block: Block, hold: Callable[[str], Hold]) -> Mirror:
        from pappus.edges.mirrored_counters import CountersMirror

        return CountersMirror(self.writers, block)

    def shares_node(self, ref: PortRef[Any]) -> bool:
        """All readers read the hub's total."""
        return ref == self.reader()


class SharedCounters:
    """A number for each of several writers, each on a cache line of its own, and one for what was counted before."""

    def __init__(self, name: str, writers: int, block: Block) -> None:
        self.name = name
        self._counts = block.memory.view(np.int64)[::PER_LINE]
        assert len(self._counts) == writers + 1

    @staticmethod
    def footprint(writers: int) -> tuple[int, int]:
        """Bytes and notifiers of its block."""
        return ALIGNMENT * (writers + 1), 0

    def counter(self, writer: int) -> Counter:
        """The end of the writer of that number; its successor continues its count."""
        return Counter(self, writer)

    def reader(self) -> SharedCounters:
        """The end of a role that only reads."""
        return self

    def add(self, writer: int, count: int) -> None:
        self._counts[writer] += count

    def total(self) -> int:
        """What all writers have added so far."""
        return int(self._counts.sum())

    def set_total(self, total: int) -> None:
        """Continue from that total."""
        self._counts[-1] += total - self.total()


class Counter:
    """One writer's end of a set of counters."""

    def __init__(self, counters: SharedCounters, writer: int) -> None:
        self._counters, self._writer = counters, writer

    def add(self, count: int) -> None:
        """Count `count` more."""
        self._counters.add(self._writer, count)

    def total(self) -> int:
        """What all writers have added so far."""
        return self._counters.total()

    def set_total(self, total: int) -> None:
        """Continue from that total."""
        self._counters.set_total(total)
