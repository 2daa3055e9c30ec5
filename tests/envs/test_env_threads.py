"""Envs that are stepped one by one, in threads."""

import subprocess
import sys
import threading
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from pappus.config import EnvOptions
from pappus.envs import VectorEnv
from pappus.envs.check import random_action
from pappus.envs.vector import make_env
from tests.contracts.env_contract import EnvContract

ENVS = 4
MOUNTAIN = "MountainCar-v0"
"""It has no vector of its own: Gymnasium makes one by one."""


SHORT = {"max_episode_steps": 20}


def made(env: Any, threads: int) -> VectorEnv:
    return make_env(env, ENVS, 7, EnvOptions(threads=threads, kwargs=SHORT if env == MOUNTAIN else {}))


class TestThreads(EnvContract):
    def make(self, num_envs: int, seed: int) -> VectorEnv:
        return make_env(MOUNTAIN, num_envs, seed, EnvOptions(threads=num_envs, kwargs=SHORT))


def test_threads_change_nothing_that_envs_show() -> None:
    one, several = made(MOUNTAIN, 0), made(MOUNTAIN, ENVS)
    shown = [env.reset() for env in (one, several)]
    random = np.random.default_rng(0)
    for _ in range(50):  # two episodes and more
        np.testing.assert_array_equal(*(timestep.observation for timestep in shown))
        np.testing.assert_array_equal(*(timestep.first for timestep in shown))
        np.testing.assert_array_equal(*(timestep.reward for timestep in shown))
        action = random_action(one.spec, shown[0].observation, ENVS, random)
        shown = [env.step(action) for env in (one, several)]
    one.close()
    several.close()


class Meeting(gym.Env[Any, Any]):
    """A step ends when all envs are in one."""

    observation_space, action_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32), gym.spaces.Discrete(2)

    def __init__(self, barrier: threading.Barrier) -> None:
        self._barrier = barrier

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._barrier.wait(30)
        return np.ones(1, np.float32), 1.0, False, False, {}


def test_all_envs_are_in_a_step_at_the_same_time() -> None:
    barrier = threading.Barrier(ENVS)
    env = made(lambda: Meeting(barrier), ENVS)
    env.reset()
    assert env.step(np.zeros(ENVS, np.int64)).reward.tolist() == [1.0] * ENVS
    env.close()


def test_what_an_env_raises_in_a_thread_reaches_the_actor() -> None:
    barrier = threading.Barrier(ENVS)
    barrier.abort()
    env = made(lambda: Meeting(barrier), ENVS)
    env.reset()
    with pytest.raises(threading.BrokenBarrierError):
        env.step(np.zeros(ENVS, np.int64))
    env.close()


def test_threads_end_with_the_envs() -> None:
    before = set(threading.enumerate())
    env = made(MOUNTAIN, ENVS)
    env.reset()
    env.step(np.zeros(ENVS, np.int64))
    begun = set(threading.enumerate()) - before
    assert 1 <= len(begun) <= ENVS
    env.close()
    for thread in begun:
        thread.join(30)
        assert not thread.is_alive()


STUCK = """
import threading
from pappus.envs.env_threads import Threads

entered, threads = threading.Event(), Threads(2)
threads.submit(lambda: (entered.set(), threading.Event().wait()))
assert threads.submit(pow, 2, 5).result(30) == 32 and entered.wait(30)
threads.end()
"""


def test_an_env_that_is_stuck_does_not_keep_the_interpreter_from_ending() -> None:
    assert subprocess.run([sys.executable, "-c", STUCK], timeout=60).returncode == 0
