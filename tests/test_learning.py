"""Learning is the proof: the known score, in real processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pappus

BALANCES = 195.0
"""A return of CartPole that only a policy reaches that has learnt; a random one gets about 22. It is enough where
another test shows the same algorithm solving it."""


@pytest.mark.parametrize("seed", [1, 2])
def test_impala_solves_cartpole(seed: int, tmp_path: Path) -> None:
    result = pappus.train(
        "impala", "CartPole-v1", seed=seed, steps=3_000_000, target_return=475.0, run_dir=tmp_path / "run"
    )
    assert result.summary.exit_reason == "target reached" and result.summary.solved_at_step is not None
    assert result.summary.eval_return is not None and result.summary.eval_return >= 475


@pytest.mark.parametrize(("system", "settings"), [
    ("impala", {"core": "lstm"}), ("impala", {"learners": 2, "all_reduce": "memory"}),
    ("impala", {"learners": 2, "all_reduce": "gloo"}), ("seed-vtrace", {"learners": 2}), ("pqn@seed", {}),
    ("a3c", {"topology.updates": "serialised"}),
])  # fmt: skip
def test_other_ways_to_the_same_updates_balance_a_pole(system: str, settings: dict[str, Any], tmp_path: Path) -> None:
    settings = {"seed": 1, "steps": 3_000_000, "target_return": BALANCES, **settings}
    result = pappus.train(system, "CartPole-v1", run_dir=tmp_path / "run", **settings)
    assert result.summary.exit_reason == "target reached"


def test_a3c_solves_cartpole(tmp_path: Path) -> None:
    result = pappus.train("a3c", "CartPole-v1", seed=1, target_return=475.0, run_dir=tmp_path / "run")
    assert result.summary.exit_reason == "target reached"
    assert result.summary.eval_return is not None and result.summary.eval_return >= 475


def test_a_gaussian_policy_learns_pendulum(tmp_path: Path) -> None:
    result = pappus.train(
        "impala", "Pendulum-v1", seed=1, steps=2_000_000, target_return=-600.0, run_dir=tmp_path / "run"
    )
    assert result.summary.exit_reason == "target reached", "a random policy scores about -1200"


SHORT = {
    "algorithm.burn_in": 0, "algorithm.length": 22, "algorithm.period": 20, "algorithm.n_step": 21,
    "algorithm.target_every": 100, "batch_size": 32, "topology.replay.samples_per_insert": 8.0,
    "evaluation.every_steps": 5_000, "steps": 200_000,
}
"""Sequences that hold a whole episode of delayed recall."""


@pytest.mark.parametrize("system", ["r2d2", "seed-r2d2"])
def test_a_recurrent_network_remembers_a_cue_for_twenty_steps(system: str, tmp_path: Path) -> None:
    result = pappus.train(
        system, "tests.envs.memory_envs:delayed_recall", seed=1, target_return=0.95, run_dir=tmp_path / "run", **SHORT
    )
    assert result.summary.exit_reason == "target reached", "guessing scores 0.5"


@pytest.mark.parametrize("system", ["td3", "apex-ddpg", "sac"])
def test_policies_of_continuous_actions_swing_a_pendulum_up(system: str, tmp_path: Path) -> None:
    settings = {"seed": 1, "steps": 40_000, "target_return": -250.0, "evaluation.every_steps": 1_000}
    result = pappus.train(system, "Pendulum-v1", run_dir=tmp_path / "run", **settings)
    assert result.summary.exit_reason == "target reached", "a random policy scores about -1200"


@pytest.mark.parametrize("system", ["dqn", "apex-dqn", "gorila-dqn"])
def test_action_values_balance_a_pole(system: str, tmp_path: Path) -> None:
    settings = {"seed": 1, "steps": 150_000, "target_return": BALANCES}
    result = pappus.train(system, "CartPole-v1", run_dir=tmp_path / "run", **settings)
    assert result.summary.exit_reason == "target reached"


@pytest.mark.parametrize(("system", "settings"), [
    ("ppo", {}), ("ppo", {"actors": 2, "envs_per_actor": 8}), ("ppo", {"learners": 2, "envs_per_actor": 8}),
    ("appo", {}), ("seed-appo", {}), ("pqn", {}),
])  # fmt: skip
def test_fresh_batches_solve_cartpole(system: str, settings: dict[str, Any], tmp_path: Path) -> None:
    result = pappus.train(system, "CartPole-v1", seed=1, target_return=475.0, run_dir=tmp_path / "run", **settings)
    assert result.summary.exit_reason == "target reached"


def test_a_recurrent_policy_balances_a_pole_without_seeing_speeds(tmp_path: Path) -> None:
    result = pappus.train(
        "ppo", "tests.envs.memory_envs:masked_cartpole", seed=1, core="lstm", steps=600_000, target_return=BALANCES,
        run_dir=tmp_path / "run", **{"optimizer.learning_rate": 1e-3},
    )
    assert result.summary.exit_reason == "target reached", "without memory it stays below 50"
