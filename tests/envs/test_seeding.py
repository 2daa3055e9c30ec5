"""Seeds of spaces, which envs may draw from."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

from pappus.envs.gym_vector import seed_spaces


class Simulator(gym.Env[Any, Any]):
    """An env with attributes of its own that are called as wrappers call theirs."""

    def __init__(self, env: Any, envs: Any) -> None:
        self.env, self.envs = env, envs
        self.observation_space = self.action_space = gym.spaces.Discrete(1000)


@pytest.mark.parametrize(("env", "envs"), [("Hopper", 4), ({"a": 1}, None), (object(), ["x"])])
def test_what_an_env_calls_env_or_envs_need_not_be_one(env: Any, envs: Any) -> None:
    draws = []
    for _ in range(2):
        subject = Simulator(env, envs)
        seed_spaces(subject, 3)
        draws.append([subject.observation_space.sample() for _ in range(5)])
    assert draws[0] == draws[1]
