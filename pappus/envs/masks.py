"""Action masks: int8 rows over all choices of an action, 1 where it is allowed.

An env gives them in its observation (a Dict space with the key `action_mask`) or in its `info`; in both cases the
network gets them in the observation. With several choices per action the rows are concatenated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from pappus.errors import UserError
from pappus.types import ACTION_MASK, ActionSpec, Array, ArraySpec, ContinuousAction, Nest

_INT8 = np.dtype(np.int8)


def mask_spec(action: ActionSpec) -> ArraySpec:
    """Spec of one env's mask; continuous actions have none."""
    if isinstance(action, ContinuousAction):
        raise UserError(f"{ACTION_MASK!r} comes with a continuous action, which cannot be masked; rename the key")
    return ArraySpec((action.mask_size,), "int8")


def mask_from_observation(space: gym.Space[Any], action: ActionSpec) -> tuple[ArraySpec, Callable[[Nest], Array]]:
    """Spec of the mask that is part of the observation, and the function that flattens a batch of it."""
    spec, size = mask_spec(action), _entries(space)
    if size != spec.shape[0]:
        raise UserError(f"observation[{ACTION_MASK!r}] has {size} entries, but the action has {spec.shape[0]} choices")
    return spec, flat_rows


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
        if isinstance(given, np.ndarray) and given.dtype == object:
            self._read_one_by_one(given, masks)
            return masks
        present = info.get(f"_{ACTION_MASK}", slice(None))
        masks[present] = self._checked(flat_rows(given))[present]
        return masks

    def _read_one_by_one(self, given: Array, masks: Array) -> None:
        for env, mask in enumerate(given):
            if mask is not None:
                masks[env] = self._checked(np.concatenate([np.ravel(choice) for choice in mask])[None])[0]

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
    rows = np.asarray(batch, _INT8)
    return rows.reshape(len(rows), -1)
