"""What the machine says while a run goes on: cores that other programs use, memory that is left, busy GPUs."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

SAMPLE_SECONDS = 1.0
WINDOW_SECONDS = 5.0
TREND_SECONDS = 120.0
"""Over which memory is watched: a table that fills grows for minutes, an episode's garbage does not."""
TREND_SAMPLES = 8
GROUP = Path("/sys/fs/cgroup")
SHARED = Path("/dev/shm")


@dataclass(frozen=True)
class MachineFacts:
    """One machine, lately. What it does not say is None."""

    cores: float
    """That the run may use; a container's quota may be a part of one."""
    others: float | None = None
    """Cores that programs beside the run use."""
    memory_free: int | None = None
    """Bytes that may still be taken, by the machine's or the container's limit."""
    memory_growth: float = 0.0
    """Bytes per second by which that shrinks; 0 while it does not, or is not yet known."""
    gpu_busy: float | None = None
    """Share of time in which the run's GPU computes."""
    used: float = 0.0
    """Cores that the run uses."""

    @property
    def capacity(self) -> float:
        """Cores that the run can have: those that others leave, but no less than it has now, or than half of all, which
        the kernel gives to a run that asks for it."""
        return max(self.cores - (self.others or 0.0), min(self.used, self.cores), self.cores / 2)

    @property
    def memory_seconds(self) -> float | None:
        """Until memory runs out, if it goes on like this; None where it does not grow."""
        if self.memory_free is None or self.memory_growth <= 0:
            return None
        return self.memory_free / self.memory_growth


class Sample(NamedTuple):
    """Readings of one moment."""

    time: float
    busy: float | None
    """CPU seconds of all programs on the cores that the run may use, since the machine started."""
    own: float
    """CPU seconds of this process, and of others that are no roles but belong to the run."""
    free: int | None


class MachineWatch:
    """Reads the machine now and then, when somebody asks."""

    def __init__(
        self, cores: int, clock: Callable[[], float] = time.monotonic,
        read: Callable[[], tuple[float | None, int | None]] | None = None,
        gpu_busy: Callable[[], float | None] = lambda: None, own: Callable[[], float] = time.process_time,
    ) -> None:
        """`read` says CPU seconds of all programs and free bytes; `own`, CPU seconds of the run beside its roles."""
        self._quota = quota()
        self._cores = float(cores) if self._quota is None else min(float(cores), self._quota)
        self._limited = self._cores < cores
        self._clock, self._read, self._gpu_busy, self._own = clock, read or _readings, gpu_busy, own
        self._recent: deque[Sample] = deque()
        self._trend: deque[Sample] = deque()
        self._first = self._take()

    def look(self) -> None:
        """Take a sample, if the last is old enough."""
        now = self._clock()
        if self._recent and now - self._recent[-1].time < SAMPLE_SECONDS:
            return
        sample = self._take()
        self._recent.append(sample)
        while len(self._recent) > 2 and now - self._recent[0].time > WINDOW_SECONDS:
            self._recent.popleft()
        if not self._trend or now - self._trend[-1].time >= TREND_SECONDS / TREND_SAMPLES:
            self._trend.append(sample)
        while now - self._trend[0].time > TREND_SECONDS:
            self._trend.popleft()

    def begin(self) -> None:
        """The whole run begins now: what was before belongs to its start."""
        self._first = self._take()
        self._recent.clear()

    def facts(self, used: float, whole_run: bool = False) -> MachineFacts:
        """Lately, or since the beginning; `used` says how many cores the roles of the run use."""
        self.look()
        last = self._recent[-1]
        since = self._first if whole_run else self._recent[0]
        return MachineFacts(self._cores, self._others(since, last, used), last.free, self._growth(), self._gpu_busy())

    def _others(self, since: Sample, last: Sample, used: float) -> float | None:
        """Where a container's quota is smaller than its cores, others may use what they like."""
        seconds = last.time - since.time
        if since.busy is None or last.busy is None or seconds < SAMPLE_SECONDS / 2 or self._limited:
            return None
        return max(0.0, (last.busy - since.busy - last.own + since.own) / seconds - used)

    def _growth(self) -> float:
        """Slope by least squares; falling and rising by turns is none."""
        points = [(sample.time, float(sample.free)) for sample in self._trend if sample.free is not None]
        if len(points) < TREND_SAMPLES // 2:
            return 0.0
        falls = sum(after < before for (_, before), (_, after) in pairwise(points))
        if falls < 0.8 * (len(points) - 1):
            return 0.0
        at, free = sum(t for t, _ in points) / len(points), sum(f for _, f in points) / len(points)
        slope = sum((t - at) * (f - free) for t, f in points) / sum((t - at) ** 2 for t, _ in points)
        return max(0.0, -slope)

    def _take(self) -> Sample:
        busy, free = self._read()
        return Sample(self._clock(), busy, self._own(), free)


def _readings() -> tuple[float | None, int | None]:
    return cores_busy(), memory_free()


def cores_busy() -> float | None:
    """CPU seconds of all programs on the cores of this process, those that a hypervisor takes away included."""
    try:
        lines = Path("/proc/stat").read_text().splitlines()
        mine = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    except (OSError, AttributeError):
        return None
    ticks = 0
    for line in lines:
        name, *numbers = line.split()
        if name in mine:
            user, nice, system, _, _, irq, softirq, steal = map(int, numbers[:8])
            ticks += user + nice + system + irq + softirq + steal
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_free() -> int | None:
    """Bytes that may still be taken: of the machine, of the container, and of shared memory."""
    return min((found for found in (_of_machine(), _of_group(), _of_shared()) if found is not None), default=None)


def _of_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _of_group() -> int | None:
    """What the container may still take; pages of files that it can drop are free."""
    limit, current = _number(GROUP / "memory.max"), _number(GROUP / "memory.current")
    if limit is None or current is None:
        return None
    try:
        lines = (GROUP / "memory.stat").read_text().splitlines()
    except OSError:
        lines = []
    droppable = sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    return max(0, limit - current + droppable)


def _of_shared() -> int | None:
    """A small /dev/shm is full before the memory is."""
    try:
        found = os.statvfs(SHARED)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize or None


def quota() -> float | None:
    """Cores that a container's quota allows; None without one."""
    try:
        allowed, period = (GROUP / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if allowed == "max" else int(allowed) / int(period)


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
