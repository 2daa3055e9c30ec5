"""Wrappers that compare what a Gymnasium env returns with its spaces, before anything is converted."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from pappus.envs.gym_vector import GymVector
from pappus.types import Array, Nest

RESET = ("observation", "info")
STEP = ("observation", "reward", "terminated", "truncated", "info")


class Notes:
    """Problems, each kind at each place once, with where it was seen first."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], str] = {}

    @property
    def problems(self) -> list[str]:
        return list(self._found.values())

    def add(self, place: str, kind: str, sentence: str) -> None:
        """Note a problem unless the same kind was noted at the same place."""
        self._found.setdefault((place, kind), f"{place} {sentence}")


class WatchedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """One env, watched."""

    def __init__(self, env: gym.Env[Any, Any], notes: Notes) -> None:
        super().__init__(env)
        self._notes = notes

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        observation, info = self._values("reset", self.env.reset(seed=seed, options=options), RESET)
        self._look(observation, info)
        return observation, info

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = self._values("step", self.env.step(action), STEP)
        self._look(observation, info)
        if isinstance(reward, bool) or not isinstance(reward, float | int | np.floating | np.integer):
            self._notes.add("reward", "type", f"is {reward!r} of type {type(reward).__name__}; return a float")
        else:
            look_at_rewards(self._notes, np.asarray(reward))
        for name, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, bool | np.bool_):
                self._notes.add(name, "type", f"is {flag!r} of type {type(flag).__name__}; return a bool")
        return observation, reward, terminated, truncated, info

    def _values(self, method: str, returned: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
        if isinstance(returned, tuple) and len(returned) == len(names):
            return returned
        found = f"{len(returned)} values" if isinstance(returned, tuple) else f"a {type(returned).__name__}"
        self._notes.add(method, "values", f"returns {found}; return the tuple ({', '.join(names)})")
        raise ValueError(self._notes.problems[-1])

    def _look(self, observation: Nest, info: Any) -> None:
        if not isinstance(info, dict):
            self._notes.add("info", "type", f"is a {type(info).__name__}; return a dict")
        look_at_observation(self._notes, self.observation_space, observation, ())


class WatchedVectorEnv(gym.vector.VectorWrapper[Any, Any, Any, Any, Any]):
    """N envs that step together, watched."""

    def __init__(self, env: GymVector, notes: Notes) -> None:
        super().__init__(env)
        self._notes = notes

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        observation, info = self.env.reset(seed=seed, options=options)
        look_at_observation(self._notes, self.single_observation_space, observation, (self.num_envs,))
        return observation, info

    def step(self, actions: Any) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(actions)
        look_at_observation(self._notes, self.single_observation_space, observation, (self.num_envs,))
        for name, values in (("reward", reward), ("terminated", terminated), ("truncated", truncated)):
            if np.shape(values) != (self.num_envs,):
                self._notes.add(name, "shape", f"has shape {np.shape(values)}; return one per env, {(self.num_envs,)}")
        look_at_rewards(self._notes, np.asarray(reward))
        return observation, reward, terminated, truncated, info


def look_at_rewards(notes: Notes, rewards: Array) -> None:
    """Rewards are finite numbers."""
    if rewards.dtype.kind not in "fiub":
        notes.add("reward", "type", f"has dtype {rewards.dtype}; return floats")
    elif not np.isfinite(rewards).all():
        notes.add("reward", "finite", f"is {rewards[~np.isfinite(rewards)].flat[0]}; return finite numbers")


def look_at_observation(
    notes: Notes, space: gym.Space[Any], value: Nest, batch: tuple[int, ...], path: str = "observation"
) -> None:
    """Structure, shape, dtype, finiteness and bounds of an observation, or of a batch of them."""
    if isinstance(space, spaces.Dict):
        if not isinstance(value, dict) or set(value) != set(space.spaces):
            found = sorted(map(str, value)) if isinstance(value, dict) else type(value).__name__
            notes.add(path, "keys", f"has {found} where the space has the keys {sorted(space.spaces)}")
            return
        for key, inner in space.spaces.items():
            look_at_observation(notes, inner, value[key], batch, f"{path}[{key!r}]")
    elif isinstance(space, spaces.Tuple):
        if not isinstance(value, tuple) or len(value) != len(space.spaces):
            notes.add(path, "keys", f"is a {type(value).__name__} where the space has {len(space.spaces)} parts")
            return
        for i, inner in enumerate(space.spaces):
            look_at_observation(notes, inner, value[i], batch, f"{path}[{i}]")
    else:
        _look_at_leaf(notes, space, np.asarray(value), batch, path)


def _look_at_leaf(notes: Notes, space: gym.Space[Any], value: Array, batch: tuple[int, ...], path: str) -> None:
    expected = (*batch, *(space.shape or ()))
    if value.shape != expected:
        notes.add(path, "shape", f"has shape {value.shape} where the space has {expected}")
        return
    if isinstance(space, spaces.Box) and value.dtype != space.dtype:
        notes.add(path, "dtype", f"has dtype {value.dtype} where the space has {space.dtype}")
    elif not isinstance(space, spaces.Box) and value.dtype.kind not in "iub":
        notes.add(path, "dtype", f"has dtype {value.dtype} where the space has integers")
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        where = _first(~np.isfinite(value), batch)
        notes.add(path, "finite", f"is {value[~np.isfinite(value)].flat[0]} at index {where}; keep it finite")
    if value.dtype.kind in "fiub":
        _look_at_bounds(notes, space, value, batch, path)


def _look_at_bounds(notes: Notes, space: gym.Space[Any], value: Array, batch: tuple[int, ...], path: str) -> None:
    low, high = _bounds(space, value.shape)
    outside = (value < low) | (value > high)
    if outside.any():
        at, where = tuple(np.argwhere(outside)[0]), _first(outside, batch)
        notes.add(path, "bounds", f"is {value[at]} at index {where} where the space has {low[at]} to {high[at]}")


def _bounds(space: gym.Space[Any], shape: tuple[int, ...]) -> tuple[Array, Array]:
    low: Any = 0
    high: Any = 1
    if isinstance(space, spaces.Box):
        low, high = space.low, space.high
    elif isinstance(space, spaces.Discrete):
        low, high = space.start, space.start + space.n - 1
    elif isinstance(space, spaces.MultiDiscrete):
        low, high = space.start, space.start + space.nvec - 1
    return np.broadcast_to(low, shape), np.broadcast_to(high, shape)


def _first(wrong: Array, batch: tuple[int, ...]) -> tuple[int, ...]:
    """Index of the first wrong entry within one env's observation."""
    return tuple(int(i) for i in np.argwhere(wrong)[0][len(batch) :])
