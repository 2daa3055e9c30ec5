"""Gymnasium spaces as specs, and how batches cross the boundary: observations in, actions out.

An env gives action masks in its observation (a Dict space with the key `action_mask`) or in its `info`; the network
gets them in the observation: int8 rows over all choices of an action, 1 where one is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from pappus.errors import UserError
from pappus.types import (
    ACTION_MASK,
    ActionSpec,
    Array,
    ArraySpec,
    Bounds,
    ContinuousAction,
    DiscreteAction,
    MultiDiscreteAction,
    Nest,
)

Space: TypeAlias = gym.Space[Any]
ToNest: TypeAlias = Callable[[Nest], Nest]
ToAction: TypeAlias = Callable[[Array], Array]

# Networks compute in float32, and torch has no arithmetic on wide unsigned integers.
_STORED_AS = {"float64": "float32", "float16": "float32", "uint16": "int32", "uint32": "int64", "uint64": "int64"}

DOUBLE = np.finfo(np.float64)
"""EnvPool says of dm_control's numbers that they lie between the smallest positive double and the largest one; it means
that they have no bounds."""
MOST_BOUNDS = 1000
"""Entries of a leaf that may have bounds of their own: specs travel to every process."""


def observation_converter(space: Space, action: ActionSpec) -> tuple[Nest, ToNest]:
    """Spec of what one env shows, and the function that converts a batch of it."""
    if not isinstance(space, spaces.Dict) or ACTION_MASK not in space.spaces:
        return _converter(space, "observation")
    mask, size = mask_spec(action), _entries(space[ACTION_MASK])
    if (size,) != mask.shape:
        raise UserError(f"observation[{ACTION_MASK!r}] has {size} entries, but the action has {mask.shape[0]} choices")
    rest = spaces.Dict({key: inner for key, inner in space.spaces.items() if key != ACTION_MASK})
    spec, to_nest = _converter(rest, "observation")
    return {**spec, ACTION_MASK: mask}, lambda batch: {**to_nest(batch), ACTION_MASK: flat_rows(batch[ACTION_MASK])}


def action_converter(space: Space) -> tuple[ActionSpec, ToAction]:
    """Spec of the actions, and the function from a batch in our units to a batch in the env's."""
    if isinstance(space, spaces.Discrete):
        return DiscreteAction(int(space.n)), _shifted(int(space.start), (), space.dtype)
    if isinstance(space, spaces.MultiDiscrete):
        nvec = tuple(int(n) for n in space.nvec.ravel())
        return MultiDiscreteAction(nvec), _shifted(space.start, space.shape, space.dtype)
    if isinstance(space, spaces.Box) and np.dtype(space.dtype).kind in "fiu":
        return ContinuousAction(space.shape), partial(_to_bounds, *affine(space), space)
    raise UserError(f"action is {space}, which no policy supports; use Discrete, MultiDiscrete or a numeric Box")


def from_env_action(space: Space, action: Any) -> Array:
    """A batch of actions in the env's units, as policies say them: the inverse of what `action_converter` returns, but
    for actions that were clipped or rounded."""
    if isinstance(space, spaces.Discrete):
        return np.asarray(action, np.int64) - int(space.start)
    if isinstance(space, spaces.MultiDiscrete):
        counted = np.asarray(action, np.int64) - space.start
        return counted.reshape(len(counted), -1)
    assert isinstance(space, spaces.Box), "action_converter refuses all other spaces"
    scale, offset = affine(space)
    return (np.asarray(action, np.float32) - offset) / np.where(scale == 0, np.float32(1), scale)


def to_env_observation(space: Space, observation: Nest) -> Nest:
    """A batch of converted observations in the env's own types, plain dicts and tuples: the inverse of what
    `observation_converter` returns, but for what that rounded."""
    if isinstance(space, spaces.Dict):
        rest = {key: inner for key, inner in space.spaces.items() if key != ACTION_MASK}
        nest = {key: to_env_observation(inner, observation[key]) for key, inner in rest.items()}
        masked = ACTION_MASK in space.spaces
        return {**nest, ACTION_MASK: _split_mask(space[ACTION_MASK], observation[ACTION_MASK])} if masked else nest
    if isinstance(space, spaces.Tuple):
        return tuple(to_env_observation(inner, x) for inner, x in zip(space.spaces, observation, strict=True))
    start = space.start if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) else 0
    dtype = np.dtype(space.dtype)
    return np.asarray(observation + start if np.any(start) else observation, dtype)


def _split_mask(space: Space, rows: Nest) -> Nest:
    """`[N, size]` in the shape that an env gives its masks."""
    if isinstance(rows, tuple | dict):  # a key of that name further down, which was not converted
        return to_env_observation(space, rows)
    if isinstance(space, spaces.Tuple):
        parts = np.split(rows, np.cumsum([_entries(inner) for inner in space.spaces])[:-1], axis=1)
        return tuple(_split_mask(inner, part) for inner, part in zip(space.spaces, parts, strict=True))
    return to_env_observation(space, rows.reshape(len(rows), *(space.shape or ())))


def _converter(space: Space, path: str) -> tuple[Nest, ToNest]:
    if isinstance(space, spaces.Dict):
        named = {key: _converter(inner, f"{path}[{key!r}]") for key, inner in space.spaces.items()}
        specs = {key: spec for key, (spec, _) in named.items()}
        return specs, lambda batch: {key: convert(batch[key]) for key, (_, convert) in named.items()}
    if isinstance(space, spaces.Tuple):
        parts = [_converter(inner, f"{path}[{i}]") for i, inner in enumerate(space.spaces)]
        in_order = tuple(spec for spec, _ in parts)
        return in_order, lambda batch: tuple(convert(x) for (_, convert), x in zip(parts, batch, strict=True))
    return _leaf_converter(space, path)


