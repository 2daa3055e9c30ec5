"""Envs that do harm."""

from __future__ import annotations

import ctypes
import time
from typing import Any

import gymnasium as gym
import numpy as np

Step = tuple[np.ndarray, float, bool, bool, dict[str, Any]]


class PaysNaN(gym.Env[np.ndarray, int]):
    """Behaves for a while, then pays NaN."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._time = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> Step:
        self._time += 1
        return np.zeros(2, np.float32), float("nan") if self._time == 50 else 0.0, self._time == 100, False, {}


class RaisesInStep(PaysNaN):
    """Cannot be stepped."""

    def step(self, action: int) -> Step:
        raise RuntimeError("this env is broken")


class Hangs(PaysNaN):
    """Behaves for a while, then never returns from a step."""

    def step(self, action: int) -> Step:
        self._time += 1
        if self._time == 40:
            print("hangs now", flush=True)
            time.sleep(3600)
        return np.zeros(2, np.float32), 0.0, False, False, {}


class HangsInNativeCode(Hangs):
    """The same where Python hears no signals: it waits for a lock that it holds."""

    def step(self, action: int) -> Step:
        if self._time == 39:
            print("hangs now", flush=True)
            lock, system = ctypes.create_string_buffer(256), ctypes.CDLL(None)
            system.pthread_mutex_lock(lock)
            system.pthread_mutex_lock(lock)
        return super().step(action)


class CrashesNowAndThen(Hangs):
    """Behaves for a while, then raises; its next life goes the same way."""

    def step(self, action: int) -> Step:
        if self._time == 39:
            raise RuntimeError("this env breaks now and then")
        return super().step(action)
