"""MuJoCo's envs by Gymnasium and by EnvPool: the same shapes, bounds, time limits and ends."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

from pappus.config import EnvOptions
from pappus.envs import env_spec, make_env
from pappus.types import Array, ContinuousAction, Timestep, leaves_of

BACKENDS = ("gymnasium", "envpool")
SIZES = {"HalfCheetah": (17, 6), "Hopper": (11, 3), "Walker2d": (17, 6), "Ant": (105, 8), "Humanoid": (348, 17)}
"""Numbers of an observation and of an action."""


def played(env: str, backend: str, steps: int, action: float = 0.0) -> tuple[list[Timestep], Array]:
    """What two envs show, and the strongest action that they took for one of this size."""
    made = make_env(env, 2, 1, EnvOptions(backend=backend, threads=1))
    made.reset()
    wanted = np.full((2, *made.spec.action.array.shape), action, np.float32)
    seen = [made.step(wanted) for _ in range(steps)]
    taken = made.to_action(wanted)
    made.close()
    return seen, taken


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SIZES)
def test_shapes_are_those_of_version_5(name: str, backend: str) -> None:
    observation, action = SIZES[name]
    spec = env_spec(f"{name}-v5", EnvOptions(backend=backend))
    assert spec.observation.shape == (observation,) and spec.observation.bounds is None
    assert spec.action == ContinuousAction((action,))


@pytest.mark.parametrize("backend", BACKENDS)
def test_actions_have_the_range_of_the_env(backend: str) -> None:
    for name, bound in (("HalfCheetah-v5", 1.0), ("Humanoid-v5", 0.4)):
        for action in (-1.0, 0.5, 3.0):
            _, taken = played(name, backend, 1, action)
            np.testing.assert_allclose(taken, np.clip(action, -1, 1) * bound, rtol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_time_limit_is_no_end_and_its_last_observation_is_shown(backend: str) -> None:
    seen, _ = played("HalfCheetah-v5", backend, 1001)
    before, last, reset = seen[-3:]
    assert last.episodes is not None and last.episodes.lengths.tolist() == [1000, 1000]
    assert last.discount.tolist() == [1, 1] and last.valid.all() and not last.first.any()
    assert reset.first.all() and not reset.valid.any() and reset.discount.tolist() == [0, 0]
    apart = [np.abs(one.observation - last.observation).max() for one in (before, reset)]
    assert apart[0] < 1e-3 < apart[1], "it lies still, and then elsewhere"


@pytest.mark.parametrize("backend", BACKENDS)
def test_whoever_falls_has_ended(backend: str) -> None:
    seen, _ = played("Hopper-v5", backend, 150, 1.0)
    ended = next(one for one in seen if one.episodes is not None)
    env = ended.episodes.envs[0] if ended.episodes is not None else -1
    assert ended.discount[env] == 0 and ended.valid[env]


def test_tasks_of_dm_control_have_no_bounds_and_limits_that_are_no_ends() -> None:
    spec = env_spec("CheetahRun-v1", EnvOptions(backend="envpool"))
    assert set(spec.observation) == {"position", "velocity"} and spec.action == ContinuousAction((6,))
    assert all(leaf.bounds is None for leaf in leaves_of(spec.observation))
    seen, _ = played("CheetahRun-v1", "envpool", 1000)
    assert seen[-1].episodes is not None and seen[-1].discount.tolist() == [1, 1]


def test_old_models_are_no_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    mujoco = importlib.import_module("mujoco")
    before = mujoco.get_mju_user_warning()
    played("HalfCheetah-v5", "gymnasium", 1)
    assert not list(tmp_path.iterdir()) and not capfd.readouterr().err
    assert mujoco.get_mju_user_warning() is before
