"""Envs that cannot be solved without memory, stepped many at once: `--env tests.envs.memory_envs:delayed_recall`."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv, VectorObservationWrapper
from gymnasium.vector.utils import batch_space

from pappus.types import Array

SHOWN = [0, 2]
"""Cart position and pole angle, of what CartPole shows."""


def masked_cartpole(num_envs: int = 1) -> VectorEnv[Any, Any, Any]:
    """CartPole-v1 without its velocities: they can only be known from what was seen before."""
    return WithoutVelocities(gym.make_vec("CartPole-v1", num_envs, vectorization_mode="vector_entry_point"))


def delayed_recall(num_envs: int = 1, delay: int = 20, cues: int = 2) -> VectorEnv[Any, Any, Any]:
    """A cue is shown once; `delay` steps later it must be named."""
    return DelayedRecall(num_envs, delay, cues)


class WithoutVelocities(VectorObservationWrapper[Any, Any, Any]):
    """Shows positions only."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        whole = env.single_observation_space
        assert isinstance(whole, spaces.Box)
        self.single_observation_space = spaces.Box(whole.low[SHOWN], whole.high[SHOWN], dtype=np.float32)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def observations(self, observations: Array) -> Array:
        return observations[:, SHOWN]


class DelayedRecall(VectorEnv[Any, Any, Any]):
    """Episodes of delay + 1 steps, of which the last is worth 1 if its action is the cue, and all others nothing.

    Observations are [one-hot cue …, go]: the cue is shown at step 0 only, go at the last one. What is done before does
    not matter. Chance earns 1 / cues.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int, delay: int, cues: int) -> None:
        self.num_envs, self._delay, self._cues = num_envs, delay, cues
        self.single_observation_space = spaces.Box(0, 1, (cues + 1,), np.float32)
        self.single_action_space = spaces.Discrete(cues)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._cue, self._time = np.zeros(num_envs, np.int64), np.zeros(num_envs, np.int64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._begin(np.ones(self.num_envs, bool))
        return self._shown(), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        over = self._time > self._delay
        last = self._time == self._delay
        reward = (last & (actions == self._cue)).astype(np.float64)
        self._time += 1
        self._begin(over)
        return self._shown(), reward, last, np.zeros(self.num_envs, bool), {}

    def _begin(self, which: Array) -> None:
        self._time[which] = 0
        self._cue[which] = self.np_random.integers(self._cues, size=int(which.sum()))

    def _shown(self) -> Array:
        shown = np.zeros((self.num_envs, self._cues + 1), np.float32)
        starts = self._time == 0
        shown[starts, self._cue[starts]] = 1
        shown[:, -1] = self._time == self._delay
        return shown
