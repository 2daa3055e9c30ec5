"""The stream that an env produces, recorded in exactly one convention.

    o_0 --a_0--> r_0,d_0  o_1 --a_1--> r_1,d_1  o_2 …

    action[t], reward[t], discount[t]  belong to the transition o_t → o_{t+1}
    discount[t]  0 if that transition terminated the episode, else 1: a truncated episode keeps 1 and
                 bootstraps from its true final observation
    first[t]     o_t starts an episode
    valid[t]     False for the pseudo-transition from a final observation to the next reset observation, whose
                 reward and discount are 0: losses and returns mask it

Arrays are time-major, `[T, N, …]`: T steps of N envs. A *nest* is one array, or dicts and tuples of arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import optree

Array: TypeAlias = npt.NDArray[Any]
Bounds: TypeAlias = tuple[tuple[float, ...], tuple[float, ...]]
Nest: TypeAlias = Any  # one leaf (array, tensor or spec), or dicts and tuples of nests

ACTION_MASK = "action_mask"
"""An observation dict with this key is masked: 1 where an action is allowed, over all choices in a row."""
ORIGIN = "origin"
"""Recorded beside the behaviour where envs of others take part: the number of the client that showed a step, int64."""
OWN = -1
"""The origin of steps of the run's own envs."""


@dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of one leaf; `num_values` says how many values an integer category can take."""

    shape: tuple[int, ...]
    dtype: str
    num_values: tuple[int, ...] | None = None
    bounds: Bounds | None = field(default=None, compare=False)
    """What an env promises: the lowest and the highest value, one for all entries or one for each, infinite where there
    is none. None: nothing is promised."""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def prefixed(self, *dims: int) -> ArraySpec:
        """The same leaf with leading dimensions, such as `[T, N]`."""
        return ArraySpec((*dims, *self.shape), self.dtype, self.num_values, self.bounds)


@dataclass(frozen=True)
class DiscreteAction:
    """One choice of `n`; actions are int64 `[N]`."""

    n: int

    @property
    def choices(self) -> tuple[int, ...]:
        return (self.n,)

    @property
    def array(self) -> ArraySpec:
        return ArraySpec((), "int64")

    @property
    def mask_size(self) -> int:
        return self.n


@dataclass(frozen=True)
class MultiDiscreteAction:
    """Several choices at once; actions are int64 `[N, len(nvec)]`, masks concatenate the choices."""

    nvec: tuple[int, ...]

    @property
    def choices(self) -> tuple[int, ...]:
        return self.nvec

    @property
    def array(self) -> ArraySpec:
        return ArraySpec((len(self.nvec),), "int64")

    @property
    def mask_size(self) -> int:
        return sum(self.nvec)


@dataclass(frozen=True)
class ContinuousAction:
    """A real vector in normalised units: −1 is the env's lower bound and 1 its upper one, where both are finite. The
    env boundary clips to the bounds; what is recorded is the output of the policy."""

    shape: tuple[int, ...]

    @property
    def choices(self) -> tuple[int, ...]:
        return ()

    @property
    def array(self) -> ArraySpec:
        return ArraySpec(self.shape, "float32")


ActionSpec: TypeAlias = DiscreteAction | MultiDiscreteAction | ContinuousAction


@dataclass(frozen=True)
class EnvSpec:
    """What one env shows and accepts, after conversion at the boundary (leaves without the env dimension)."""

    observation: Nest
    action: ActionSpec
    frame_stack: int = 1
    """How many of its newest frames the network should see at once; the env itself delivers single frames."""

    @property
    def masked(self) -> bool:
        return isinstance(self.observation, dict) and ACTION_MASK in self.observation


class Episodes(NamedTuple):
    """Episodes that ended in one step: raw returns (never clipped), lengths and which envs, one entry each."""

    returns: Array
    lengths: Array
    envs: Array


class Timestep(NamedTuple):
    """What N envs show after one step: o_t with `first`, and the transition that led to it."""

    observation: Nest
    first: Array
    reward: Array
    discount: Array
    valid: Array
    episodes: Episodes | None = None


class Request(NamedTuple):
    """What N envs ask of a central policy: a timestep `[N, …]`, and the episodes that ended with it. `episode_length`
    is 0 where no episode ended, and `episode_return` counts only where it is not 0."""

    observation: Nest
    first: Any
    reward: Any
    discount: Any
    valid: Any
    episode_return: Any
    episode_length: Any


class Unroll(NamedTuple):
    """T steps of N envs: T+1 observations and `first` flags, T of the rest, and the state before o_0.

    `behaviour` holds the recorded policy outputs for each action (for actor-critics the log-probability, for PPO the
    value beside it), `version` the version of the weights that acted. Consecutive unrolls of an env share one
    observation: the last of one is the first of the next. The same type holds arrays, tensors and specs.
    """

    observation: Nest
    first: Any
    action: Any
    reward: Any
    discount: Any
    valid: Any
    behaviour: Nest
    version: Any
    state: Nest


def unroll_spec(env: EnvSpec, behaviour: Nest, state: Nest, length: int, num_envs: int) -> Unroll:
    """Specs of an unroll of `length` steps of `num_envs` envs, as `Sink` slots are laid out."""

    def steps(spec: Nest, time: int = length) -> Nest:
        return optree.tree_map(lambda leaf: leaf.prefixed(time, num_envs), spec)

    def scalar(dtype: str) -> ArraySpec:
        return ArraySpec((length, num_envs), dtype)

    return Unroll(
        observation=steps(env.observation, length + 1), first=ArraySpec((length + 1, num_envs), "bool"),
        action=steps(env.action.array),
        reward=scalar("float32"), discount=scalar("float32"), valid=scalar("bool"),
        behaviour=steps(behaviour), version=scalar("int64"),
        state=optree.tree_map(lambda leaf: leaf.prefixed(num_envs), state),
    )


def request_spec(env: EnvSpec, *dims: int) -> Request:
    """Specs of what one env asks, or with leading dimensions what many ask at once."""

    def scalar(dtype: str) -> ArraySpec:
        return ArraySpec(dims, dtype)

    return Request(
        observation=optree.tree_map(lambda leaf: leaf.prefixed(*dims), env.observation),
        first=scalar("bool"),
        reward=scalar("float32"), discount=scalar("float32"), valid=scalar("bool"),
        episode_return=scalar("float32"), episode_length=scalar("int32"),
    )


def map_leaves(function: Callable[..., Any], nest: Nest, *rest: Nest) -> Nest:
    """`function` of every leaf (and its counterparts in `rest`); a lone array and `()`, both common, skip the walk."""
    if isinstance(nest, np.ndarray):
        return function(nest, *rest)
    return nest if isinstance(nest, tuple) and not nest else optree.tree_map(function, nest, *rest)


def leaves_of(nest: Nest) -> list[Any]:
    """All leaves in order; a lone array, the common case, skips the walk."""
    return [nest] if isinstance(nest, np.ndarray) else optree.tree_leaves(nest)
