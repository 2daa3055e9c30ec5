"""A run that time ends is as whole as one that has all its steps, whoever makes the updates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import pappus
from pappus.cli import main

SMALL = {
    "runtime": "inline", "envs_per_actor": 2, "network.hidden_sizes": [8], "evaluation.episodes": 1, "seconds": 0.3,
    "steps": 100_000_000,
}
REPLAY = {"batch_size": 8, "topology.replay.warm_up": 5}


@pytest.mark.parametrize(
    ("system", "settings"),
    [
        ("impala", {"learners": 2}), ("seed-vtrace", {"batch_size": 2}), ("ppo", {"unroll_length": 8}), ("a3c", {}),
        ("a3c", {"topology.updates": "serialised", "topology.shards": 2}), ("apex-dqn", REPLAY),
        ("seed-r2d2", REPLAY), ("gorila-dqn", {**REPLAY, "topology.shards": 2}),
    ],
)
def test_time_ends_a_run_of_every_topology(system: str, settings: dict[str, Any], tmp_path: Path) -> None:
    result = pappus.train(system, "CartPole-v1", run_dir=tmp_path / "run", **SMALL, **settings)
    summary = result.summary
    assert summary.exit_reason == "time is up" and summary.updates > 0 and summary.eval_return is not None
    assert any((tmp_path / "run" / "checkpoints").iterdir())
    assert sum(summary.extras["bytes_moved"].values()) > 0


def test_a_run_that_time_ended_goes_on_when_it_is_given_more(tmp_path: Path) -> None:
    first = pappus.train("ppo", "CartPole-v1", run_dir=tmp_path / "run", **SMALL, unroll_length=8).summary
    more = str(first.train_seconds + 0.6)
    assert main(["train", "--resume", str(tmp_path / "run"), "--seconds", more]) == 0
    second = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert second["exit_reason"] == "time is up" and second["steps"] > first.steps
