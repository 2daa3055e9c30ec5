"""What the benchmark of learning on with an env counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pappus
from benchmarks.offline_to_online import longest_dip, scores


def line(step: int, **evaluation: float) -> dict[str, Any]:
    names = {"at": "eval/step", "seconds": "eval/seconds", "score": "eval/episodic_return"}
    return {"step": step, **{names[name]: value for name, value in evaluation.items()}}


def test_evaluations_of_equal_score_are_several_and_repeated_lines_are_one(tmp_path: Path) -> None:
    lines = [
        line(5), line(12, at=10, seconds=1.0, score=9.0), line(15, at=10, seconds=1.0, score=9.0),
        line(22, at=20, seconds=2.0, score=9.0), line(33, at=30, seconds=3.0, score=9.0),
        line(33, at=30, seconds=3.5, score=50.0),
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    assert scores(tmp_path) == [(10, 9.0), (20, 9.0), (30, 9.0), (30, 50.0)]
    assert longest_dip(scores(tmp_path), 20.0) == 3


def test_every_evaluation_of_a_run_is_found(tmp_path: Path) -> None:
    """Whatever a policy does in this env, it earns the same."""
    pappus.train(
        "a2c", "tests.envs.toy_envs:Counter", steps=400, run_dir=tmp_path, runtime="inline", actors=1,
        envs_per_actor=2, unroll_length=4, evaluation={"every_steps": 100, "episodes": 1},
    )
    told = (tmp_path / "log.txt").read_text().count("greedy evaluation over")
    assert len(scores(tmp_path)) == told > 1
