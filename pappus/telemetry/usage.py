"""What the kernel says of a role's thread: seconds that it computed, and seconds that it was ready but had no core.

    busy  =  computing  +  waiting for a core  +  asleep
             (own CPU)     (run queue)            (what is left, unless others computed for it meanwhile)

A thread that is woken while it waits for another role may have to wait for a core, too. The kernel's one figure holds
both; what is more than fits into busy time is taken from the waits for others (`Totals.waiting_for_others`).

`Usage` is a role's part of a report: sums of seconds by name. What cannot be known is absent.

    computing        its thread, while busy
    polling          its thread, while it waits: it looks for an answer instead of going to sleep
    queued           its thread was ready to run and had no core
    helpers          other threads of its process, and child processes: those of libraries and of envs; of roles that
                     share a thread, those that compute while it sleeps in steps of envs
    children         child processes alone
    env              in steps of envs, of the busy time
    env_computing    its thread, in steps of envs
    env_queued       as `queued`, in steps of envs
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from pappus.telemetry.processes import cpu_seconds

Usage: TypeAlias = dict[str, float]

NANO = 1e-9
CHILDREN_SECONDS = 1.0
"""How often to look for child processes."""


class ThreadClock:
    """CPU and run-queue seconds of one thread: the first that reads it. A reading takes about a microsecond."""

    __slots__ = ("_file",)

    def __init__(self) -> None:
        self._file = -2  # not yet opened

    def read(self) -> tuple[float, float | None]:
        """Seconds computed, and seconds spent ready without a core; None where the kernel does not say."""
        if self._file == -2:
            self._file = _opened()
        if self._file < 0:
            return time.thread_time(), None
        computed, queued, *_ = os.pread(self._file, 64, 0).split()
        return int(computed) * NANO, int(queued) * NANO

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)


def _opened() -> int:
    try:
        return os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


class RoleUsage:
    """The usage of a role that has a thread of its own. `alone`: all else in this process computes for it."""

    def __init__(self, alone: bool, polled: Callable[[], float] = lambda: 0.0) -> None:
        """`polled` says how many CPU seconds went into looking for answers so far."""
        self._clock, self._alone, self._polled = ThreadClock(), alone, polled
        self._children = Children() if alone else None
        self._before = self._read()

    def begin(self) -> None:
        """Forget what was computed so far, also by processes that have just been started."""
        if self._children is not None:
            self._children.look()
        self._before = self._read()

    def take(self) -> Usage:
        """Seconds since the last call. Called by the role's thread."""
        before, self._before = self._before, self._read()
        usage = {name: max(0.0, now - before[name]) for name, now in self._before.items() if name in before}
        own = usage.pop("own")
        usage["computing"] = max(0.0, own - usage["polling"])
        if self._alone:
            usage["helpers"] = max(0.0, usage.pop("process") - own) + usage["children"]
        return usage

    def _read(self) -> Usage:
        own, queued = self._clock.read()
        found = {"own": own, "polling": self._polled()}
        if queued is not None:
            found["queued"] = queued
        if self._children is not None:
            found |= {"process": time.process_time(), "children": self._children.cpu_seconds()}
        return found


class Children:
    """The processes that the threads of this process have started, and those that they have started."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._look_at = clock, 0.0
        self._pids: list[int] = []
        self._computed: dict[int, float] = {}
        """By process, also of those that have ended."""

    def look(self) -> None:
        """See which there are."""
        self._look_at = self._clock() + CHILDREN_SECONDS
        self._pids = descendants(os.getpid())

    def cpu_seconds(self) -> float:
        """What they have computed so far."""
        if self._clock() >= self._look_at:
            self.look()
        for pid in self._pids:
            self._computed[pid] = max(self._computed.get(pid, 0.0), cpu_seconds(pid) or 0.0)
        return sum(self._computed.values())


def descendants(pid: int) -> list[int]:
    """Processes below another one; none where the kernel does not list them."""
    found: list[int] = []
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(word) for word in file.read_text().split()]
        except OSError:  # the thread has ended
            continue
        for child in children:
            found += [child, *descendants(child)]
    return found


class SharedUsage:
    """The usage of roles that take turns in one thread: what the thread computed and queued, by their busy shares; what
    an env sleeps is measured in its steps, and other threads and processes compute for it meanwhile."""

    def __init__(self, clock: ThreadClock | None = None) -> None:
        self._clock, self._children = clock or ThreadClock(), Children()
        self._before, self._beside = self._clock.read(), self._read_beside()

    def take(self, busy: Sequence[float], of_envs: Sequence[Mapping[str, float]]) -> list[Usage]:
        """One usage for each role, with its busy seconds since the last call and what its envs' steps took."""
        (_, before), self._before = self._before, self._clock.read()
        now, all_busy = self._before[1], sum(busy) or 1.0
        queued = 0.0 if now is None or before is None else min(all_busy, now - before)
        since, self._beside = self._beside, self._read_beside()
        threads, children = (max(0.0, now - then) for now, then in zip(self._beside, since, strict=True))
        asleep = [_asleep(env) for env in of_envs]
        usages = [
            _of_turn(seconds, queued * seconds / all_busy, left) for seconds, left in zip(busy, asleep, strict=True)
        ]
        for usage, left in zip(usages, asleep, strict=True):
            if left:
                usage["helpers"] = (threads + children) * left / sum(asleep)
                usage["children"] = children * left / sum(asleep)
        return usages

    def _read_beside(self) -> tuple[float, float]:
        """What other threads, and what child processes have computed so far."""
        return time.process_time() - self._clock.read()[0], self._children.cpu_seconds()


def _asleep(env: Mapping[str, float]) -> float:
    """Seconds in steps of envs in which the thread had nothing to do."""
    return max(0.0, env.get("env", 0.0) - env.get("env_computing", 0.0) - env.get("env_queued", 0.0))


def _of_turn(busy: float, queued: float, asleep: float) -> Usage:
    return {"queued": queued, "computing": max(0.0, busy - queued - asleep), "polling": 0.0}


