"""CPU time and memory of this process and of all that it has started, also of what has ended since.

What has ended lives on in the count of whoever waited for it: a process's own seconds and those of children that it has
waited for (`cutime`), summed over all that live, lose nothing. The fork server adopts the children of roles that were
killed (`PR_SET_CHILD_SUBREAPER`), so they are waited for, too.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Callable
from math import inf
from pathlib import Path
from typing import Protocol

from pappus.telemetry.processes import resident_bytes
from pappus.telemetry.usage import descendants

MEMORY_SECONDS, MEMORY_SHARE = 2.0, 0.001
"""Between two looks at the memory of processes, at least; and the share of the time that looking may take."""


class ProcessTree:
    """This process and what it has started: since its beginning, or since now."""

    def __init__(self, whole: bool = False, alone: bool = False) -> None:
        """`whole`: this process is for nothing but the run. `alone`: what it has started counts elsewhere."""
        self._alone = alone
        self._before = 0.0 if whole else self._computed()
        self._most = 0.0

    def cpu_seconds(self) -> float:
        """Seconds computed, in user and kernel mode. It never falls: a process that ends while others are read is
        missed until the next reading."""
        self._most = max(self._most, self._computed() - self._before)
        return self._most

    def memory(self) -> int:
        """Bytes that all of them hold now, each page that several share once."""
        return sum(map(held_bytes, [os.getpid(), *self._below()]))

    def _computed(self) -> float:
        waited = resource.getrusage(resource.RUSAGE_CHILDREN)  # parents first: what ends meanwhile must not count twice
        ended = 0.0 if self._alone else waited.ru_utime + waited.ru_stime
        return time.process_time() + ended + sum(map(with_children, self._below()))

    def _below(self) -> list[int]:
        return [] if self._alone else descendants(os.getpid())


class Holding(Protocol):
    """What says how many bytes it holds."""

    def memory(self) -> int: ...


class PacedMemory:
    """The bytes that processes hold, read now and then: the kernel walks through all their pages."""

    def __init__(self, processes: Holding, clock: Callable[[], float] = time.monotonic) -> None:
        self._processes, self._clock = processes, clock
        self._next, self._last = -inf, 0

    def read(self, now_at_all: bool = False) -> int:
        """What they hold, or did when they were read last."""
        began = self._clock()
        if began >= self._next or now_at_all:
            self._last = self._processes.memory()
            self._next = began + max(MEMORY_SECONDS, (self._clock() - began) / MEMORY_SHARE)
        return self._last


def with_children(pid: int) -> float:
    """Seconds that a process has computed, with those of its children that it has waited for; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def held_bytes(pid: int) -> int:
    """Memory of a process, its share of pages that others have, too; where the kernel does not say, all it maps."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return resident_bytes(pid) or 0
