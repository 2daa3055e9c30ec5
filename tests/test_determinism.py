"""The inline runtime is exact: same seed, same bytes; resumed equals uninterrupted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pappus
from pappus.errors import UserError
from pappus.telemetry.checkpoint import CheckpointStore

Settings = dict[str, Any]
SMALL: Settings = {
    "runtime": "inline", "envs_per_actor": 4, "unroll_length": 8, "actors": 2, "batch_size": 8,
    "optimizer.anneal": False, "evaluation.episodes": 1,
}
STEPS, PART = 2000, 900
"""250 steps per env, resumed after 112: episodes of 200 steps (Pendulum, MountainCar) are resumed halfway and end."""
SYSTEMS = ("impala", "seed-vtrace")
BARRIER: dict[str, Settings] = {
    "a2c": {"batch_size": 0}, "ppo": {"batch_size": 0, "algorithm.epochs": 2, "algorithm.minibatches": 2},
}
"""Systems whose learner waits for all actors."""


def weights_of(run: Path) -> bytes:
    checkpoint = CheckpointStore(run / "checkpoints").latest()
    assert checkpoint is not None
    return (checkpoint / "learner.safetensors").read_bytes()


Whole = Callable[..., bytes]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """The weights after `STEPS` in one go. Tests that need the same run share it."""
    made: dict[str, bytes] = {}

    def weights(system: str, env: str, settings: Settings) -> bytes:
        key = repr((system, env, sorted(settings.items())))
        if key not in made:
            run = tmp_path_factory.mktemp("whole") / "run"
            pappus.train(system, env, steps=STEPS, run_dir=run, **settings)
            made[key] = weights_of(run)
        return made[key]

    return weights


def again(system: str, env: str, settings: Settings, run: Path) -> bytes:
    """The weights of a second run."""
    pappus.train(system, env, steps=STEPS, run_dir=run, **settings)
    return weights_of(run)


def in_parts(system: str, env: str, settings: Settings, run: Path) -> bytes:
    """The weights of a run that was stopped after `PART` steps and resumed."""
    pappus.train(system, env, steps=PART, run_dir=run, **settings)
    assert pappus.resume(run, steps=STEPS).summary.steps >= STEPS
    return weights_of(run)


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize(("env", "core"), [("CartPole-v1", "none"), ("CartPole-v1", "lstm"), ("Pendulum-v1", "gru")])
def test_two_runs_with_one_seed_give_identical_bytes(
    tmp_path: Path, whole: Whole, system: str, env: str, core: str
) -> None:
    settings = {**SMALL, "core": core}
    assert again(system, env, settings, tmp_path / "two") == whole(system, env, settings)


@pytest.mark.parametrize(
    ("env", "core", "placement"),
    [  # a small network without memory draws in NumPy, but beside the learner, which may be on a device, in torch
        ("CartPole-v1", "none", "process"),
        *(("CartPole-v1", "lstm", placement) for placement in ("process", "learner")),
        *(("Pendulum-v1", "gru", placement) for placement in ("process", "learner")),
    ],
)
def test_central_inference_changes_where_and_not_what(
    tmp_path: Path, whole: Whole, env: str, core: str, placement: str
) -> None:
    one_actor = {**SMALL, "actors": 1, "batch_size": 4, "core": core}
    central = {**one_actor, "topology.env_groups": 1, "topology.inference_in": placement}
    assert again("seed-vtrace", env, central, tmp_path / "seed") == whole("impala", env, one_actor)


@pytest.mark.parametrize("system", SYSTEMS)
def test_many_learners_repeat_and_resume_to_the_bit(tmp_path: Path, whole: Whole, system: str) -> None:
    settings = {**SMALL, "learners": 2, "batch_size": 4, "core": "lstm"}
    one = whole(system, "CartPole-v1", settings)
    assert again(system, "CartPole-v1", settings, tmp_path / "two") == one
    assert in_parts(system, "CartPole-v1", settings, tmp_path / "parts") == one


@pytest.mark.parametrize("system", BARRIER)
def test_many_learners_behind_a_barrier_repeat_and_resume_to_the_bit(
    tmp_path: Path, whole: Whole, system: str
) -> None:
    settings = {**SMALL, **BARRIER[system], "learners": 2, "network.normalize": True}
    one = whole(system, "CartPole-v1", settings)
    assert again(system, "CartPole-v1", settings, tmp_path / "two") == one
    assert in_parts(system, "CartPole-v1", settings, tmp_path / "parts") == one


@pytest.mark.parametrize("system", [*SYSTEMS, *BARRIER])
def test_a_run_is_resumed_with_another_number_of_learners(tmp_path: Path, system: str) -> None:
    pappus.train(system, "CartPole-v1", steps=300, run_dir=tmp_path / "run", **SMALL)
    for learners, steps in ((2, 600), (1, 900)):
        result = pappus.resume(tmp_path / "run", steps=steps, learners=learners, batch_size=8 // learners)
        assert result.summary.steps >= steps
    assert "envs start new episodes" in (tmp_path / "run" / "log.txt").read_text()


def test_another_seed_gives_other_weights(tmp_path: Path) -> None:
    for seed in (1, 2):
        pappus.train("impala", "CartPole-v1", steps=500, seed=seed, run_dir=tmp_path / str(seed), **SMALL)
    assert weights_of(tmp_path / "1") != weights_of(tmp_path / "2")


@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("env", ["CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCar-v0"])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, whole: Whole, system: str, env: str) -> None:
    settings = {**SMALL, "core": "lstm"}
    assert in_parts(system, env, settings, tmp_path / "parts") == whole(system, env, settings)


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "tests.envs.toy_envs:Masked"])
@pytest.mark.parametrize("system", ["impala", *BARRIER])
def test_a_small_network_without_memory_goes_on_to_the_bit(
    tmp_path: Path, whole: Whole, system: str, env: str
) -> None:
    """It acts in NumPy, from random numbers that were drawn ahead; but where envs give masks, in torch."""
    settings = {**SMALL, **BARRIER.get(system, {}), "core": "none"}
    assert in_parts(system, env, settings, tmp_path / "parts") == whole(system, env, settings)


def test_resuming_with_other_sizes_starts_envs_afresh_and_goes_on(tmp_path: Path) -> None:
    pappus.train("impala", "CartPole-v1", steps=300, run_dir=tmp_path / "run", **SMALL)
    result = pappus.resume(tmp_path / "run", steps=600, envs_per_actor=2, batch_size=4)
    assert result.summary.steps >= 600
    assert "envs start new episodes" in (tmp_path / "run" / "log.txt").read_text()


@pytest.mark.parametrize("settings", [{"core": "lstm"}, {"env": "Acrobot-v1"}])
def test_a_refused_resume_leaves_the_run_as_it_was(tmp_path: Path, settings: Settings) -> None:
    pappus.train("impala", "CartPole-v1", steps=300, run_dir=tmp_path / "run", **SMALL)
    before = (tmp_path / "run" / "config.yaml").read_text()
    with pytest.raises(UserError):
        pappus.resume(tmp_path / "run", **{"env": None, "steps": 600} | settings)
    assert (tmp_path / "run" / "config.yaml").read_text() == before


@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
@pytest.mark.parametrize("core", ["none", "lstm"])
def test_synchronous_central_inference_is_the_same_as_inference_in_the_actor(
    tmp_path: Path, whole: Whole, algorithm: str, core: str
) -> None:
    settings = {**SMALL, **BARRIER[algorithm], "core": core, "actors": 1}
    central = again(f"{algorithm}@seed", "CartPole-v1", {**settings, "topology.env_groups": 1}, tmp_path / "central")
    assert central == whole(algorithm, "CartPole-v1", settings)
