"""Measures what one part of a run costs, from its beginning on: looks now and then, and says what lies between."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from pappus.config import RunConfig
from pappus.telemetry.cost import Cost
from pappus.telemetry.energy import Processors
from pappus.telemetry.nvml import Gpus, find_gpus
from pappus.telemetry.process_tree import PacedMemory, ProcessTree

LOOK_SECONDS, LOOK_SHARE = 0.25, 0.002
"""Between two looks at the CPU time of all processes, at least; and the share of the time that looking may take."""
SETTLED_SECONDS = 1.0
"""After so long the energy that was read says how much it is per second."""


class Computed(Protocol):
    """What the kernel says of all processes."""

    def cpu_seconds(self) -> float: ...

    def memory(self) -> int: ...


def meter_for(config: RunConfig, tree: Computed, began: float | None) -> Meter:
    """The meter of a run whose device is chosen. GPUs of a cluster are held elsewhere, and not read."""
    kind, _, number = config.device.partition(":")
    held = range(int(number or 0), int(number or 0) + config.learners) if kind == "cuda" else range(0)
    gpus = None if config.runtime == "ray" else find_gpus(held)
    return Meter(tree, gpus, len(held), began=began)


class Meter:
    """The cost of a run's present part. Processes, GPUs and energy are read by `look`, at its own pace."""

    def __init__(
        self, tree: Computed | None = None, gpus: Gpus | None = None, held: int = 0,
        clock: Callable[[], float] = time.monotonic, began: float | None = None, processors: Processors | None = None,
    ) -> None:
        """`held`: devices that the run holds, of which `gpus` can be read. `began`: by the clock, if not now; energy of
        that time, which nobody has read, counts at the rate of the first second that was."""
        self._tree, self._gpus, self._held = tree or ProcessTree(), gpus, held
        self._processors, self._clock = processors or Processors(), clock
        self._made = clock()
        self._began = self._looked = self._made if began is None else began
        self._cpu = self._cpu_rate = 0.0
        self._busy = None if gpus is None or gpus.busy() is None else 0.0
        self._gpus_before = None if gpus is None else gpus.joules()
        self._joules: float | None = None
        self._joules_before: float | None = None
        self._joule_rate = 0.0
        self._peak = 0
        self._memory, self._next_look = PacedMemory(self._tree, clock), 0.0
        self.sources = self._sources()

    def _sources(self) -> list[str]:
        """Whose energy can be read."""
        processors = ["processors"] if self._processors.joules() is not None else []
        return [*processors, *(["GPUs"] if self._gpus_before is not None else [])]

    def look(self, now_at_all: bool = False) -> None:
        """Read what is due, or everything."""
        now = self._clock()
        if now >= self._next_look or now_at_all:
            self._look(now)
            self._next_look = now + max(LOOK_SECONDS, (self._clock() - now) / LOOK_SHARE)
        self._peak = max(self._peak, self._memory.read(now_at_all))

    def _look(self, now: float) -> None:
        seconds = now - self._looked
        cpu, joules = self._tree.cpu_seconds(), self._energy()
        if self._busy is not None and self._gpus is not None:
            self._busy += seconds * (self._gpus.busy() or 0.0)
        if seconds > 0:
            self._cpu_rate = (cpu - self._cpu) / seconds
            self._joule_rate = ((joules or 0.0) - (self._joules or 0.0)) / seconds
        if self._joules_before is None and joules is not None and (read := now - self._made) >= SETTLED_SECONDS:
            self._joules_before = joules / read * (self._made - self._began)
        self._looked, self._cpu, self._joules = now, cpu, joules

    def _energy(self) -> float | None:
        processors, gpus = self._processors.joules(), None
        if self._gpus is not None and self._gpus_before is not None:
            now = self._gpus.joules()
            gpus = None if now is None else now - self._gpus_before
        return None if processors is None and gpus is None else (processors or 0.0) + (gpus or 0.0)

    def cost(self) -> Cost:
        """Until now: what was read last, and what has come since at the present rate."""
        now = self._clock()
        since = now - self._looked
        return Cost(
            wall_seconds=now - self._began, cpu_seconds=self._cpu + since * self._cpu_rate, gpu_seconds=self._busy,
            gpu_held_seconds=self._held * (now - self._began),
            joules=self._joules_after(since), peak_memory_bytes=self._peak,
        )

    def _joules_after(self, seconds: float) -> float | None:
        """So long after the last look."""
        if self._joules is None:
            return None
        return (self._joules_before or 0.0) + self._joules + seconds * self._joule_rate
