"""How long steps of envs take, and what the thread does meanwhile. Of short steps only some are timed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from pappus.telemetry.usage import ThreadClock, Usage
from pappus.types import Array, Timestep

TIMED_SECONDS = 2e-3
"""So much time of steps for one that is timed: timing takes about 5 µs."""
MOST_BETWEEN = 128
"""Every step so short that it is one of so many is timed."""
PER_DOUBLING = 4
"""Durations are counted in buckets, so many for each doubling of microseconds."""


class EnvTimer:
    """Steps envs as `step` does. One of `between` steps is timed, and counts for all of them."""

    def __init__(
        self, step: Callable[[Array], Timestep], clock: Callable[[], float] = time.perf_counter,
        thread: ThreadClock | None = None,
    ) -> None:
        self._step, self._clock, self._thread = step, clock, thread or ThreadClock()
        self._between = self._left = 1
        self._usual = 0.0
        self._usage: Usage = {}
        self._durations: dict[str, float] = {}

    def __call__(self, action: Array) -> Timestep:
        self._left -= 1
        return self._step(action) if self._left else self._timed(action)

    def _timed(self, action: Array) -> Timestep:
        (_, queued), computed, began = self._thread.read(), time.thread_time(), self._clock()
        timestep = self._step(action)
        seconds, computed = self._clock() - began, time.thread_time() - computed
        _, queued_now = self._thread.read()
        without = 0.0 if queued is None or queued_now is None else min(seconds, queued_now - queued)
        self._add(seconds, computed, without)
        return timestep

    def _add(self, seconds: float, computed: float, queued: float) -> None:
        weight = self._between
        for name, value in (("env", seconds), ("env_computing", computed), ("env_queued", queued)):
            self._usage[name] = self._usage.get(name, 0.0) + weight * value
        bucket = bucket_of(seconds - queued)  # how long it takes does not depend on what else runs here
        self._durations[bucket] = self._durations.get(bucket, 0) + weight
        self._usual = seconds if not self._usual else 0.9 * self._usual + 0.1 * seconds
        self._between = self._left = max(1, min(MOST_BETWEEN, int(TIMED_SECONDS / max(self._usual, 1e-9))))

    def begin(self) -> None:
        """Forget what was timed so far: it belongs to the start."""
        self._usage, self._durations = {}, {}

    def take(self) -> tuple[Usage, dict[str, float]]:
        """Seconds in steps, and steps by bucket of their duration, since the last call."""
        taken = self._usage, self._durations
        self.begin()
        return taken


def bucket_of(seconds: float) -> str:
    """The bucket of a duration; JSON has text for keys."""
    return str(math.floor(PER_DOUBLING * math.log2(max(1.0, 1e6 * seconds))))


def seconds_of(bucket: str) -> float:
    """The middle of a bucket."""
    return float(1e-6 * 2 ** ((int(bucket) + 0.5) / PER_DOUBLING))


def quantile(durations: Mapping[str, float], share: float) -> float | None:
    """The duration that so many of the steps do not exceed; None where none were timed."""
    left = share * sum(durations.values())
    for bucket in sorted(durations, key=int):
        left -= durations[bucket]
        if left <= 0:
            return seconds_of(bucket)
    return None


def share_beyond(durations: Mapping[str, float], seconds: float) -> float:
    """The share of all time that steps take which last longer than this."""
    times = {bucket: count * seconds_of(bucket) for bucket, count in durations.items()}
    long = sum(spent for bucket, spent in times.items() if seconds_of(bucket) > seconds)
    return long / (sum(times.values()) or 1.0)
