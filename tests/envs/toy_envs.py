"""Deterministic envs whose every reward, end and final observation is known in advance."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

LENGTH = 4
"""Steps per episode of the counters."""


class Counter(gym.Env[Any, Any]):
    """Shows [random number of the episode, step]; step t is worth t; ends after `LENGTH` steps.

    With `ends="both"` episodes end in turn by termination and by truncation, beginning with termination.
    """

    observation_space = spaces.Box(0, 100, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, ends: str = "both") -> None:
        self.ends, self.episode, self.time, self.number = ends, -1, 0, 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.episode = 0 if seed is not None else self.episode + 1
        self.time, self.number = 0, float(self.np_random.uniform(0, 100))
        return self._shown(), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        over = self.time == LENGTH
        terminates = self.ends == "terminate" or (self.ends == "both" and self.episode % 2 == 0)
        return self._shown(), float(self.time), over and terminates, over and not terminates, {}

    def _shown(self) -> Any:
        return np.array([self.number, self.time])


class Nested(gym.Env[Any, Any]):
    """Random content in a nest of every supported space; ends with probability 1/8."""

    observation_space = spaces.Dict(
        {
            "picture": spaces.Box(0, 255, (3, 3), np.uint8),
            "pair": spaces.Tuple((spaces.Discrete(4, start=2), spaces.MultiBinary(3))),
            "choices": spaces.MultiDiscrete([2, 3], start=[5, -1]),
            "numbers": spaces.Dict({"x": spaces.Box(-1, 1, (), np.float64)}),
        }
    )
    action_space = spaces.Discrete(3, start=-1)

    def __init__(self) -> None:
        self.last_action = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return self._shown(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        return self._shown(), float(action), bool(self.np_random.random() < 1 / 8), False, {}

    def _shown(self) -> Any:
        draw = self.np_random
        return {
            "picture": draw.integers(0, 256, (3, 3), np.uint8),
            "pair": (draw.integers(2, 6), draw.integers(0, 2, 3, np.int8)),
            "choices": draw.integers([5, -1], [7, 2]),
            "numbers": {"x": np.array(draw.uniform(-1, 1))},
        }


class Masked(Counter):
    """A counter that allows one of 2 and two of 3 choices, and refuses all others."""

    action_space = spaces.MultiDiscrete([2, 3])

    def __init__(self, by: str = "observation", form: str = "tuple") -> None:
        super().__init__()
        self.by, self.form, self.masks = by, form, self._draw(0)
        if by == "observation":
            single = [spaces.MultiBinary(2), spaces.MultiBinary(3)]
            mask = spaces.Tuple(single) if form == "tuple" else spaces.Box(0, 1, (5,), np.int8)
            self.observation_space = spaces.Dict({"counter": Counter.observation_space, "action_mask": mask})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observation, info = super().reset(seed=seed, options=options)
        return self._with_masks(observation, info)

    def step(self, action: Any) -> Any:
        assert all(mask[choice] for mask, choice in zip(self.masks, action, strict=True)), "a forbidden action"
        observation, reward, terminated, truncated, info = super().step(action)
        observation, info = self._with_masks(observation, info)
        return observation, reward, terminated, truncated, info

    def _with_masks(self, observation: Any, info: Any) -> Any:
        self.masks = self._draw(self.time)
        given = self.masks if self.form == "tuple" else np.concatenate(self.masks)
        if self.by == "observation":
            return {"counter": observation, "action_mask": given}, info
        return observation, {**info, "action_mask": given}

    @staticmethod
    def _draw(time: int) -> Any:
        return np.roll(np.array([1, 0], np.int8), time), np.roll(np.array([1, 1, 0], np.int8), time)


class Pusher(gym.Env[Any, Any]):
    """Shows the action that it got, which lies within bounds of which one is infinite."""

    action_space = spaces.Box(np.array([-2, 10, -np.inf]), np.array([4, 20, 5]), dtype=np.float64)
    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(3), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        return action.copy(), 0.0, False, False, {}


class Weak(Pusher):
    """The same with one bound as narrow as a humanoid's, and one not around 0; episodes have 10 steps."""

    action_space = spaces.Box(np.array([-0.4, 1], np.float32), np.array([0.4, 3], np.float32))
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.time = 0
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.time += 1
        shown, reward, *_ = super().step(action)
        return shown, reward, False, self.time == 10, {}


class Crashing(Counter):
    """Raises in its third step."""

    def step(self, action: Any) -> Any:
        if self.time == 2:
            raise ZeroDivisionError("the pole fell through the floor")
        return super().step(action)


def same_step(num_envs: int) -> SyncVectorEnv:
    """Counters that are reset in the step that ends them."""
    return SyncVectorEnv([Counter] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def reset_by_hand(num_envs: int) -> SyncVectorEnv:
    """Counters that nobody resets."""
    return SyncVectorEnv([Counter] * num_envs, autoreset_mode=AutoresetMode.DISABLED)


def masked_by_hand(num_envs: int) -> SyncVectorEnv:
    """Masked counters that nobody resets."""
    return SyncVectorEnv([lambda: Masked("info")] * num_envs, autoreset_mode=AutoresetMode.DISABLED)


def without_mode(num_envs: int) -> SyncVectorEnv:
    """Counters that do not say when they are reset."""
    env = SyncVectorEnv([Counter] * num_envs)
    env.metadata = {}
    return env
