from __future__ import annotations

from pappus.roles.role import Role
from pappus.runtimes.turn_reports import WHOLE_SECONDS, TurnReports
from pappus.telemetry.metrics import Meter, Metrics, Report, RoleClock


class Time:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Subject:
    """Two roles of which the learner has begun."""

    def __init__(self) -> None:
        self.time, self.received = Time(), list[Report]()
        self.roles = {name: Role(name) for name in ("actor-0", "learner")}
        for name, role in self.roles.items():
            role.metrics = Metrics(name, RoleClock(self.time))
        self.metrics = self.roles["learner"].metrics
        self.metrics.begin()
        self.reports = TurnReports(self.received.append, self.time)

    def send(self, seconds: float = 0.0, whole: bool = False) -> list[Report]:
        self.time.now += seconds
        self.received.clear()
        self.reports.send(self.roles, whole)
        return list(self.received)


def test_the_first_report_of_a_role_that_has_started_is_whole() -> None:
    subject = Subject()
    reports = subject.send()
    assert [report["role"] for report in reports] == ["actor-0", "learner"]
    assert not any(report["brief"] for report in reports) and reports[1]["start"] is not None


def test_what_decisions_rest_on_comes_at_once_and_all_else_with_the_next_whole_report() -> None:
    subject = Subject()
    subject.send()
    subject.metrics.count("updates")
    subject.metrics.mean("losses/value", 2.0)
    subject.metrics.gauge("queue/depth", 3.0)
    subject.metrics.episodes([7.0], [9.0])
    (brief,) = subject.send(WHOLE_SECONDS / 2)
    assert brief["brief"] and brief["counts"] == {"updates": 1, "episodes": 1}
    assert (brief["gauges"], brief["episodes"]) == ({"queue/depth": 3.0}, [[7.0, 9.0]])
    assert (brief["busy"], brief["means"], brief["usage"]) == (0.0, {}, {})
    assert subject.send() == [], "nobody has anything new to say"
    _, whole = subject.send(WHOLE_SECONDS / 2)
    assert whole["counts"] == {} and whole["busy"] == WHOLE_SECONDS
    assert whole["means"]["losses/value"] == [2.0, 1.0]
    assert "computing" in whole["usage"]


def test_nothing_is_left_for_later_when_the_run_asks_for_everything() -> None:
    subject = Subject()
    subject.send()
    _, whole = subject.send(0.01, whole=True)
    assert whole["busy"] == 0.01


def test_traffic_is_in_the_report_that_counts_progress() -> None:
    subject, meter = Subject(), Meter()
    subject.metrics.watch("unrolls_bytes", meter)
    subject.send()
    meter.total = 100
    assert subject.send() == [], "traffic alone is no progress"
    subject.metrics.count("updates")
    (brief,) = subject.send()
    assert brief["counts"] == {"updates": 1, "unrolls_bytes": 100}
