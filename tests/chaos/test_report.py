"""The report: what was survived, in figures, and every reason for which the exit code is 1."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pappus.chaos.faults import Outcome
from pappus.chaos.plan import Planned
from pappus.chaos.report import Report

GOOD = {"received": 10, "trained": 7, "stored": 0, "dropped": 2, "lost": 1, "in_flight": 0, "balanced": True}


def report(*outcomes: Outcome, target: float | None = None, **changes: Any) -> Report:
    made = Report("impala", "CartPole-v1", 1, 10.0, target, {"flood": "nobody can join"}, planned=len(outcomes))
    made.faults = [(Planned(1.0 + i, "kill", 0.5), 1.5 + i, outcome) for i, outcome in enumerate(outcomes)]
    made.parts = [{"accounts": dict(GOOD), "restarts": {"actor": 2}}, {"accounts": dict(GOOD), "restarts": {}}]
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def test_a_run_that_survived_everything_has_no_failures() -> None:
    good = report(Outcome("actor-0", 1.0), Outcome("actor-1", 3.0, 40), target=475.0, best_return=480.0)
    assert good.failures() == []
    content = json.loads(json.dumps(good.to_dict()))
    row = {"faults": 2, "survived": 2, "seconds_mean": 2.0, "seconds_max": 3.0, "steps_undone": 40}
    assert content["kinds"] == {"kill": row}
    assert content["accounts"]["received"] == 20 and content["accounts"]["exact"] and content["restarts"] == 2
    text = "\n".join(good.lines())
    assert "2 of 2 faults survived" in text and "received 20 = trained 14 + dropped 4 + lost 2" in text
    assert "flood      does not apply: nobody can join" in text and "left       nothing" in text


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (report(Outcome("actor-0", problem="the run ended")), "kill of actor-0 at 2 s: the run ended"),
        (report(parts=[{"accounts": {**GOOD, "lost": 0}}]), "accounts do not match"),
        (report(parts=[{"accounts": {**GOOD, "balanced": False}}]), "accounts do not match"),
        (report(left_behind=["process 7 (pappus actor-0)"]), "left behind: process 7"),
        (report(target=475.0, best_return=474.0), "target return of 475 was not reached"),
        (report(target=475.0), "target return of 475 was not reached"),
        (report(problems=["the training ended by itself"]), "ended by itself"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_whatever_went_wrong_is_a_failure(bad: Report, why: str) -> None:
    assert len(bad.failures()) == 1 and why in bad.failures()[0]
    assert any(line.startswith("  FAILED") for line in bad.lines())
