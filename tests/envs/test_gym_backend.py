"""Ids, modules and functions become vector envs, or are refused in one sentence."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import ClipReward

from pappus.config import EnvOptions
from pappus.envs import env_spec, make_env
from pappus.envs.gym_backend import make_gym_vector
from pappus.envs.vector import first_env_seed
from pappus.errors import UserError
from pappus.types import ArraySpec, DiscreteAction, EnvSpec
from tests.envs import toy_envs


def test_a_registered_native_vector_env_is_used() -> None:
    assert isinstance(make_gym_vector("CartPole-v1", 2, {}), CartPoleVectorEnv)


def test_an_argument_that_the_native_vector_env_lacks_falls_back_to_one_by_one() -> None:
    assert isinstance(make_gym_vector("CartPole-v1", 2, {"disable_env_checker": "true"}), SyncVectorEnv)


def test_registered_wrappers_are_not_lost_to_the_native_vector_env() -> None:
    wrapped = ClipReward(gym.make("CartPole-v1"), 0, 0.5).spec
    assert wrapped is not None and wrapped.vector_entry_point is not None
    gym.registry["ClippedCartPole-v1"] = dataclasses.replace(wrapped, id="ClippedCartPole-v1")
    try:
        env = make_env("ClippedCartPole-v1", 2, 0, EnvOptions())
        env.reset()
        assert env.step(np.zeros(2, np.int64)).reward.tolist() == [0.5, 0.5]
    finally:
        del gym.registry["ClippedCartPole-v1"]


def test_env_spec_tells_what_one_env_shows_and_accepts() -> None:
    assert env_spec("CartPole-v1", EnvOptions()) == EnvSpec(ArraySpec((4,), "float32"), DiscreteAction(2))


def test_kwargs_reach_the_env_as_they_are() -> None:
    env = make_gym_vector("CartPole-v1", 1, {"sutton_barto_reward": True, "max_episode_steps": 7})
    assert env.unwrapped._sutton_barto_reward is True and env.unwrapped.max_episode_steps == 7


@pytest.mark.parametrize("name", ["Counter", "same_step"])
def test_a_module_and_a_function_name_an_env(name: str) -> None:
    assert make_env(f"tests.envs.toy_envs:{name}", 3, 0, EnvOptions()).num_envs == 3


def test_a_module_and_an_id_name_an_env() -> None:
    assert make_env("gymnasium:MountainCar-v0", 1, 0, EnvOptions()).num_envs == 1


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("CartPol-v1", "did you mean 'CartPole-v1'"),
        ("no_such_module:make", "there is no module 'no_such_module' here"),
        ("tests.envs.toy_envs:Countr", "no Gymnasium id and no function of a module; did you mean 'Counter'"),
    ],
)
def test_an_unknown_name_is_refused(name: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        make_env(name, 1, 0, EnvOptions())


def test_an_env_whose_package_is_missing_is_refused_with_what_to_install() -> None:
    def lander() -> Any:
        raise gym.error.DependencyNotInstalled("Box2D is not installed, run `pip install …`")

    with pytest.raises(UserError, match="needs a package that is missing: Box2D is not installed, run `pip install"):
        make_env(lander, 2, 1, EnvOptions())


def test_native_vector_envs_look_at_the_shape_of_actions_only() -> None:
    env = make_env("CartPole-v1", 3, 1, EnvOptions())
    env.reset()
    with pytest.raises(AssertionError, match="invalid"):
        env.step(np.zeros(2, np.int64))
    assert env.step(np.ones(3, np.int64)).valid.all()


def test_a_function_that_makes_no_env_is_refused() -> None:
    with pytest.raises(UserError, match=r"returned a dict; return a gymnasium\.Env"):
        make_env(dict, 1, 0, EnvOptions())


def test_a_vector_function_that_makes_another_number_is_refused() -> None:
    def wrong(num_envs: int) -> Any:
        return toy_envs.same_step(num_envs + 1)

    with pytest.raises(UserError, match="made 3 envs for num_envs=2"):
        make_env(wrong, 2, 0, EnvOptions())


def test_no_envs_are_refused() -> None:
    with pytest.raises(UserError, match="num_envs=0"):
        make_env("CartPole-v1", 0, 0, EnvOptions())


def test_an_error_in_the_env_is_raised_as_it_is() -> None:
    env = make_env(toy_envs.Crashing, 2, 0, EnvOptions())
    env.reset()
    with pytest.raises(ZeroDivisionError, match="through the floor") as caught:
        for _ in range(3):
            env.step(np.zeros(2, np.int64))
    assert caught.traceback[-1].name == "step" and "toy_envs" in str(caught.traceback[-1].path)


def test_seeds_of_different_actors_do_not_overlap() -> None:
    starts = sorted(first_env_seed(actor, 64) for actor in range(100))
    assert all(later - earlier >= 64 for earlier, later in itertools.pairwise(starts))
    assert all(0 <= start < 2**31 - 64 for start in starts)


def test_the_first_reset_gives_the_seeded_start_and_the_next_a_new_one() -> None:
    first, second = (make_env(toy_envs.Counter, 2, 5, EnvOptions()) for _ in range(2))
    start = first.reset().observation.copy()
    assert (second.reset().observation == start).all()
    again = first.reset().observation.copy()
    assert (again != start).any() and (second.reset().observation == again).all()
