"""Envs whose only reward lies behind many right choices: `--env tests.envs.sparse_envs:cliff`."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from pappus.types import Array


def cliff(num_envs: int = 1, length: int = 8, every: int = 0) -> VectorEnv[Any, Any, Any]:
    """The blind cliff walk (Schaul et al. 2016, figure 1): one wrong step of `length`, and it is over.

    With `every`, each of so many places is worth 1, and not the last one alone.
    """
    return Cliff(num_envs, length, every or length)


class Cliff(VectorEnv[Any, Any, Any]):
    """Places 0 … length − 1, shown one-hot. One of two actions leads on, and which one differs from place to place.

    The other ends the episode. Every `every`-th right step earns 1: a random walk makes n of them once in 2ⁿ times.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs: int, length: int, every: int) -> None:
        self.num_envs, self._length, self._every = num_envs, length, every
        self.single_observation_space = spaces.Box(0, 1, (length,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._place, self._over = np.zeros(num_envs, np.int64), np.zeros(num_envs, bool)
        self._right = np.random.default_rng(0).integers(2, size=length)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._place[:], self._over[:] = 0, False
        return self._shown(), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        right = (actions == self._right[self._place]) & ~self._over
        won = right & (self._place == self._length - 1)
        reward = right & ((self._place + 1) % self._every == 0)
        ended = ~self._over & (won | ~right)
        self._place = np.where(self._over, 0, np.where(right & ~won, self._place + 1, self._place))
        self._over = ended
        return self._shown(), reward.astype(np.float64), ended, np.zeros(self.num_envs, bool), {}

    def _shown(self) -> Array:
        return np.eye(self._length, dtype=np.float32)[self._place]
