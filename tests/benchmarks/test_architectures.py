"""What the comparison of architectures derives from its runs, and that it survives those that fail."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import architectures
from benchmarks.architecture_report import SECONDS, STEPS, Result, mean_return, on_grid, return_at, table
from benchmarks.architecture_runs import curve, policy_lag, trained

CURVE = [(0, 0.0, 10.0), (1_000, 1.0, 20.0), (3_000, 2.0, 40.0)]


def result(seed: int, last: float, **changes: Any) -> Result:
    measured = {
        "steps": 3_000, "steps_per_second": 1_000.0 * seed, "bytes_per_step": {"unrolls": 40.0, "weights": 2.0},
        "curve": [*CURVE[:2], (3_000, 2.0, last)],
    }
    return Result("cartpole", "a2c", seed, 2.0, **{**measured, **changes})


def test_the_return_at_a_budget_lies_between_the_evaluations_around_it():
    assert return_at(CURVE, 2_000, STEPS) == 30.0 and return_at(CURVE, 0.5, SECONDS) == 15.0


def test_a_budget_that_was_not_reached_has_no_return():
    assert return_at(CURVE, 3_001, STEPS) is None and return_at([], 1, STEPS) is None


def test_the_mean_return_weighs_by_time():
    assert mean_return([(0, 0.0, 0.0), (10, 1.0, 0.0), (20, 3.0, 6.0)]) == pytest.approx(2.0)


def test_the_table_has_mean_and_interval_of_the_seeds():
    line = table([result(1, 40.0), result(2, 60.0)], 2.0, 2_000).splitlines()[-1]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:2] == ["`a2c`", "50.0 ± 127.1"]  # 12.71 · √200 / √2
    assert cells[3:5] == ["35.0 ± 63.5", "1,500 ± 6,355"]
    assert cells[8:10] == ["42.0 ± 0.0", "unrolls 40, weights 2"]


def test_the_table_says_what_failed_and_what_was_not_reached():
    failed = Result("cartpole", "ppo", 1, 2.0, failed="exit code 1")
    text = table([result(1, 40.0), result(2, 40.0, failed="exit code 1"), failed], 2.0, 9_000)
    assert "`a2c` (1 of 2 failed)" in text and "not reached, 3,000 steps" in text
    assert "| `ppo` (1 of 1 failed) | failed | –" in text


def test_curves_of_several_seeds_are_drawn_as_far_as_all_of_them_reach():
    grid, returns = on_grid([CURVE, CURVE[:2]], STEPS)
    assert grid[-1] == pytest.approx(1_000) and returns.shape == (2, 200)
    assert returns[:, -1] == pytest.approx([20.0, 20.0])


def test_only_what_went_on_before_the_end_is_measured():
    rows = [{"step": step, "charts/updates": step, "time": float(i)} for i, step in enumerate((0, 10, 20, 30, 35, 35))]
    lines = trained(rows)
    assert (lines[0]["step"], lines[-1]["step"]) == (10, 30), "what is saved and evaluated at the end takes time, too"
    with pytest.raises(ValueError, match="too few"):
        trained(rows[:3])


def test_an_evaluation_that_is_told_again_is_one_point():
    told = {"eval/step": 5, "eval/seconds": 1.0, "eval/episodic_return": 7.0}
    assert curve([{"step": 1}, told, told, {**told, "eval/seconds": 2.0}]) == [(5, 1.0, 7.0), (5, 2.0, 7.0)]


def test_the_lag_of_what_comes_out_of_replay_is_its_age_in_updates():
    assert policy_lag([{"learner/policy_lag": 2.0, "replay/age": 9.0}]) == 2.0
    assert policy_lag([{"replay/age": 100.0, "replay/inserts": 1_000.0, "charts/updates": 50.0}]) == 5.0


def test_two_systems_run_and_a_failure_neither_ends_the_rest_nor_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    plots = tmp_path / "new" / "folder"
    words = [
        "--out", str(tmp_path), "--plots", str(plots), "--envs", "cartpole", "--systems", "a2c", "a3c",
        "--seeds", "1", "--seconds", "3", "--steps", "1000",
    ]
    sound = architectures.command

    def broken(task: Any, system: str, *rest: Any) -> list[str]:
        return [sys.executable, "-c", "exit('no luck')"] if system == "a3c" else sound(task, system, *rest)

    monkeypatch.setattr(architectures, "command", broken)
    assert architectures.main(words) == 1
    shown = capsys.readouterr().out
    assert "`a3c` (1 of 1 failed)" in shown and "no luck" in shown
    monkeypatch.setattr(architectures, "command", sound)
    assert architectures.main(words) == 0
    assert "1/1 cartpole a3c seed 1" in capsys.readouterr().out, "only what failed is run again"
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [line["system"] for line in lines] == ["a2c", "a3c", "a3c"]
    assert lines[2]["updates_per_second"] > 0 and lines[2]["bytes_per_step"]["shared parameters"] > 0
    assert {path.name for path in plots.glob("*.png")} == {
        "architectures-cartpole-return.png", "architectures-cartpole-cost.png"
    }
