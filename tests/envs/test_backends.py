"""Backends are found by name, by entry point and by `module:name`; one of ones own trains like the built-in ones."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import pappus
import pappus.envs.vector
from examples.own_backend import LineEnvs
from pappus.config import EnvOptions
from pappus.envs import VectorEnv, make_env
from pappus.envs.check import check_env
from pappus.envs.gym_backend import make_gym
from pappus.envs.vector import find_backend
from pappus.errors import UserError
from pappus.telemetry.checkpoint import CheckpointStore
from tests.contracts.env_contract import EnvContract

OWN = "examples.own_backend:LineEnvs"


class TestOwnBackend(EnvContract):
    def make(self, num_envs: int, seed: int) -> VectorEnv:
        return make_env("line", num_envs, seed, EnvOptions(backend=OWN))


def test_a_run_trains_with_a_backend_of_its_own_and_resumes_to_the_bit(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "runtime": "inline", "envs_per_actor": 4, "unroll_length": 8, "evaluation.episodes": 2,
        "optimizer.anneal": False, "batch_size": 4, "env_options.backend": OWN,
    }
    pappus.train("impala", "line", steps=800, run_dir=tmp_path / "whole", **settings)
    pappus.train("impala", "line", steps=300, run_dir=tmp_path / "parts", **settings)
    result = pappus.resume(tmp_path / "parts", steps=800)
    assert result.summary.steps >= 800
    whole, parts = (CheckpointStore(tmp_path / name / "checkpoints").latest() for name in ("whole", "parts"))
    assert whole is not None and parts is not None
    assert (whole / "learner.safetensors").read_bytes() == (parts / "learner.safetensors").read_bytes()


def test_check_env_tells_of_a_backend_that_is_not_gymnasiums() -> None:
    report = check_env("line", EnvOptions(backend=OWN), seconds=0.2)
    assert not report.problems and ("vectorised", "natively, by LineEnvs") in report.facts
    assert ("snapshots", "yes") in report.facts


def test_defaults_of_a_vector_env_are_those_of_an_env_that_needs_no_conversion() -> None:
    class Bare(VectorEnv):
        pass

    env = Bare()  # type: ignore[abstract]
    assert env.snapshot() is None and env.render() is None and env.to_nest("as is") == "as is" and env.close() is None
    with pytest.raises(UserError, match="Bare has no snapshots, so there is none to restore"):
        env.restore({})


def test_built_in_and_own_backends_are_found() -> None:
    assert find_backend("gymnasium") is make_gym and find_backend(OWN) is LineEnvs


def test_an_installed_backend_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = EntryPoint("line", OWN, "pappus.env_backends")
    monkeypatch.setattr(pappus.envs.vector, "entry_points", lambda group: [mine] if group == mine.group else [])
    assert find_backend("line") is LineEnvs
    with pytest.raises(UserError, match=r"backend='lime' is not installed; did you mean 'line'\?"):
        find_backend("lime")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gymnasum", "env_options.backend='gymnasum' is not installed; did you mean 'gymnasium'?"),
        ("xyz", "env_options.backend='xyz' is not installed; use auto, gymnasium, ale, envpool or module:name"),
        ("nowhere:make", "there is no module 'nowhere' here; .* add that folder to PYTHONPATH"),
        ("examples.own_backend:Nothing", "own_backend.py\\) has no 'Nothing'"),
        ("examples.own_backend:LIMIT", "is .*; name a function or a class"),
    ],
)
def test_what_is_no_backend_is_refused_in_one_sentence(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_env("CartPole-v1", 1, 0, EnvOptions(backend=name))
