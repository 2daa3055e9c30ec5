from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from pappus.config import EnvOptions
from pappus.envs import VectorEnv, make_env
from pappus.errors import UserError
from pappus.types import ArraySpec
from tests.contracts.env_contract import EnvContract
from tests.envs import toy_envs

OPTIONS = EnvOptions(last_inputs=True)


class TestWithNextStepAutoreset(EnvContract):
    def make(self, num_envs: int, seed: int) -> VectorEnv:
        return make_env(toy_envs.Counter, num_envs, seed, OPTIONS)


class TestWithSameStepAutoreset(EnvContract):
    next_step, raw_rewards = False, False

    def make(self, num_envs: int, seed: int) -> VectorEnv:
        return make_env(toy_envs.same_step, num_envs, seed, OPTIONS)


class TestWithNestedObservations(EnvContract):
    def make(self, num_envs: int, seed: int) -> VectorEnv:
        return make_env(toy_envs.Nested, num_envs, seed, OPTIONS)


class TestWithContinuousActions(EnvContract):
    ends = False

    def make(self, num_envs: int, seed: int) -> VectorEnv:
        return make_env("Pendulum-v1", num_envs, seed, OPTIONS)


@pytest.mark.parametrize("env", [toy_envs.Counter, toy_envs.same_step, "Pendulum-v1"])
def test_observations_show_the_last_action_and_its_reward_within_an_episode(env: Any) -> None:
    made, rng = make_env(env, 3, 0, OPTIONS), np.random.default_rng(0)
    timestep, firsts = made.reset(), 0
    for _ in range(30):
        spec = made.spec.action.array
        action = (rng.uniform(-1, 1, (3, *spec.shape)) if spec.dtype == "float32" else rng.integers(0, 2, 3)).astype(
            spec.dtype
        )
        timestep = made.step(action)
        seen = timestep.observation
        for i in range(3):
            firsts += int(timestep.first[i])
            expected = np.zeros_like(action[i]) if timestep.first[i] else action[i]
            assert np.array_equal(seen["last_action"][i], expected)
            assert seen["last_reward"][i] == (0 if timestep.first[i] else timestep.reward[i])
    assert firsts or env == "Pendulum-v1"


def test_a_final_observation_shows_what_led_to_it() -> None:
    made = make_env(toy_envs.Counter, 1, 0, OPTIONS)
    made.reset()
    final = [made.step(np.array([1])) for _ in range(toy_envs.LENGTH)][-1]
    assert final.episodes is not None
    assert final.observation["last_action"] == 1 and final.observation["last_reward"] == toy_envs.LENGTH


def test_a_reset_forgets_what_was_done() -> None:
    made = make_env(toy_envs.Counter, 2, 0, OPTIONS)
    assert not made.reset().observation["last_action"].any()
    made.step(np.array([1, 1]))
    seen = made.reset().observation
    assert not seen["last_action"].any() and not seen["last_reward"].any()


def test_what_was_shown_once_does_not_change() -> None:
    made = make_env(toy_envs.Counter, 2, 0, OPTIONS)
    made.reset()
    action = np.array([1, 0])
    seen = made.step(action).observation
    action[:] = 0
    made.step(np.array([0, 1]))
    assert seen["last_action"].tolist() == [1, 0] and seen["last_reward"].tolist() == [1, 1]


def test_a_restored_env_knows_what_was_done_last() -> None:
    made, fresh = (make_env(toy_envs.Counter, 2, 0, OPTIONS) for _ in range(2))
    made.reset()
    seen = made.step(np.array([1, 0])).observation
    fresh.reset()
    fresh.restore(made.snapshot())
    shown = fresh.to_nest(np.zeros((2, 2)))
    assert shown["last_action"].tolist() == [1, 0] and np.array_equal(shown["last_reward"], seen["last_reward"])


def test_a_dict_keeps_its_keys_and_an_action_is_a_category() -> None:
    plain, nested = make_env(toy_envs.Counter, 1, 0, OPTIONS).spec, make_env(toy_envs.Nested, 1, 0, OPTIONS).spec
    assert set(plain.observation) == {"observation", "last_action", "last_reward"}
    assert set(nested.observation) == {*toy_envs.Nested.observation_space, "last_action", "last_reward"}
    assert plain.observation["last_action"] == ArraySpec((), "int64", (2,))
    assert nested.observation["last_action"] == ArraySpec((), "int64", (3,))
    assert make_env("Pendulum-v1", 1, 0, OPTIONS).spec.observation["last_action"] == ArraySpec((1,), "float32")


class Boastful(toy_envs.Counter):
    """Shows a key that is taken."""

    observation_space: gym.Space[Any] = spaces.Dict({"last_reward": toy_envs.Counter.observation_space})

    def _shown(self) -> Any:
        return {"last_reward": super()._shown()}


def test_an_env_with_such_a_key_of_its_own_is_refused() -> None:
    with pytest.raises(UserError, match=r"already has a key 'last_reward'; turn env_options.last_inputs off"):
        make_env(Boastful, 1, 0, OPTIONS)
