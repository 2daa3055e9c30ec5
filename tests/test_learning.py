"""Learning is the proof: the known score, in real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

import pappus


@pytest.mark.parametrize(("core", "seed"), [("none", 1), ("none", 2), ("lstm", 3)])
def test_impala_solves_cartpole(core: str, seed: int, tmp_path: Path) -> None:
    result = pappus.train(
        "impala", "CartPole-v1", core=core, seed=seed, steps=3_000_000, target_return=475.0, run_dir=tmp_path / "run"
    )
    assert result.summary.exit_reason == "target reached" and result.summary.solved_at_step is not None
    assert result.summary.eval_return is not None and result.summary.eval_return >= 475


def test_a_gaussian_policy_learns_pendulum(tmp_path: Path) -> None:
    result = pappus.train(
        "impala", "Pendulum-v1", seed=1, steps=2_000_000, target_return=-600.0, run_dir=tmp_path / "run"
    )
    assert result.summary.exit_reason == "target reached", "a random policy scores about -1200"
