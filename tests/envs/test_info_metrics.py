"""What envs measure besides: which values of an info count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pappus.envs.info_metrics import InfoMetrics
from pappus.telemetry.metrics import MAX_NAMES, Sums

THREE = np.array([1.0, 2.0, 4.0])


@pytest.mark.parametrize(("info", "expected"), [
    ({"metrics": {"a": THREE}}, {"a": (7.0, 3)}),
    ({"metrics": {"a": THREE, "_a": np.array([True, False, True])}, "_metrics": THREE > 0}, {"a": (5.0, 2)}),
    ({"metrics": {"a": np.array([1.0, np.nan, np.inf])}}, {"a": (1.0, 1)}),
    ({"metrics": {"a": np.array([1, None, True], object)}}, {"a": (2.0, 2)}),
    ({"metrics": {"a": 3}}, {"a": (3.0, 1)}),
    ({"metrics": {"a": np.array(["x", "y"]), "b": np.zeros((3, 2))}}, {}),
    ({"metrics": 3.0, "other": THREE}, {}),
    ({"flag": np.array([True, False, True]), "_flag": np.ones(3, bool)}, {"flag": (2.0, 3)}),
    ({"final_info": {"metrics": {"a": THREE}, "flag": THREE}}, {"a": (7.0, 3), "flag": (7.0, 3)}),
])
def test_values_count_once_where_an_env_gives_them(info: dict[str, Any], expected: dict[str, Any]) -> None:
    metrics = InfoMetrics(["flag"])
    metrics.read(info)
    assert metrics.take() == expected and metrics.take() == {}


def test_an_env_that_makes_up_names_does_not_fill_the_memory() -> None:
    sums = Sums()
    for i in range(2 * MAX_NAMES):
        sums.add(f"name {i}", 1.0, 1)
    sums.add("a\x1b[2J", 1.0, 1)
    sums.add("name 0", 2.0, 1)
    taken = sums.take()
    assert len(taken) == MAX_NAMES and taken["name 0"] == (3.0, 2)
