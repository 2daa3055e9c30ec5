"""The last few seconds of a role's reports in a bounded number of buckets, and the scalars that curves show of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pappus.telemetry.metrics import Report
from pappus.telemetry.usage import Usage

BUCKETS = 10
ENV = "env/"
"""What envs measure, whoever reports it."""
ELSEWHERE = ("episodes/", ENV)
"""Means that are not of a kind: charts/episodic_* show the last 100 episodes."""


@dataclass
class Totals:
    """Sums over a period of a role's time."""

    counts: dict[str, float] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)
    busy: float = 0.0
    waiting: dict[str, float] = field(default_factory=dict)
    usage: Usage = field(default_factory=dict)
    durations: dict[str, float] = field(default_factory=dict)
    lags: dict[str, float] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Time covered, by the role's own clock; rates do not depend on when a report was sent."""
        return self.busy + sum(self.waiting.values())

    def usage_share(self, *names: str) -> float | None:
        """Share of the time that went into these kinds of usage together; None where nothing is known of the first."""
        if not self.seconds or names[0] not in self.usage:
            return None
        return sum(self.usage.get(name, 0.0) for name in names) / self.seconds

    @property
    def asleep(self) -> float | None:
        """Seconds that the role was busy, but neither computed nor waited for a core: it slept, or waited for something
        outside. None where the kernel does not say, or where others computed for it meanwhile."""
        return self._left_of(self.busy, "computing", "queued")

    @property
    def env_asleep(self) -> float | None:
        """The same, within steps of envs."""
        return self._left_of(self.usage.get("env", 0.0), "env_computing", "env_queued")

    @property
    def waiting_for_others(self) -> dict[str, float]:
        """`waiting` less what the thread waited for a core meanwhile: who was woken waits for nobody else any more. The
        kernel counts that for busy and other time together; what cannot be of busy time is taken from all waits."""
        beyond = self.usage.get("computing", 0.0) + self.usage.get("queued", 0.0) - self.busy
        if beyond <= 0:
            return self.waiting
        idle = sum(self.waiting.values())
        return {what: spent * max(0.0, 1 - beyond / idle) for what, spent in self.waiting.items() if spent}

    def _left_of(self, seconds: float, computing: str, queued: str) -> float | None:
        usage = self.usage
        if "queued" not in usage or computing not in usage:
            return None
        left = seconds - usage[computing] - usage.get(queued, 0.0)
        return max(0.0, left - usage.get("helpers", 0.0))

    def rate(self, name: str) -> float:
        return self.counts.get(name, 0.0) / self.seconds if self.seconds else 0.0

    def add(self, other: Totals) -> None:
        add_to(self.counts, other.counts)
        add_to(self.sums, other.sums)
        add_to(self.weights, other.weights)
        add_to(self.waiting, other.waiting)
        add_to(self.usage, other.usage)
        add_to(self.durations, other.durations)
        add_to(self.lags, other.lags)
        self.busy += other.busy
        for name, value in other.maxima.items():
            self.maxima[name] = max(value, self.maxima.get(name, value))


class Window:
    """Totals of the reports of the last `seconds`, to a tenth of it."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds, self._clock = seconds, clock
        self._buckets: deque[tuple[float, Totals]] = deque()

    def add(self, latest: Totals) -> None:
        now = self._clock()
        if not self._buckets or now - self._buckets[-1][0] >= self._seconds / BUCKETS:
            self._buckets.append((now, Totals()))
        self._buckets[-1][1].add(latest)
        self._forget(now)

    def clear(self) -> None:
        self._buckets.clear()

    def totals(self) -> Totals:
        self._forget(self._clock())
        result = Totals()
        for _, bucket in self._buckets:
            result.add(bucket)
        return result

    def _forget(self, now: float) -> None:
        while self._buckets and now - self._buckets[0][0] > self._seconds:
            self._buckets.popleft()


def totals_of(report: Report) -> Totals:
    means = report["means"].items()
    return Totals(
        dict(report["counts"]), {name: cell[0] for name, cell in means}, {name: cell[1] for name, cell in means},
        report["maxima"], report["busy"], report["waiting"], report["usage"], report["durations"],
        report["lags"],
    )


def add_to(into: dict[str, float], other: Mapping[str, float]) -> None:
    """Add by name."""
    for name, value in other.items():
        into[name] = into.get(name, 0.0) + value


def window_scalars(windows: Mapping[str, list[Totals]]) -> dict[str, float]:
    """Rates, means, maxima and time shares of the windows of each kind of role, by full name."""
    scalars = _env_means([totals for roles in windows.values() for totals in roles])
    for kind, roles in windows.items():
        members = [totals for totals in roles if totals.seconds > 0]
        if members:
            scalars |= _rates(kind, members) | _means(kind, members) | _shares(kind, members)
    return scalars


def full_name(kind: str, name: str) -> str:
    """Names with a slash are full names already."""
    return name if "/" in name else f"{kind}/{name}"


def _rates(kind: str, members: list[Totals]) -> dict[str, float]:
    names = dict.fromkeys(name for totals in members for name in totals.counts)
    return {f"{full_name(kind, name)}_per_second": sum(totals.rate(name) for totals in members) for name in names}


def _means(kind: str, members: list[Totals]) -> dict[str, float]:
    together = Totals()
    for totals in members:
        together.add(totals)
    scalars = {
        full_name(kind, name): together.sums[name] / weight
        for name, weight in together.weights.items()
        if weight and not name.startswith(ELSEWHERE)
    }
    for name, value in together.maxima.items():
        scalars[f"{full_name(kind, name).removesuffix('_max')}_max"] = value
    return scalars


def _env_means(members: list[Totals]) -> dict[str, float]:
    """Over all roles together: some envs are stepped by actors, others elsewhere."""
    together = Totals()
    for totals in members:
        together.add(totals)
    means = together.weights.items()
    return {name: together.sums[name] / weight for name, weight in means if weight and name.startswith(ENV)}


def _usage_shares(members: list[Totals]) -> dict[str, float]:
    """What the kernel says of their threads; absent where it says nothing."""
    asked = {
        "computing": [totals.usage_share("computing") for totals in members],
        "waiting_for_a_core": [totals.usage_share("queued") for totals in members],
        "in_envs": [totals.usage_share("env") for totals in members],
        "asleep": [None if (spent := totals.asleep) is None else spent / totals.seconds for totals in members],
    }
    found = {name: [share for share in shares if share is not None] for name, shares in asked.items()}
    return {name: sum(shares) / len(shares) for name, shares in found.items() if shares}


def _shares(kind: str, members: list[Totals]) -> dict[str, float]:
    """Shares of time, averaged over roles, independent of how often each reports."""
    reasons = dict.fromkeys(what for totals in members for what in totals.waiting)
    shares = {"busy": sum(totals.busy / totals.seconds for totals in members) / len(members)}
    shares["waiting"] = 1.0 - shares["busy"]
    for what in reasons:
        share = sum(totals.waiting_for_others.get(what, 0.0) / totals.seconds for totals in members) / len(members)
        shares[f"waiting_for_{what.replace(' ', '_')}"] = share
    shares |= _usage_shares(members)
    return {f"{kind}/{name}": share for name, share in shares.items()}