def _leaf_converter(space: Space, path: str) -> tuple[Nest, ToNest]:
    if isinstance(space, spaces.Box):
        dtype = np.dtype(_STORED_AS.get(str(space.dtype), str(space.dtype)))
        return ArraySpec(space.shape, str(dtype), bounds=_bounds(space)), partial(np.asarray, dtype=dtype, order="C")
    if isinstance(space, spaces.MultiBinary):
        flags = ArraySpec(space.shape, "int8", bounds=((0.0,), (1.0,)))
        return flags, partial(np.asarray, dtype=np.dtype(np.int8), order="C")
    if isinstance(space, spaces.Discrete):
        return ArraySpec((), "int64", (int(space.n),)), _counted_from(int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        values = tuple(int(n) for n in space.nvec.ravel())
        return ArraySpec(space.shape, "int64", values), _counted_from(space.start)
    raise UserError(
        f"{path} is {space}, which has no fixed shape; use Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"
    )


def _bounds(space: spaces.Box) -> Bounds | None:
    """One pair for all entries where they agree or are many, otherwise one for each."""
    low, high = space.low.astype(np.float64).ravel(), space.high.astype(np.float64).ravel()
    unbounded = (low == DOUBLE.tiny) & (high == DOUBLE.max)
    low, high = np.where(unbounded, -np.inf, low), np.where(unbounded, np.inf, high)
    if not np.isfinite(low).any() and not np.isfinite(high).any():
        return None
    if low.size > MOST_BOUNDS or (np.ptp(low) == 0 and np.ptp(high) == 0):
        low, high = low.min(keepdims=True), high.max(keepdims=True)
    return tuple(low.tolist()), tuple(high.tolist())


def _counted_from(start: int | Array) -> ToNest:
    dtype = np.dtype(np.int64)
    if not np.any(start):
        return partial(np.asarray, dtype=dtype)
    return lambda batch: np.asarray(batch, dtype) - start


def _shifted(start: int | Array, shape: tuple[int, ...], dtype: object) -> ToAction:
    wanted = np.dtype(dtype)  # type: ignore[call-overload]
    if not np.any(start) and len(shape) < 2:
        return partial(np.asarray, dtype=wanted)
    return lambda action: (np.reshape(action, (len(action), *shape)) + start).astype(wanted)


def affine(space: spaces.Box) -> tuple[Array, Array]:
    """Scale and offset that map -1..1 to low..high; units of the env where a bound is infinite."""
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    finite = np.isfinite(low) & np.isfinite(high)
    low, high = np.where(finite, low, -1), np.where(finite, high, 1)
    return (high / 2 - low / 2).astype(np.float32), (high / 2 + low / 2).astype(np.float32)


def _to_bounds(scale: Array, offset: Array, space: spaces.Box, action: Array) -> Array:
    wanted: Array = np.clip(action * scale + offset, space.low, space.high)
    dtype = np.dtype(space.dtype)
    return np.asarray(np.rint(wanted) if dtype.kind in "iu" else wanted, dtype)


def mask_spec(action: ActionSpec) -> ArraySpec:
    """Spec of one env's mask; continuous actions have none."""
    if isinstance(action, ContinuousAction):
        raise UserError(f"{ACTION_MASK!r} comes with a continuous action, which cannot be masked; rename the key")
    return ArraySpec((action.mask_size,), "int8")


class InfoMasks:
    """Masks that an env gives in `info`; a missing row allows everything."""

    def __init__(self, num_envs: int, action: ActionSpec) -> None:
        self.spec = mask_spec(action)
        self._shape = (num_envs, *self.spec.shape)

    def read(self, info: dict[str, Any], rows: Array | None = None) -> Array:
        """Masks of all envs; where `info` has masks of some envs only, these overwrite their `rows`."""
        masks = np.ones(self._shape, np.int8) if rows is None else rows
        given = info.get(ACTION_MASK)
        if given is None:
            return masks
        if not isinstance(given, np.ndarray) or given.dtype != object:
            present = info.get(f"_{ACTION_MASK}", slice(None))
            masks[present] = self._checked(flat_rows(given))[present]
            return masks
        for env, mask in enumerate(given):
            if mask is not None:
                masks[env] = self._checked(np.concatenate([np.ravel(choice) for choice in mask])[None])[0]
        return masks

    def _checked(self, rows: Array) -> Array:
        if rows.shape[1:] != self.spec.shape:
            raise UserError(
                f"info[{ACTION_MASK!r}] has {rows.shape[1]} entries, but the action has {self.spec.shape[0]} choices"
            )
        return rows


def _entries(space: gym.Space[Any]) -> int:
    if isinstance(space, spaces.Tuple):
        return sum(_entries(inner) for inner in space.spaces)
    return math.prod(space.shape or ())


def flat_rows(batch: Nest) -> Array:
    """`[N, …]` or a tuple of them as int8 `[N, size]`."""
    if isinstance(batch, tuple | list):
        return np.concatenate([flat_rows(choice) for choice in batch], axis=1)
    rows = np.asarray(batch, np.int8)
    return rows.reshape(len(rows), -1)
