"""What a role counts between two reports, and how it spends its time. Everything is bounded, and recording costs a few
dict operations."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias, TypedDict

from pappus.telemetry.env_timer import EnvTimer
from pappus.telemetry.usage import RoleUsage, Usage

MAX_EPISODES = 1000
"""Newest episodes that a report lists one by one; its counts and means cover all of them."""
MAX_NAMES, MAX_LETTERS = 100, 100
"""Names of what envs measure, and the letters of each."""
CHECKPOINT = "its checkpoint"
"""What a role waits for while its state is written."""
EXACT_LAGS = 16
"""Lags up to this one are counted one by one, larger ones together up to the next power of two."""
MAX_EVENTS = 100
"""Events that a report carries; further ones are counted in a last line."""

Measure: TypeAlias = Callable[[], Mapping[str, tuple[float, float]]]
"""What envs measured since the last call: by name, the sum of the values and how many they were."""


def lag_bucket(versions: float) -> str:
    """The bucket of a policy lag, by its largest lag; JSON has text for keys."""
    whole = max(0, round(versions))
    return str(whole if whole <= EXACT_LAGS else 1 << (whole - 1).bit_length())


class Sums:
    """Sums of values by name, until somebody takes them. Of names there is a limit: whoever gives them may make up new
    ones all the time."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}
        self._names: set[str] = set()

    def add(self, name: str, total: float, count: float) -> None:
        """Add so many values."""
        if name not in self._names:
            if len(self._names) >= MAX_NAMES or not 0 < len(name) <= MAX_LETTERS or not name.isprintable():
                return
            self._names.add(name)
        before = self._sums.get(name, (0.0, 0.0))
        self._sums[name] = before[0] + total, before[1] + count

    def take(self) -> dict[str, tuple[float, float]]:
        """By name: the sum of the values since the last call, and how many they were."""
        sums, self._sums = self._sums, {}
        return sums


class RoleClock:
    """Seconds per state. A role is in exactly one state at any time, so the states add up to the time passed."""

    __slots__ = ("_clock", "_seconds", "_since", "_state")

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._seconds: dict[str | None, float] = {}  # None is busy, anything else is what is waited for
        self._state: str | None = None
        self._since = clock()

    @property
    def is_busy(self) -> bool:
        """Whether the role is at work now."""
        return self._state is None

    def busy(self) -> None:
        self.waiting(None)

    def waiting(self, what: str | None) -> None:
        """The role waits for `what` from now on."""
        now = self._clock()
        seconds, state = self._seconds, self._state
        seconds[state] = seconds.get(state, 0.0) + now - self._since
        self._state = what
        self._since = now

    def drain(self) -> tuple[float, dict[str, float]]:
        """Busy seconds and seconds per thing waited for since the last drain, the present state included."""
        self.waiting(self._state)
        seconds, self._seconds = self._seconds, {}
        busy = seconds.pop(None, 0.0)
        return busy, {what: spent for what, spent in seconds.items() if what is not None}

    def begin(self) -> float:
        """Forget what was so far, since it belongs to the start; how long it took."""
        busy, waiting = self.drain()
        return busy + sum(waiting.values())


