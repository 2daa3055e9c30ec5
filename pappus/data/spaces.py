"""The spaces of recorded data: those of the env, as far as what it shows and accepts is what is recorded.

Recorded observations are those that the network gets: float32 where the env has float64, categories counted from 0,
single frames, masks and last inputs beside what the env shows. Actions are in the env's units.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from pappus.envs.spaces import Space, action_converter
from pappus.envs.vector import LAST_ACTION, LAST_REWARD, VectorEnv
from pappus.types import ACTION_MASK, ActionSpec, ArraySpec, ContinuousAction, DiscreteAction, EnvSpec, Nest


def recorded_spaces(spec: EnvSpec, env: VectorEnv | None) -> tuple[Space, Space]:
    """Spaces of observations and actions; without an env, which may be elsewhere, as wide as their types."""
    own = _gym_spaces(env)
    action = own[1] if own is not None and action_converter(own[1])[0] == spec.action else space_of_action(spec.action)
    return _space(spec.observation, None if own is None else own[0], spec.action), action


def _gym_spaces(env: Any) -> tuple[Space, Space] | None:
    """The spaces of a Gymnasium vector env inside; None where actions are not converted as these say."""
    from pappus.envs.gym_vector import GymVectorEnv

    while env is not None and not isinstance(env, GymVectorEnv):
        env = getattr(env, "_env", None)
    return None if env is None else (env.env.single_observation_space, env.env.single_action_space)


def space_of_action(action: ActionSpec) -> Space:
    """The space whose units are those of policies."""
    if isinstance(action, DiscreteAction):
        return spaces.Discrete(action.n)
    if isinstance(action, ContinuousAction):
        return spaces.Box(-1.0, 1.0, action.shape, np.float32)
    return spaces.MultiDiscrete(list(action.nvec))


def _space(spec: Nest, own: Space | None, action: ActionSpec) -> Space:
    if isinstance(spec, dict):
        inner = own.spaces if isinstance(own, spaces.Dict) else {"observation": own}
        return spaces.Dict({key: _entry(key, leaf, inner.get(key), action) for key, leaf in spec.items()})
    if isinstance(spec, tuple):
        parts = own.spaces if isinstance(own, spaces.Tuple) else [None] * len(spec)
        return spaces.Tuple([_space(leaf, part, action) for leaf, part in zip(spec, parts, strict=True)])
    return _leaf(spec, own)


def _entry(key: str, spec: Nest, own: Space | None, action: ActionSpec) -> Space:
    if key == ACTION_MASK and isinstance(spec, ArraySpec):
        return spaces.MultiBinary(spec.shape[0])
    if own is None and key == LAST_ACTION and isinstance(action, ContinuousAction):
        return spaces.Box(-np.inf, np.inf, spec.shape, np.float32)  # before it is clipped
    if own is None and key == LAST_REWARD:
        return spaces.Box(-np.inf, np.inf, spec.shape, np.float32)
    return _space(spec, own, action)


def _leaf(spec: ArraySpec, own: Space | None) -> Space:
    if isinstance(own, spaces.MultiBinary) and spec.dtype == "int8":
        return own
    if spec.num_values is not None:
        return spaces.MultiDiscrete(np.reshape(spec.num_values, spec.shape)) if spec.shape else spaces.Discrete(
            spec.num_values[0]
        )
    dtype = np.dtype(spec.dtype)
    if dtype == np.bool_:
        return spaces.Box(0, 1, spec.shape, np.dtype(np.bool_))
    bounds = (-np.inf, np.inf) if dtype.kind == "f" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    low, high = np.full(spec.shape, bounds[0], dtype), np.full(spec.shape, bounds[1], dtype)
    if isinstance(own, spaces.Box) and own.shape == spec.shape:
        low, high = (_cast(bound, dtype, bounds) for bound in (own.low, own.high))
    return spaces.Box(low, high, spec.shape, dtype.type)


def _cast(bound: Any, dtype: Any, limits: tuple[float, float]) -> Any:
    """A bound in another dtype: rounding keeps the order, so what lay within still does."""
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            return bound.astype(dtype)
    return np.clip(bound, *limits).astype(dtype)
