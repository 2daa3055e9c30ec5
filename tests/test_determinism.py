"""The inline runtime is exact: same seed, same bytes; resumed equals uninterrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pappus
from pappus.errors import UserError
from pappus.telemetry.checkpoint import CheckpointStore

SMALL: dict[str, Any] = {
    "runtime": "inline", "envs_per_actor": 4, "unroll_length": 8, "actors": 2, "batch_size": 8,
    "optimizer.anneal": False, "evaluation.episodes": 2,
}


def weights_of(run: Path) -> bytes:
    checkpoint = CheckpointStore(run / "checkpoints").latest()
    assert checkpoint is not None
    return (checkpoint / "learner.safetensors").read_bytes()


SYSTEMS = ("impala", "seed-vtrace")


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize(("env", "core"), [("CartPole-v1", "none"), ("CartPole-v1", "lstm"), ("Pendulum-v1", "gru")])
def test_two_runs_with_one_seed_give_identical_bytes(tmp_path: Path, system: str, env: str, core: str) -> None:
    for name in ("one", "two"):
        pappus.train(system, env, steps=2000, core=core, run_dir=tmp_path / name, **SMALL)
    assert weights_of(tmp_path / "one") == weights_of(tmp_path / "two")


@pytest.mark.parametrize(
    ("env", "core", "placement"),
    [  # a small network without memory draws in NumPy, but beside the learner, which may be on a device, in torch
        ("CartPole-v1", "none", "process"),
        *(("CartPole-v1", "lstm", placement) for placement in ("process", "learner")),
        *(("Pendulum-v1", "gru", placement) for placement in ("process", "learner")),
    ],
)
def test_central_inference_changes_where_and_not_what(tmp_path: Path, env: str, core: str, placement: str) -> None:
    one_actor = {**SMALL, "actors": 1, "batch_size": 4, "steps": 2000, "core": core}
    pappus.train("impala", env, run_dir=tmp_path / "impala", **one_actor)
    topology = {"env_groups": 1, "inference_in": placement}
    pappus.train("seed-vtrace", env, run_dir=tmp_path / "seed", topology=topology, **one_actor)
    assert weights_of(tmp_path / "impala") == weights_of(tmp_path / "seed")


@pytest.mark.parametrize("system", SYSTEMS)
def test_many_learners_repeat_and_resume_to_the_bit(tmp_path: Path, system: str) -> None:
    settings = {**SMALL, "learners": 2, "batch_size": 4, "core": "lstm"}
    for name in ("one", "two"):
        pappus.train(system, "CartPole-v1", steps=4000, run_dir=tmp_path / name, **settings)
    pappus.train(system, "CartPole-v1", steps=1700, run_dir=tmp_path / "parts", **settings)
    pappus.resume(tmp_path / "parts", steps=4000)
    assert weights_of(tmp_path / "one") == weights_of(tmp_path / "two") == weights_of(tmp_path / "parts")


@pytest.mark.parametrize("system", ["a2c", "ppo"])
def test_many_learners_behind_a_barrier_repeat_and_resume_to_the_bit(tmp_path: Path, system: str) -> None:
    settings = {**SMALL, "learners": 2, "batch_size": 0, "network.normalize": True}
    for name in ("one", "two"):
        pappus.train(system, "CartPole-v1", steps=4000, run_dir=tmp_path / name, **settings)
    pappus.train(system, "CartPole-v1", steps=1700, run_dir=tmp_path / "parts", **settings)
    pappus.resume(tmp_path / "parts", steps=4000)
    assert weights_of(tmp_path / "one") == weights_of(tmp_path / "two") == weights_of(tmp_path / "parts")


@pytest.mark.parametrize("system", [*SYSTEMS, "a2c", "ppo"])
def test_a_run_is_resumed_with_another_number_of_learners(tmp_path: Path, system: str) -> None:
    pappus.train(system, "CartPole-v1", steps=500, run_dir=tmp_path / "run", **SMALL)
    for learners, steps in ((2, 1000), (1, 1500)):
        result = pappus.resume(tmp_path / "run", steps=steps, learners=learners, batch_size=8 // learners)
        assert result.summary.steps >= steps
    assert "envs start new episodes" in (tmp_path / "run" / "log.txt").read_text()


def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    for seed in (1, 2):
        pappus.train("impala", "CartPole-v1", steps=500, seed=seed, run_dir=tmp_path / str(seed), **SMALL)
    assert weights_of(tmp_path / "1") != weights_of(tmp_path / "2")


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("env", ["CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0"])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, system: str, env: str) -> None:
    pappus.train(system, env, steps=4000, core="lstm", run_dir=tmp_path / "whole", **SMALL)
    pappus.train(system, env, steps=1700, core="lstm", run_dir=tmp_path / "parts", **SMALL)
    result = pappus.resume(tmp_path / "parts", steps=4000)
    assert result.summary.steps >= 4000
    assert weights_of(tmp_path / "parts") == weights_of(tmp_path / "whole")


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "tests.envs.toy_envs:Masked"])
@pytest.mark.parametrize("system", ["impala", "a2c", "ppo"])
def test_a_small_network_without_memory_goes_on_to_the_bit(tmp_path: Path, system: str, env: str) -> None:
    """It acts in NumPy, from random numbers that were drawn ahead; but where envs give masks, in torch."""
    settings = SMALL if system == "impala" else {**SMALL, "batch_size": 0}
    pappus.train(system, env, steps=4000, run_dir=tmp_path / "whole", **settings)
    pappus.train(system, env, steps=1700, run_dir=tmp_path / "parts", **settings)
    pappus.resume(tmp_path / "parts", steps=4000)
    assert weights_of(tmp_path / "parts") == weights_of(tmp_path / "whole")


def test_resuming_with_other_sizes_starts_envs_afresh_and_goes_on(tmp_path: Path) -> None:
    pappus.train("impala", "CartPole-v1", steps=1000, run_dir=tmp_path / "run", **SMALL)
    result = pappus.resume(tmp_path / "run", steps=2000, envs_per_actor=2, batch_size=4)
    assert result.summary.steps >= 2000
    assert "envs start new episodes" in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.parametrize("settings", [{"core": "lstm"}, {"env": "Acrobot-v1"}])
def test_a_refused_resume_leaves_the_run_as_it_was(tmp_path: Path, settings: dict[str, Any]) -> None:
    pappus.train("impala", "CartPole-v1", steps=300, run_dir=tmp_path / "run", **SMALL)
    before = (tmp_path / "run" / "config.yaml").read_text()
    with pytest.raises(UserError):
        pappus.resume(tmp_path / "run", **{"env": None, "steps": 600} | settings)
    assert (tmp_path / "run" / "config.yaml").read_text() == before