class Meter:
    """Bytes that passed through the ends of an edge in one process, once for every receiver: what would cross a network
    if every role were on a machine of its own. Weights count when they are read, everything else when it is sent."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0


class Report(TypedDict):
    """What a role did since its last report: a plain dict of JSON values."""

    role: str
    time: float
    counts: dict[str, float]
    means: dict[str, list[float]]
    maxima: dict[str, float]
    gauges: dict[str, float]
    episodes: list[list[float]]
    busy: float
    waiting: dict[str, float]
    start: float | None
    """Seconds until the first count, in the report that has it: imports, the first reset, the first update."""
    usage: Usage
    durations: dict[str, float]
    """Steps of envs by bucket of their duration."""
    lags: dict[str, float]
    """Updates by bucket of their policy lag."""
    events: list[str]
    brief: bool
    """Whether it has only what decisions rest on: how long that took, and all else, comes with a later one."""


class Metrics:
    """The numbers of one role; its `clock` says busy or waiting. Not thread-safe: one thread owns it. Names with a
    slash (`losses/policy`) reach the curves as they are, others get the role's kind in front."""

    def __init__(self, role: str, clock: RoleClock | None = None, wall_time: Callable[[], float] = time.time) -> None:
        self.role, self.clock, self._wall_time = role, clock or RoleClock(), wall_time
        self._meters: list[tuple[str, Meter]] = []
        self._told: dict[Meter, int] = {}
        self._measures: list[Measure] = []
        self._timers: list[EnvTimer] = []
        self.usage: RoleUsage | None = None
        """Of a role with a thread of its own; set by what drives it."""
        self._begun = False
        self._start: float | None = None
        self._reset()

    @property
    def begun(self) -> bool:
        """Whether the start is over."""
        return self._begun

    def begin(self) -> None:
        """The start is over: time counts from here. The first count says so."""
        if self._begun:
            return
        self._begun, self._start = True, self.clock.begin()
        if self.usage is not None:
            self.usage.begin()
        for timer in self._timers:
            timer.begin()

    def count(self, name: str, n: int = 1) -> None:
        if not self._begun:
            self.begin()
        self._counts[name] = self._counts.get(name, 0) + int(n)

    def mean(self, name: str, value: float, weight: float = 1) -> None:
        """Add `value` to a weighted mean."""
        weight = float(weight)
        cell = self._means.get(name)
        if cell is None:
            self._means[name] = [float(value) * weight, weight]
        else:
            cell[0] += float(value) * weight
            cell[1] += weight

    def maximum(self, name: str, value: float) -> None:
        """Keep the largest value until the next report."""
        value = float(value)
        self._maxima[name] = max(value, self._maxima.get(name, value))

    def gauge(self, name: str, value: float) -> None:
        self._gauges[name] = float(value)

    def lag(self, versions: float) -> None:
        """An update was made from steps of a policy that was so many versions behind, on average."""
        self.mean("learner/policy_lag", versions)
        bucket = lag_bucket(versions)
        self._lags[bucket] = self._lags.get(bucket, 0) + 1

    def watch(self, name: str, meter: Meter) -> None:
        """Report what a meter counts from now on; meters of the same name add up."""
        self._meters.append((name, meter))

    def measure(self, take: Measure) -> None:
        """Report what envs measure as means under `env/`, from now on."""
        self._measures.append(take)

    def time(self, timer: EnvTimer) -> EnvTimer:
        """Report what a timer times, from now on."""
        self._timers.append(timer)
        return timer

    def measures_of(self, other: Metrics) -> None:
        """Report what another role would, that gives its metrics up for these."""
        self._measures += other._measures
        self._timers += other._timers

    def episodes(self, returns: Iterable[float], lengths: Iterable[float]) -> None:
        """Add finished episodes. They are only stored here and summed later: actors call this often."""
        self._unfolded.append((returns, lengths))
        if len(self._unfolded) >= MAX_EPISODES:
            self._fold()

    def _fold(self) -> None:
        for returns, lengths in self._unfolded:
            finished = [[float(total), float(length)] for total, length in zip(returns, lengths, strict=True)]
            for total, length in finished:
                self.count("episodes")
                self.mean("episodes/return", total)
                self.mean("episodes/length", length)
            self._episodes.extend(finished)
        self._unfolded.clear()

    def event(self, text: str) -> None:
        if len(self._events) < MAX_EVENTS:
            self._events.append(text)
        else:
            self._more_events += 1

    @property
    def starts(self) -> bool:
        """Whether the start is over, and no report has said so yet."""
        return self._start is not None

    @property
    def has_news(self) -> bool:
        """Whether there is anything for a brief report."""
        return bool(self._counts or self._gauges or self._unfolded or self._events)

    def drain_news(self) -> Report:
        """A brief report."""
        self._fold()
        self._read_meters()
        report = self._report(brief=True)
        self._forget_news()
        return report

    def drain(self) -> Report:
        """A whole report."""
        self._fold()
        for take in self._measures:
            for name, (total, count) in take().items():
                self.mean(f"env/{name}", total / count, count)
        self._read_meters()
        report = self._report()
        report["busy"], report["waiting"] = self.clock.drain()
        report["usage"], report["durations"] = self._used()
        report |= {"means": self._means, "maxima": self._maxima, "lags": self._lags, "start": self._start}
        self._start = None
        self._reset()
        return report

    def _report(self, brief: bool = False) -> Report:
        more = [f"{self._more_events} more events"] if self._more_events else []
        return Report(
            role=self.role, time=self._wall_time(), counts=self._counts, means={}, maxima={}, gauges=self._gauges,
            episodes=list(self._episodes), busy=0.0, waiting={}, start=None, usage={}, durations={}, lags={},
            events=self._events + more, brief=brief,
        )

    def _used(self) -> tuple[Usage, dict[str, float]]:
        usage: Usage = {} if self.usage is None else self.usage.take()
        durations: dict[str, float] = {}
        for timer in self._timers:
            for sums, new in zip((usage, durations), timer.take(), strict=True):
                for name, value in new.items():
                    sums[name] = sums.get(name, 0.0) + value
        return usage, durations

    def _read_meters(self) -> None:
        if not self._counts:  # traffic alone is no progress
            return
        for name, meter in self._meters:
            if new := meter.total - self._told.get(meter, 0):
                self.count(name, new)
                self._told[meter] = meter.total

    def _reset(self) -> None:
        self._forget_news()
        self._means: dict[str, list[float]] = {}
        self._maxima: dict[str, float] = {}
        self._lags: dict[str, float] = {}

    def _forget_news(self) -> None:
        self._counts: dict[str, float] = {}
        self._gauges: dict[str, float] = {}
        self._episodes: deque[list[float]] = deque(maxlen=MAX_EPISODES)
        self._unfolded: list[tuple[Iterable[float], Iterable[float]]] = []
        self._events: list[str] = []
        self._more_events = 0
