"""Amounts, prices and budgets: arithmetic, and what is refused."""

import dataclasses
import math

import pytest

from pappus.config import CostConfig
from pappus.errors import UserError
from pappus.telemetry.cost import Cost, check_cost, money, shown, spent

HOUR = Cost(
    wall_seconds=3600.0, cpu_seconds=7200.0, gpu_seconds=900.0, gpu_held_seconds=1800.0, joules=7.2e6,
    bytes_moved=3 * 10**9, peak_memory_bytes=10**9,
)


def test_parts_of_a_run_add_up_and_the_peak_is_that_of_the_greater():
    later = dataclasses.replace(HOUR, gpu_seconds=None, joules=None, peak_memory_bytes=5)
    both = HOUR + later
    assert (both.wall_seconds, both.core_hours, both.bytes_moved) == (7200.0, 4.0, 6 * 10**9)
    assert (both.gpu_seconds, both.joules, both.peak_memory_bytes) == (900.0, 7.2e6, 10**9), "a part that was not read"
    assert both - HOUR == dataclasses.replace(later, gpu_seconds=0.0, joules=0.0, peak_memory_bytes=10**9)


def test_what_nothing_can_read_is_none_and_not_zero():
    assert (Cost(cpu_seconds=1.0) + Cost(cpu_seconds=2.0)).joules is None
    assert "energy" not in shown(Cost(cpu_seconds=1.0).to_dict())


def test_a_cost_comes_back_from_what_was_written_and_nonsense_is_nothing():
    assert Cost.of(HOUR.to_dict()) == HOUR
    assert Cost.of({"cpu_seconds": 10**400, "joules": 1.5}) == Cost(joules=1.5)
    assert Cost.of({"cpu_seconds": "much", "joules": math.nan, "bytes_moved": -1, "wall_seconds": True}) == Cost()


@pytest.mark.parametrize(("price", "paid"), [
    ({"hour": 2.0}, 2.0), ({"core-hour": 0.5}, 1.0), ({"core_hour": 0.5, "gpu-hour": 3.0}, 2.5), ({"gb": 0.1}, 0.3),
    ({"kwh": 0.25}, 0.5), ({}, None),
])
def test_money_is_the_sum_of_amounts_times_prices(price: dict[str, float], paid: float | None):
    assert money(HOUR, price) == (None if paid is None else pytest.approx(paid))


def test_money_counts_gpus_for_as_long_as_they_are_held():
    assert spent(HOUR, {"gpu-hour": 1.0})["money"] == spent(HOUR, {})["gpu-hours"] == 0.5


@pytest.mark.parametrize(("config", "sentence"), [
    (CostConfig(price={"core-huor": 1.0}), "did you mean 'core-hour'"),
    (CostConfig(price={"gb": -1.0}), "--price gb=-1 must be at least 0 and finite"),
    (CostConfig(budget={"joules": 0.0}), "--budget joules=0 must be positive and finite"),
    (CostConfig(budget={"joules": math.inf}), "finite"),
    (CostConfig(price={"core-hour": 1.0, "core_hour": 1.0}), "--price names core-hour twice, also as core_hour"),
    (CostConfig(budget={"money": 2.0}), "--budget money needs prices"),
    (CostConfig(price={"gb": 0.0}, budget={"money": 2.0}), "--budget money needs prices"),
])
def test_prices_and_budgets_that_mean_nothing_are_refused(config: CostConfig, sentence: str):
    with pytest.raises(UserError, match=sentence):
        check_cost(config)


def test_metrics_and_summaries_are_shown_alike():
    block = HOUR.to_dict() | {
        "money": 1.5, "per_million_steps": {"money": 3.0}, "to_target": {"money": 1.25},
        "budget": {"money": {"limit": 2.0, "spent": 1.5}},
    }
    assert shown(block) == {
        "computing": "7,200 CPU seconds (2 core hours)", "GPU": "900 s of 1,800 s held",
        "energy": "7,200,000 J (2 kWh)", "moved": "3 GB", "peak memory": "954 MiB",
        "money": "1.5 (3 per million steps)", "money to the target": "1.25", "budget of money": "1.5 of 2",
    }
    assert shown({"cost/cpu_seconds": 3.0, "cost/core_hours": 3 / 3600})["computing"].startswith("3 CPU seconds")
