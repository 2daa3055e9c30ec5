"""Catch: a picture small enough to learn from in seconds, for comparing precisions with several seeds.

    python -m benchmarks.learning --env benchmarks.catch:Catch --target 0.9 --seeds 1 2 3 -- --precision bfloat16
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

SIDE, BALL, PADDLE, FALL = 36, 3, 6, 3


class Catch(gym.Env[np.ndarray, int]):
    """A ball falls; the paddle at the bottom earns 1 for catching it and −1 for missing."""

    observation_space = gym.spaces.Box(0, 255, (SIDE, SIDE), np.uint8)
    action_space = gym.spaces.Discrete(3)  # left, stay, right

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._row = 0
        self._column = int(self.np_random.integers(SIDE - BALL))
        self._paddle = int(self.np_random.integers(SIDE - PADDLE))
        return self._picture(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._paddle = min(max(self._paddle + 4 * (int(action) - 1), 0), SIDE - PADDLE)
        self._row += FALL
        landed = self._row >= SIDE - BALL
        caught = -BALL < self._column - self._paddle < PADDLE
        return self._picture(), (1.0 if caught else -1.0) if landed else 0.0, landed, False, {}

    def _picture(self) -> np.ndarray:
        picture = np.zeros((SIDE, SIDE), np.uint8)
        picture[self._row : self._row + BALL, self._column : self._column + BALL] = 255
        picture[-2:, self._paddle : self._paddle + PADDLE] = 255
        return picture
