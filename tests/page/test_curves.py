"""Curves that stay short, whatever the run."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from pappus.page.curves import MOST_NAMES, MOST_VALUES, ThinnedCurves
from pappus.page.events import MOST_EVENTS, EventLog


def line(step: int, **metrics: Any) -> bytes:
    return json.dumps({"step": step, "time": 1e9 + step, **metrics}).encode()


def test_a_long_run_is_thinned_evenly_and_keeps_its_newest_line() -> None:
    curves = ThinnedCurves(most_points=200)
    for step in range(10_001):
        curves.add(line(step, loss=step / 7))
    columns = curves.document()["columns"]
    steps = [int(step or 0) for step in columns["step"]]
    assert 100 <= len(steps) <= 201 and steps[0] == 0 and steps[-1] == 10_000
    gaps = {second - first for first, second in pairwise(steps[:-1])}
    assert len(gaps) == 1, "between them lies the same"
    assert columns["loss"][-1] == float(f"{10_000 / 7:.6g}")


def test_metrics_that_begin_late_are_unknown_before() -> None:
    curves = ThinnedCurves()
    for step in range(3):
        curves.add(line(step, **({"late": 1.0} if step == 2 else {"nan": float("nan")})))
    assert curves.document()["columns"] == {
        "step": [0, 1, 2], "time": [1e9, 1e9 + 1, 1e9 + 2], "late": [None, None, 1.0],
    }


def test_names_and_values_have_a_limit() -> None:
    curves = ThinnedCurves()
    for step in range(1000):
        curves.add(line(step, **{f"name {step} {i}": 1.0 for i in range(20)}))
    columns = curves.document()["columns"]
    assert len(columns) == MOST_NAMES
    assert sum(map(len, columns.values())) <= MOST_VALUES + MOST_NAMES


def test_lines_behind_which_a_resumed_run_went_back_are_taken_out() -> None:
    curves = ThinnedCurves()
    for step in (1, 2, 3, 4, 2, 3):
        curves.add(line(step, **{"eval/step": step, "eval/episodic_return": 5.0}))
    assert curves.back == 1 and curves.document()["columns"]["step"] == [1, 2, 2, 3]
    assert [one["step"] for one in curves.evaluations] == [1, 2, 3]


def test_lines_that_are_none_are_left_out() -> None:
    curves = ThinnedCurves()
    for odd in (b"", b"{", b"[]", b"null", b'{"step": 1}', b'{"step": "x", "time": 1}', b"[" * 10_000, b"\xff"):
        assert curves.add(odd) is None
    assert curves.document()["columns"] == {"step": [], "time": []}


def test_every_evaluation_is_told_once() -> None:
    curves = ThinnedCurves()
    for step in range(10):
        curves.add(line(step, **{"eval/step": step // 5, "eval/episodic_return": 1.0 + step // 5, "eval/seconds": 2.0}))
    assert [(one["step"], one["mean"], one["seconds"]) for one in curves.evaluations] == [(0, 1.0, 2.0), (1, 2.0, 2.0)]


def test_lines_of_a_log_are_events_of_roles() -> None:
    log = EventLog({"actor-1"})
    died, error = b"2026-11-19 03:00:00 actor-1: died", b"2026-11-19 03:00:01 Error: no role"
    new = log.add([died, b"    why", error, b"nonsense"])
    assert [(one["role"], one["text"]) for one in new] == [("actor-1", "died\nwhy"), ("", "Error: no role")]
    assert log.add([b"    more"]) == [] and log.events[-1]["text"] == "Error: no role\nmore"
    log.add([b"2026-11-19 03:00:00 again"] * 1000 + [b"2026-99-99 99:99:99 odd", b"\xff\xff"])
    assert len(log.events) == MOST_EVENTS
