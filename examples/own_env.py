"""An env of your own: any function that makes a Gymnasium env.

    python examples/own_env.py
    cd examples; pappus train impala --env own_env:FindTheLight

Nothing is registered: from a script the class travels to the actors' processes by value, a command imports it.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

import pappus
from pappus.config import OptimizerConfig


class FindTheLight(gym.Env[np.ndarray, int]):
    """Walk along a corridor towards a light whose place changes every episode."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Discrete(3)  # left, stay, right
    length = 20

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._me, self._light = self.np_random.integers(0, self.length, 2)
        self._time = 0
        return self._look(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._me = int(np.clip(self._me + action - 1, 0, self.length - 1))
        self._time += 1
        found = self._me == self._light
        return self._look(), 1.0 if found else -0.05, bool(found), self._time >= 50, {}

    def _look(self) -> np.ndarray:
        return np.array([self._me, self._light], np.float32) / self.length * 2 - 1


if __name__ == "__main__":
    optimizer = OptimizerConfig(learning_rate=3e-3)
    result = pappus.train("impala", FindTheLight, steps=300_000, envs_per_actor=16, optimizer=optimizer)
    policy = result.policy
    env = FindTheLight()
    observation, _ = env.reset(seed=1)
    found = late = False
    steps = 0
    while not (found or late):
        observation, reward, found, late, _ = env.step(policy.act(observation))
        steps += 1
    print(f"found the light after {steps} steps" if found else "did not find the light")
