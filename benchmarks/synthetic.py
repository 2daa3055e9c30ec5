"""Envs that cost what they are told to: any observation shape, any step time, nothing to learn but the best action.

    --env benchmarks.synthetic:vectors     4 numbers, 2 actions, as CartPole
    --env benchmarks.synthetic:frames      84 × 84 bytes of which the network sees 4, 6 actions, as Pong
    --env benchmarks.synthetic:sleeping    as vectors, one by one; every step sleeps for 5 ms, as if for a device
    --env-options.kwargs step_us 500       microseconds of work per env and step
"""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space

VARIETY = 16
"""Different observations that an env shows in turn: enough that no cache holds them all."""


class Synthetic(gym.vector.VectorEnv[Any, Any, Any]):
    """N envs whose observations were drawn in advance. The action that the time step calls for earns 1."""

    def __init__(
        self, num_envs: int, shape: tuple[int, ...], dtype: str, actions: int, frame_stack: int, step_us: float = 0.0,
        episode_length: int = 200,
    ) -> None:
        pictures = dtype == "uint8"
        space = gym.spaces.Box(0 if pictures else -4.0, 255 if pictures else 4.0, shape, np.dtype(dtype).type)
        self.num_envs, self._actions, self._step_us, self._length = num_envs, actions, step_us, episode_length
        self.metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "frame_stack": frame_stack}
        self.single_observation_space, self.observation_space = space, batch_space(space, num_envs)
        self.single_action_space = gym.spaces.Discrete(actions)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._time = np.zeros(num_envs, np.int64)
        self._turn = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        random = np.random.default_rng(seed)
        space = self.single_observation_space
        drawn = random.integers(0, 256, (VARIETY, self.num_envs, *space.shape)) if space.dtype == np.uint8 else (
            random.normal(size=(VARIETY, self.num_envs, *space.shape))
        )
        self._shown = drawn.astype(space.dtype)
        self._time[:] = random.integers(0, self._length, self.num_envs)  # so that not all end at once
        return self._shown[0], {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        if self._step_us:
            until = time.perf_counter() + 1e-6 * self._step_us * self.num_envs
            while time.perf_counter() < until:
                pass
        self._turn += 1
        reward = (actions == self._turn % self._actions).astype(np.float64)
        fresh = self._time >= self._length
        self._time += 1
        self._time[fresh] = 0
        reward[fresh] = 0.0
        return self._shown[self._turn % VARIETY], reward, self._time >= self._length, np.zeros(self.num_envs, bool), {}


def vectors(num_envs: int = 1, step_us: float = 0.0) -> Synthetic:
    """As CartPole, in size."""
    return Synthetic(num_envs, (4,), "float32", 2, 1, step_us)


def frames(num_envs: int = 1, step_us: float = 0.0, size: int = 84) -> Synthetic:
    """As Pong, in size."""
    return Synthetic(num_envs, (size, size), "uint8", 6, 4, step_us)


class Sleeping(gym.Env[Any, Any]):
    """One env that computes nothing and waits."""

    def __init__(self, sleep_ms: float) -> None:
        self.observation_space, self.action_space = gym.spaces.Box(-4.0, 4.0, (4,), np.float32), gym.spaces.Discrete(2)
        self._seconds, self._time = 1e-3 * sleep_ms, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._time = int(self.np_random.integers(100))
        return self._shown(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self._seconds)
        self._time += 1
        return self._shown(), float(action == self._time % 2), self._time >= 200, False, {}

    def _shown(self) -> Any:
        return self.np_random.normal(size=4).astype(np.float32).clip(-4, 4)


def sleeping(sleep_ms: float = 5.0) -> Sleeping:
    """Waits for so many milliseconds in every step."""
    return Sleeping(sleep_ms)
