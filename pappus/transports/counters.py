"""Counters that several roles add to and all can read: how many steps the actors of a run have made."""

from __future__ import annotations

import numpy as np

from pappus.transports.memory import ALIGNMENT, Block

PER_LINE = ALIGNMENT // 8


class SharedCounters:
    """A number for each of several writers, each on a cache line of its own, and one for what was before."""

    def __init__(self, name: str, writers: int, block: Block) -> None:
        self.name = name
        self._counts = block.memory.view(np.int64)[::PER_LINE]
        assert len(self._counts) == writers + 1

    @staticmethod
    def footprint(writers: int) -> tuple[int, int]:
        """Bytes and notifiers that its block must have."""
        return ALIGNMENT * (writers + 1), 0

    def counter(self, writer: int) -> Counter:
        """The end of the writer of that number; whoever comes after it counts on."""
        return Counter(self, writer)

    def add(self, writer: int, count: int) -> None:
        self._counts[writer] += count

    def total(self) -> int:
        """What all have added so far."""
        return int(self._counts.sum())

    def set_total(self, total: int) -> None:
        """Count on from there."""
        self._counts[-1] += total - self.total()


class Counter:
    """One writer's end of a set of counters."""

    def __init__(self, counters: SharedCounters, writer: int) -> None:
        self._counters, self._writer = counters, writer

    def add(self, count: int) -> None:
        """Count so many more."""
        self._counters.add(self._writer, count)

    def total(self) -> int:
        """What all have added so far."""
        return self._counters.total()

    def set_total(self, total: int) -> None:
        """Count on from there."""
        self._counters.set_total(total)
