from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pappus.roles.batching import Batching


def calls(*widths: int) -> list[Any]:
    return [SimpleNamespace(request=SimpleNamespace(first=range(width))) for width in widths]


def measured(fixed: float, per_env: float, gap: float) -> Batching:
    """Batches of two sizes took fixed + per_env·n seconds, env groups arrived every `gap` seconds."""
    batching = Batching(0, None)
    now = 100.0
    for i in range(500):
        envs = 16 if i % 2 else 64
        batching.arrived(1, now)
        batching.answered(envs, fixed + per_env * envs)
        now += gap
    return batching


def test_a_fixed_width_and_deadline_are_kept() -> None:
    batching = Batching(32, 0.5)
    batching.arrived(1, 10.0)
    assert batching.max_envs(1000) == 32 and batching.deadline == 0.5
    assert batching.wait_until(due=8, connected=100, env_groups_out=1) == 10.5
    assert batching.wait_until(due=32, connected=100, env_groups_out=1) is None, "wide enough"
    assert batching.wait_until(due=8, connected=8, env_groups_out=0) is None, "nobody else can come"


def test_a_batch_that_spends_nine_tenths_on_envs_is_wide_enough() -> None:
    assert measured(fixed=1e-3, per_env=1e-4, gap=1.0).max_envs(10_000) == pytest.approx(90, rel=0.02)


def test_half_of_all_envs_is_always_wide_enough() -> None:
    assert measured(fixed=1e-3, per_env=1e-6, gap=1.0).max_envs(128) == 64
    assert Batching(0, None).max_envs(5) == 3, "before anything is measured, too"


def test_it_waits_for_at_most_the_fixed_cost_and_only_if_somebody_is_expected_by_then() -> None:
    busy, quiet = measured(1e-3, 1e-5, gap=1e-4), measured(1e-3, 1e-5, gap=1e-2)
    assert busy.deadline == pytest.approx(1e-3, rel=0.05) and quiet.deadline == 0.0
    busy.arrived(1, 200.0)
    assert busy.wait_until(due=1, connected=1000, env_groups_out=3) == pytest.approx(200.001, abs=1e-4)


def test_the_oldest_requests_that_fit_make_a_batch_and_one_always_does() -> None:
    batching = Batching(10, 0.0)
    due = calls(4, 4, 4)
    assert list(batching.select(due, 100)) == due[:2]
    wide = calls(50, 4)
    assert list(batching.select(wide, 100)) == wide[:1]
