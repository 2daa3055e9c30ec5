"""Counters that break one promise each."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from tests.envs.toy_envs import Counter, Masked


class NotFinite(Counter):
    """Shows a NaN in its second step."""

    def _shown(self) -> Any:
        return np.array([1.0, np.nan if self.time == 2 else 0.0])


class OutOfBounds(Counter):
    """Shows 107 where the space ends at 100."""

    def _shown(self) -> Any:
        return np.array([1.0, 107.0])


class WrongDtype(Counter):
    """Shows float32 where the space says float64."""

    def _shown(self) -> Any:
        return np.zeros(2, np.float32)


class WrongShape(Counter):
    """Shows three numbers where the space says two."""

    def _shown(self) -> Any:
        return np.zeros(3)


class WrongKeys(Counter):
    """Shows a key that the space does not have."""

    observation_space = spaces.Dict({"place": spaces.Discrete(3)})  # type: ignore[assignment]

    def _shown(self) -> Any:
        return {"position": 1}


class WrongCategory(Counter):
    """Shows category 3 of 3, counted from 0, deep in a nest."""

    observation_space = spaces.Dict({"pair": spaces.Tuple((spaces.Discrete(3), spaces.Discrete(9)))})  # type: ignore[assignment]

    def _shown(self) -> Any:
        return {"pair": (3, 4)}


class RewardOfNone(Counter):
    """Returns no reward."""

    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, None, *rest


class InfiniteReward(Counter):
    """Returns an infinite reward."""

    def step(self, action: Any) -> Any:
        observation, _, *rest = super().step(action)
        return observation, float("inf"), *rest


class EndsWithNumber(Counter):
    """Says 1 where True is meant."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, int(terminated), truncated, info


class Endless(Counter):
    """Never ends."""

    def step(self, action: Any) -> Any:
        observation, reward, _, _, info = super().step(action)
        return observation % 100, reward, False, False, info


class Irreproducible(Counter):
    """Ignores its seed."""

    def _shown(self) -> Any:
        return np.random.default_rng().uniform(0, 100, 2)


class ForbidsEverything(Masked):
    """Allows nothing of its second choice in its second step, and does not mind what is chosen then."""

    def step(self, action: Any) -> Any:
        return self._with_masks_in(Counter.step(self, action))

    def _with_masks_in(self, result: Any) -> Any:
        observation, reward, terminated, truncated, info = result
        observation, info = self._with_masks(observation, info)
        return observation, reward, terminated, truncated, info

    @staticmethod
    def _draw(time: int) -> Any:
        return np.array([1, 1], np.int8), np.full(3, time != 2, np.int8)


class NoSeed(Counter):
    """Cannot be seeded."""

    def reset(self) -> Any:  # type: ignore[override]
        return np.zeros(2), {}


class OldStep(Counter):
    """Returns what Gym's envs returned before there were truncations."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


class OldReset(Counter):
    """Returns what Gym's envs returned before resets had infos."""

    def reset(self, **how: Any) -> Any:
        return super().reset(**how)[0]
