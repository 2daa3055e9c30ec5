"""What an actor steps: N envs at once, whatever they are made of.

    o_t --step(a_t)--> Timestep(o_{t+1}, first_{t+1}, r_t, d_t, valid_t)

`reset()` gives the first observations. It has no transition behind it: its rewards and discounts are 0 and its
rows are invalid.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from pappus.config import EnvOptions
from pappus.envs.external import external_spec, is_external
from pappus.envs.last_inputs import WithLastInputs
from pappus.errors import UserError
from pappus.types import Array, EnvSpec, Nest, Timestep

EnvSource: TypeAlias = str | Callable[..., Any]
"""A Gymnasium id, `module:id`, `module:function`, or a function that makes an env (or N, given `num_envs`)."""


class VectorEnv(Protocol):
    """N envs in the time convention of `pappus.types`.

    An observation may be overwritten by the next step: copy what must outlive it. All other arrays are new.
    """

    @property
    def spec(self) -> EnvSpec:
        """What one env shows and accepts."""

    @property
    def num_envs(self) -> int:
        """How many envs are stepped at once."""

    def reset(self) -> Timestep:
        """Start all envs anew; the first call starts from the seed, later ones continue its random stream."""

    def step(self, action: Array) -> Timestep:
        """Take one action per env, `[N, …]` as `spec.action.array` says."""

    def to_nest(self, batch: Nest) -> Nest:
        """A batch of observations of the env's own make, as `step` would show them."""

    def to_action(self, action: Array) -> Array:
        """A batch of actions in the env's own units, as `step` would take them."""

    def close(self) -> None:
        """Release what the envs hold; may be called twice."""

    def snapshot(self) -> Nest | None:
        """Everything needed to go on bit-exactly after `reset()`, as arrays, numbers, strings, lists and dicts.

        None when the envs cannot be snapshotted. The last Timestep is not part of it: its holder keeps it.
        """

    def restore(self, snapshot: Nest) -> None:
        """Go on from a snapshot of the same env with as many envs."""


def make_env(env: EnvSource, num_envs: int, seed: int, options: EnvOptions) -> VectorEnv:
    """Make N envs, natively vectorised where possible."""
    if num_envs < 1:
        raise UserError(f"num_envs={num_envs} steps nothing; use 1 or more")
    if is_external(env):
        raise UserError(f"env {env!r} is stepped elsewhere, and cannot be made here")
    made = _make(env, num_envs, seed, options)
    return WithLastInputs(made) if options.last_inputs else made


def _make(env: EnvSource, num_envs: int, seed: int, options: EnvOptions) -> VectorEnv:
    match backend_of(env, options):
        case "ale":
            from pappus.envs.atari import make_atari

            return make_atari(str(env), num_envs, seed, options)
        case "envpool":
            from pappus.envs.envpool_adapter import make_envpool

            return make_envpool(str(env), num_envs, seed, options)
        case _:
            from pappus.envs.gym_adapter import make_gym

            return make_gym(env, num_envs, seed, options)


def env_spec(env: EnvSource, options: EnvOptions) -> EnvSpec:
    """What one env shows and accepts; makes one and closes it, unless a file says it."""
    if is_external(env):
        return external_spec(str(env))
    with contextlib.closing(make_env(env, 1, 0, options)) as one:
        return one.spec


def backend_of(env: EnvSource, options: EnvOptions) -> str:
    """`gymnasium`, `ale` or `envpool`."""
    chosen = options.backend
    if chosen == "auto":
        return "ale" if isinstance(env, str) and env.startswith("ALE/") else "gymnasium"
    if not isinstance(env, str) and chosen != "gymnasium":
        raise UserError(f"backend={chosen} makes envs by id only, and a function was given; use backend=gymnasium")
    return chosen
