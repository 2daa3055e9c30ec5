"""N envs stepped together, and the backends that make them.

    o_t --step(a_t)--> Timestep(o_{t+1}, first_{t+1}, r_t, d_t, valid_t)

To add a backend, write a function `make(env, num_envs, seed, options) -> VectorEnv`, or a `VectorEnv` class whose
constructor takes these four, and name it by `--env-options.backend module:name`. An installed package offers it under a
short name with an entry point:

    [project.entry-points."pappus.env_backends"]
    mine = "my_package.envs:make"

`examples/own_backend.py` is one; `tests/contracts/env_contract.py` is the contract as a test suite.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Protocol, TypeAlias

import numpy as np

from pappus.config import EnvOptions
from pappus.envs.external import DATA_PREFIX, external_spec, is_external
from pappus.errors import PappusError, UserError, closest
from pappus.imports import imported_callable, told
from pappus.types import Array, ArraySpec, EnvSpec, Nest, Timestep

EnvSource: TypeAlias = str | Callable[..., Any]
"""A Gymnasium id, `module:id`, `module:function`, or a function that makes an env (or N, given `num_envs`)."""

ENTRY_POINTS = "pappus.env_backends"
LAST_ACTION, LAST_REWARD = "last_action", "last_reward"
SEEDS = 2**31 - 1
"""ale-py and EnvPool take signed 32-bit seeds."""

BUILT_IN = {
    "gymnasium": "pappus.envs.gym_backend:make_gym",
    "ale": "pappus.envs.atari:make_atari",
    "envpool": "pappus.envs.envpool_backend:make_envpool",
}


class VectorEnv(Protocol):
    """N envs in the time convention of `pappus.types`. Subclass it and write `spec`, `num_envs`, `reset` and `step`.

    The streams of `envs.gym_vector` turn rewards and `terminated`, `truncated` flags into timesteps. An observation may
    be overwritten by the next step: callers copy what they keep. All other arrays are new in every step. Arrays are
    C-contiguous: some CPUs round a product of matrices differently for another layout, and a resumed run would differ.
    """

    spec: EnvSpec
    """What one env shows and accepts."""
    num_envs: int
    """How many envs step together."""
    seeds: Array | None = None
    """What each env was seeded with before its first episode, where a single env with that seed begins the same."""

    def reset(self) -> Timestep:
        """Start new episodes in all envs; the first call starts from the seed, later ones continue its random stream.

        There is no transition before it: rewards and discounts are 0, and all rows are invalid."""
        ...

    def step(self, action: Array) -> Timestep:
        """Take one action per env, `[N, …]` as `spec.action.array` says."""
        ...

    def to_nest(self, batch: Nest) -> Nest:
        """A batch of observations in the env's own format, as `step` would show them."""
        return batch

    def to_action(self, action: Array) -> Array:
        """A batch of actions in the env's own units, as `step` would take them."""
        return action

    def take_metrics(self) -> Mapping[str, tuple[float, float]]:
        """What the envs measured since the last call, by name: the sum of the values, and how many they were."""
        return {}

    def render(self) -> Any:
        """A picture of env 0, or None."""
        return None

    def close(self) -> None:
        """Release resources; may be called twice."""
        return

    def snapshot(self) -> Nest | None:
        """The state to continue from bit-exactly, as arrays, numbers, strings, lists and dicts; None if unsupported.

        The last Timestep is not part of it: the caller keeps that."""
        return None

    def no_snapshot(self) -> str:
        """Why `snapshot` returns None, in words."""
        return f"{type(self).__name__} has no snapshots"

    def restore(self, snapshot: Nest) -> None:
        """Continue from a snapshot of the same env with the same number of envs."""
        raise UserError(f"{type(self).__name__} has no snapshots, so there is none to restore; start from reset()")


class WithLastInputs(VectorEnv):
    """Envs whose observations hold the last action and reward, as R2D2's networks take them.

        o_t   →   {"observation": o_t, "last_action": a_{t−1}, "last_reward": r_{t−1}}

    Both are zeros at the start of an episode. An observation that is a dict keeps its own keys and gets the two more.
    """

    def __init__(self, env: VectorEnv) -> None:
        self._env, self.num_envs, self.seeds = env, env.num_envs, env.seeds
        self.spec: EnvSpec = spec_with_last_inputs(env.spec)
        self._action, self._reward = self._zeros()

    @property
    def inner(self) -> VectorEnv:
        """The envs themselves."""
        return self._env

    @property
    def wraps(self) -> bool:
        """Whether the env's own observation, which is no dict, became the entry `observation`."""
        return not isinstance(self._env.spec.observation, dict)

    def reset(self) -> Timestep:
        self._action, self._reward = self._zeros()
        return self._shown(self._env.reset())

    def step(self, action: Array) -> Timestep:
        timestep = self._env.step(action)
        keep = ~timestep.first
        self._reward = np.where(keep, timestep.reward, np.float32(0))
        self._action = np.where(keep.reshape(-1, *[1] * (action.ndim - 1)), action, 0).astype(action.dtype)
        return self._shown(timestep)

    def note(self, action: Array, reward: Array) -> None:
        """Set the last action and reward where another env was stepped."""
        self._action, self._reward = action, reward

    def take_metrics(self) -> Mapping[str, tuple[float, float]]:
        return self._env.take_metrics()

    def render(self) -> Any:
        return self._env.render()

    def to_nest(self, batch: Nest) -> Nest:
        return self._extended(self._env.to_nest(batch))

    def to_action(self, action: Array) -> Array:
        return self._env.to_action(action)

    def close(self) -> None:
        self._env.close()

    def snapshot(self) -> Nest | None:
        inner, last = self._env.snapshot(), {LAST_ACTION: self._action.copy(), LAST_REWARD: self._reward.copy()}
        return None if inner is None else {"env": inner, **last}

    def no_snapshot(self) -> str:
        return self._env.no_snapshot()

    def restore(self, snapshot: Nest) -> None:
        self._env.restore(snapshot["env"])
        self._action, self._reward = np.array(snapshot[LAST_ACTION]), np.array(snapshot[LAST_REWARD], np.float32)

    def _zeros(self) -> tuple[Array, Array]:
        spec = self._env.spec.action.array
        return np.zeros((self.num_envs, *spec.shape), spec.dtype), np.zeros(self.num_envs, np.float32)

    def _shown(self, timestep: Timestep) -> Timestep:
        return timestep._replace(observation=self._extended(timestep.observation))

    def _extended(self, observation: Nest) -> Nest:
        return {**_as_dict(observation), LAST_ACTION: self._action, LAST_REWARD: self._reward}


