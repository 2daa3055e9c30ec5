"""Gymnasium spaces as specs, and how batches cross the boundary: observations in, actions out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from pappus.envs.masks import mask_from_observation
from pappus.errors import UserError
from pappus.types import (
    ACTION_MASK,
    ActionSpec,
    Array,
    ArraySpec,
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


def observation_converter(space: Space, action: ActionSpec) -> tuple[Nest, ToNest]:
    """Spec of what one env shows, and the function that converts a batch of it."""
    if isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces:
        rest = spaces.Dict({key: inner for key, inner in space.spaces.items() if key != ACTION_MASK})
        mask_spec, to_mask = mask_from_observation(space[ACTION_MASK], action)
        spec, to_nest = _converter(rest, "observation")
        return (
            {**spec, ACTION_MASK: mask_spec},
            lambda batch: {**to_nest(batch), ACTION_MASK: to_mask(batch[ACTION_MASK])},
        )
    return _converter(space, "observation")


def action_converter(space: Space) -> tuple[ActionSpec, ToAction]:
    """Spec of the actions, and the function from a batch in our units to a batch in the env's."""
    if isinstance(space, spaces.Discrete):
        return DiscreteAction(int(space.n)), _shifted(int(space.start), (), space.dtype)
    if isinstance(space, spaces.MultiDiscrete):
        nvec = tuple(int(n) for n in space.nvec.ravel())
        return MultiDiscreteAction(nvec), _shifted(space.start, space.shape, space.dtype)
    if isinstance(space, spaces.Box) and np.dtype(space.dtype).kind in "fiu":
        return ContinuousAction(space.shape), partial(_to_bounds, *_affine(space), space)
    raise UserError(f"action is {space}, which has no policy; use Discrete, MultiDiscrete or a numeric Box")


def _converter(space: Space, path: str) -> tuple[Nest, ToNest]:
    if isinstance(space, spaces.Dict):
        return _dict_converter(space, path)
    if isinstance(space, spaces.Tuple):
        parts = [_converter(inner, f"{path}[{i}]") for i, inner in enumerate(space.spaces)]
        converts = [convert for _, convert in parts]
        return (
            tuple(spec for spec, _ in parts),
            lambda batch: tuple(convert(item) for convert, item in zip(converts, batch, strict=True)),
        )
    return _leaf_converter(space, path)


def _dict_converter(space: spaces.Dict, path: str) -> tuple[Nest, ToNest]:
    parts = {key: _converter(inner, f"{path}[{key!r}]") for key, inner in space.spaces.items()}
    converts = [(key, convert) for key, (_, convert) in parts.items()]
    return (
        {key: spec for key, (spec, _) in parts.items()},
        lambda batch: {key: convert(batch[key]) for key, convert in converts},
    )


def _leaf_converter(space: Space, path: str) -> tuple[Nest, ToNest]:
    if isinstance(space, spaces.Box):
        dtype = np.dtype(_STORED_AS.get(str(space.dtype), str(space.dtype)))
        return ArraySpec(space.shape, str(dtype)), partial(np.asarray, dtype=dtype)
    if isinstance(space, spaces.MultiBinary):
        return ArraySpec(space.shape, "int8"), partial(np.asarray, dtype=np.dtype(np.int8))
    if isinstance(space, spaces.Discrete):
        return ArraySpec((), "int64", (int(space.n),)), _counted_from(int(space.start))
    if isinstance(space, spaces.MultiDiscrete):
        values = tuple(int(n) for n in space.nvec.ravel())
        return ArraySpec(space.shape, "int64", values), _counted_from(space.start)
    raise UserError(
        f"{path} is {space}, which has no fixed array; use Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple"
    )


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


def _affine(space: spaces.Box) -> tuple[Array, Array]:
    """Scale and offset that map -1..1 to low..high; units of the env where a bound is infinite."""
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    finite = np.isfinite(low) & np.isfinite(high)
    scale = np.where(finite, np.where(finite, high, 1) / 2 - np.where(finite, low, -1) / 2, 1)
    offset = np.where(finite, np.where(finite, high, 0) / 2 + np.where(finite, low, 0) / 2, 0)
    return scale.astype(np.float32), offset.astype(np.float32)


def _to_bounds(scale: Array, offset: Array, space: spaces.Box, action: Array) -> Array:
    wanted: Array = np.clip(action * scale + offset, space.low, space.high)
    dtype = np.dtype(space.dtype)
    return np.asarray(np.rint(wanted) if dtype.kind in "iu" else wanted, dtype)
