"""Envs that show nothing and cost what they are told to: time that they compute, or sleep, always or now and then."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np

EPISODE = 200
SLOW_EVERY = 400
"""Steps between two slow ones."""


class Costly(gym.Env[np.ndarray[Any, Any], np.int64]):
    """Its steps have a price."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, computes: float = 0.0, sleeps: float = 0.0, sleeps_seldom: float = 0.0) -> None:
        """Seconds per step; `sleeps_seldom` is for one in `SLOW_EVERY`."""
        self._computes, self._sleeps, self._sleeps_seldom = computes, sleeps, sleeps_seldom
        self._steps = self._length = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if not self._steps:  # envs side by side are slow at different times
            self._steps = int(self.np_random.integers(SLOW_EVERY))
        self._length = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: np.int64) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._length += 1
        self._steps += 1
        until = time.thread_time() + self._computes
        if self._sleeps or (self._sleeps_seldom and self._steps % SLOW_EVERY == 0):
            time.sleep(self._sleeps or self._sleeps_seldom)
        while self._computes and time.thread_time() < until:
            pass
        return np.zeros(4, np.float32), float(action), self._length >= EPISODE, False, {}


def computing(seconds: float = 1e-3) -> Costly:
    return Costly(computes=seconds)


def sleeping(seconds: float = 5e-3) -> Costly:
    return Costly(sleeps=seconds)


def uneven(seconds: float = 5e-2) -> Costly:
    """Cheap, but for one step in `SLOW_EVERY`."""
    return Costly(computes=2e-5, sleeps_seldom=seconds)