def spec_with_last_inputs(spec: EnvSpec) -> EnvSpec:
    """The spec of one env with the last action, as categories where it is one of several, and the last reward."""
    own = _as_dict(spec.observation)
    for name in (LAST_ACTION, LAST_REWARD):
        if name in own:
            raise UserError(f"the env's observation already has a key {name!r}; turn env_options.last_inputs off")
    last = replace(spec.action.array, num_values=spec.action.choices or None)
    extended = {**own, LAST_ACTION: last, LAST_REWARD: ArraySpec((), "float32")}
    return replace(spec, observation=extended)


def _as_dict(observation: Nest) -> dict[str, Nest]:
    return observation if isinstance(observation, dict) else {"observation": observation}


EnvBackend: TypeAlias = Callable[[Any, int, int, EnvOptions], VectorEnv]
"""(env as the user named it, number of envs, seed, options) → the envs."""


def make_env(env: EnvSource, num_envs: int, seed: int, options: EnvOptions) -> VectorEnv:
    """Make N envs with the backend of the options."""
    if num_envs < 1:
        raise UserError(f"num_envs={num_envs} must be at least 1")
    if is_external(env):
        raise UserError(f"env {env!r} runs in another process and cannot be made here")
    if isinstance(env, str) and env.startswith(DATA_PREFIX):
        raise UserError(f"env {env!r} exists only as data and cannot be created; give the env that the data is from")
    backend = find_backend(backend_of(env, options))
    with making(env, options):
        made = backend(env, num_envs, seed, options)
    return WithLastInputs(made) if options.last_inputs else made


@contextlib.contextmanager
def making(env: EnvSource, options: EnvOptions) -> Iterator[None]:
    """Whatever an env's constructor raises becomes a sentence with its place."""
    try:
        yield
    except PappusError:
        raise
    except Exception as error:
        kwargs = f" with env_options.kwargs={options.kwargs!r:.200}" if options.kwargs else ""
        raise UserError(f"env {_name(env)!r} cannot be made{kwargs}: {told(error)}") from error


def _name(env: EnvSource) -> str:
    return env if isinstance(env, str) else str(getattr(env, "__qualname__", type(env).__name__))


def env_spec(env: EnvSource, options: EnvOptions) -> EnvSpec:
    """What one env shows and accepts; makes one and closes it, unless a file has the spec."""
    if is_external(env):
        return external_spec(str(env))
    with contextlib.closing(make_env(env, 1, 0, options)) as one:
        return one.spec


def first_env_seed(seed: int, num_envs: int) -> int:
    """The seed of env 0; the others count up from it, so that no two envs of one vector share a seed."""
    return int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0] % (SEEDS - num_envs))


def backend_of(env: EnvSource, options: EnvOptions) -> str:
    """The backend's name, with `auto` resolved: `ale` for `ALE/…`, `gymnasium` for everything else."""
    chosen = options.backend
    if chosen == "auto":
        return "ale" if isinstance(env, str) and env.startswith("ALE/") else "gymnasium"
    if not isinstance(env, str) and chosen in ("ale", "envpool"):
        raise UserError(f"backend={chosen} makes envs by id only, and a function was given; use backend=gymnasium")
    return chosen


def find_backend(name: str) -> EnvBackend:
    """A built-in backend, an installed one (entry point of the group `pappus.env_backends`), or `module:name`."""
    if name in BUILT_IN or ":" in name:
        own: EnvBackend = imported_callable(BUILT_IN.get(name, name), "env_options.backend=")
        return own
    check_backend(name)
    backend: EnvBackend = imported_callable(name, "env_options.backend=", _installed()[name])
    return backend


def check_backend(name: str) -> None:
    """Raise `UserError` for a backend that there is not; nothing of it is imported."""
    installed = [] if name in BUILT_IN or ":" in name else [*_installed()]
    if name in BUILT_IN or ":" in name or name in installed:
        return
    known = ["auto", *BUILT_IN, *installed]
    hint = closest(name, known) or f"; use {', '.join(known)} or module:name"
    raise UserError(f"env_options.backend={name!r} is not installed{hint}")


def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}

