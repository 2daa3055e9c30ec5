"""Runs that learn from data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pappus
from pappus.telemetry.checkpoint import CheckpointStore
from tests.data_tools import record

SMALL: dict[str, Any] = {
    "batch_size": 16, "network.hidden_sizes": (8,), "evaluation.episodes": 1, "evaluation.at_steps": (30,),
    "runtime": "inline",
}
PRIORITIZED = {"topology.replay.sampler": "prioritized"}
SHORT = {"algorithm.burn_in": 2, "algorithm.length": 6, "algorithm.period": 3, "network.core_size": 8}


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sets")
    return {
        env: record(folder / env, env, steps, num_envs=4)
        for env, steps in (("CartPole-v1", 300), ("Pendulum-v1", 1))
    }


def weights_of(run: Path) -> bytes:
    checkpoint = CheckpointStore(run / "checkpoints").latest()
    assert checkpoint is not None
    return (checkpoint / "learner.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("system", "env", "settings"),
    [
        ("dqn@offline", "CartPole-v1", PRIORITIZED), ("td3@offline", "Pendulum-v1", {}),
        ("r2d2@offline", "CartPole-v1", {**SHORT, **PRIORITIZED}),
        ("dqn@offline", "CartPole-v1", {"topology.readers": 3, "topology.best": 0.5}),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(
    sets: dict[str, Path], tmp_path: Path, system: str, env: str, settings: dict[str, Any]
) -> None:
    given = {**SMALL, **settings, "data": sets[env], "optimizer.anneal": False}
    pappus.train(system, steps=60, run_dir=tmp_path / "whole", **given)
    pappus.train(system, steps=25, run_dir=tmp_path / "parts", **given)
    result = pappus.resume(tmp_path / "parts", steps=60)
    assert (result.summary.steps, result.summary.updates) == (60, 60)
    assert weights_of(tmp_path / "parts") == weights_of(tmp_path / "whole")
    assert "read again" not in (tmp_path / "parts" / "log.txt").read_text()
