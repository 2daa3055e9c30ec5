"""Envs that cost nothing: they show what the real ones show, at random, so that all else of a run can be measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import optree

from pappus.config import EnvOptions
from pappus.envs.vector import VectorEnv
from pappus.types import ACTION_MASK, Array, ArraySpec, EnvSpec, Episodes, Nest, Timestep

BACKEND = f"{__name__}:make_stand_in"
"""The env backend that makes them."""
SHORTEST = 100
"""Steps of the shortest episode; none is twice as long."""


@dataclass(frozen=True)
class StandIn:
    """What a run gets in place of an env."""

    spec: EnvSpec

    def __call__(self) -> NoReturn:
        raise TypeError(f"a stand-in is made by {BACKEND}")


class StandInEnv(VectorEnv):
    """N envs that always show the same random observation, and whose episodes do not end all at once."""

    def __init__(self, spec: EnvSpec, num_envs: int, seed: int) -> None:
        self.spec, self.num_envs = spec, num_envs
        random = np.random.default_rng(seed)
        self._shown: Nest = _shown(spec, num_envs, random)
        self._time = np.zeros(num_envs, np.int64)
        self._lengths = SHORTEST + np.arange(num_envs) % SHORTEST

    def reset(self) -> Timestep:
        self._time[:] = 0
        no = np.zeros(self.num_envs, np.bool_)
        nothing = np.zeros(self.num_envs, np.float32)
        return Timestep(self._shown, ~no, nothing, nothing.copy(), no)

    def step(self, action: Array) -> Timestep:
        self._time += 1
        first = self._time >= self._lengths
        going_on = (~first).astype(np.float32)
        envs = first.nonzero()[0]
        lengths = self._time[envs]
        episodes = Episodes(lengths.astype(np.float64), lengths, envs) if len(envs) else None
        self._time[first] = 0
        return Timestep(
            self._shown, first, np.ones(self.num_envs, np.float32), going_on, np.ones(self.num_envs, np.bool_), episodes
        )


def make_stand_in(env: Any, num_envs: int, seed: int, options: EnvOptions) -> StandInEnv:
    """N of them, of a `StandIn`."""
    return StandInEnv(env.spec, num_envs, seed)


def _shown(spec: EnvSpec, num_envs: int, random: np.random.Generator) -> Nest:
    shown: Nest = optree.tree_map(lambda array: _drawn(array, num_envs, random), spec.observation)
    if isinstance(shown, dict) and ACTION_MASK in shown:
        shown[ACTION_MASK] = np.ones_like(shown[ACTION_MASK])
    return shown


def _drawn(spec: ArraySpec, num_envs: int, random: np.random.Generator) -> Array:
    shape, kind = (num_envs, *spec.shape), np.dtype(spec.dtype)
    if kind.kind in "iub":
        most = min(spec.num_values) if spec.num_values else 2 if kind.kind == "b" else 100
        return random.integers(0, most, shape).astype(kind)
    return random.standard_normal(shape).astype(kind)
