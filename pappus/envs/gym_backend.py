"""The Gymnasium backend: any Gymnasium env, natively vectorised or one by one, in our time convention."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import optree
from gymnasium.envs.registration import EnvSpec as GymSpec
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from pappus.config import EnvOptions
from pappus.envs.autoreset import NextStepStream, SameStepStream, Stream
from pappus.envs.masks import InfoMasks, flat_rows
from pappus.envs.snapshot import capture, restore
from pappus.envs.spaces import action_converter, observation_converter
from pappus.envs.vector import VectorEnv, first_env_seed
from pappus.errors import UserError, closest
from pappus.types import ACTION_MASK, Array, EnvSpec, Nest, Timestep

GymVector: TypeAlias = gym.vector.VectorEnv[Any, Any, Any]


def make_gym(env: str | Callable[..., Any], num_envs: int, seed: int, options: EnvOptions) -> GymVectorEnv:
    """N envs of a Gymnasium id, a `module:function` or a factory."""
    return GymVectorEnv(make_gym_vector(env, num_envs, options.kwargs), first_env_seed(seed, num_envs))


def autoreset_mode(env: GymVector) -> AutoresetMode:
    """How the env resets when an episode ends; an env that does not declare it is refused: guessing corrupts data."""
    mode = env.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(mode)
    except ValueError:
        raise UserError(
            f"{type(env).__name__} has metadata['autoreset_mode']={mode!r}; "
            "set the gymnasium.vector.AutoresetMode that its step() follows"
        ) from None


class GymVectorEnv(VectorEnv):
    """A Gymnasium vector env in our time convention; `first_seed` is None if it is seeded already."""

    def __init__(self, env: GymVector, first_seed: int | None) -> None:
        self.env = env
        self.num_envs = env.num_envs
        self._autoreset = autoreset_mode(env)
        next_step = self._autoreset is AutoresetMode.NEXT_STEP
        self._stream: Stream = NextStepStream(env.num_envs) if next_step else SameStepStream(env.num_envs)
        action, self._convert_action = action_converter(env.single_action_space)
        observation, self._convert = observation_converter(env.single_observation_space, action)
        # Only a reset shows whether an env gives masks; the first call of reset() returns this start.
        self._start: tuple[Nest, dict[str, Any]] | None = env.reset(seed=first_seed)
        self._masks: InfoMasks | None = None
        if ACTION_MASK in self._start[1] and not (isinstance(observation, dict) and ACTION_MASK in observation):
            self._masks = InfoMasks(env.num_envs, action)
            observation = {"observation": observation, ACTION_MASK: self._masks.spec}
        self.spec = EnvSpec(observation, action, env.metadata.get("frame_stack", 1))

    def reset(self) -> Timestep:
        """Start new episodes; the first call starts from the seed."""
        observation, info = self._start or self.env.reset()
        self._start = None
        masks = None if self._masks is None else self._masks.read(info)
        return Timestep(self._shown(observation, masks), *self._stream.reset())

    def step(self, action: Array) -> Timestep:
        """Take one action per env."""
        observation, reward, terminated, truncated, info = self.env.step(self._convert_action(action))
        transition = self._stream.step(reward, terminated, truncated)
        masks = None if self._masks is None else self._masks.read(info)
        if transition.episodes is not None and self._autoreset is AutoresetMode.DISABLED:
            observation, masks = self._reset_ended(transition.first, observation, masks)
        return Timestep(self._shown(observation, masks), *transition)

    def to_nest(self, batch: Nest) -> Nest:
        """Observations in the env's own format; with masks by info as `{"observation": …, "action_mask": …}`."""
        if self._masks is None:
            return self._convert(batch)
        return self._shown(batch["observation"], flat_rows(batch[ACTION_MASK]))

    def to_action(self, action: Array) -> Array:
        """A batch of actions in the env's units."""
        return self._convert_action(action)

    def render(self) -> Any:
        """A picture of env 0, if the env's render mode gives one."""
        pictures = self.env.render()
        return pictures[0] if pictures else None

    def close(self) -> None:
        """Close the envs."""
        self.env.close()

    def snapshot(self) -> Nest | None:
        """The envs' attributes and the running episodes; None when an attribute is of an unknown mutable type."""
        envs = capture(self.env)
        return None if envs is None else {"envs": envs, "stream": self._stream.snapshot()}

    def restore(self, snapshot: Nest) -> None:
        """Continue from a snapshot."""
        restore(self.env, snapshot["envs"])
        self._stream.restore(snapshot["stream"])
        self._start = None

    def _shown(self, observation: Nest, masks: Array | None) -> Nest:
        nest = self._convert(observation)
        return nest if masks is None else {"observation": nest, ACTION_MASK: masks}

    def _reset_ended(self, ended: Array, observation: Nest, masks: Array | None) -> tuple[Nest, Array | None]:
        """Reset the envs that ended and show their first observation beside the others' newest one."""
        fresh, info = self.env.reset(options={"reset_mask": ended.copy()})
        if masks is not None and self._masks is not None:
            masks[ended] = 1
            masks = self._masks.read(info, masks)

        def merge(old: Array, new: Array) -> Array:
            rows = ended.reshape(-1, *[1] * (np.ndim(old) - 1))
            return np.where(rows, new, old)

        return optree.tree_map(merge, observation, fresh), masks


def make_gym_vector(env: str | Callable[..., Any], num_envs: int, kwargs: dict[str, Any]) -> GymVector:
    """N envs of a Gymnasium id, a `module:function` or a factory."""
    source = _resolve(env) if isinstance(env, str) else env
    try:
        if isinstance(source, GymSpec):
            return _from_spec(source, num_envs, kwargs)
        return _from_factory(source, num_envs, kwargs)
    except gym.error.DependencyNotInstalled as missing:
        raise UserError(f"env {env!r} needs a package that is missing: {missing}") from None


def takes_num_envs(factory: Callable[..., Any]) -> bool:
    """Whether a factory makes N envs at once."""
    try:
        return "num_envs" in inspect.signature(factory).parameters
    except ValueError:  # some classes written in C have no signature
        return False


def _resolve(name: str) -> GymSpec | Callable[..., Any]:
    module_name, colon, attribute = name.partition(":")
    if not colon:
        return _find_spec(name, name, [])
    module = _import(module_name, name)
    factory: Callable[..., Any] | None = getattr(module, attribute, None)
    if callable(factory):
        return factory
    return _find_spec(attribute, name, [other for other, value in vars(module).items() if callable(value)])


def _import(module_name: str, env: str) -> Any:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise UserError(f"env {env!r} needs module {module_name!r}, which cannot be found; check PYTHONPATH") from None


def _find_spec(env_id: str, name: str, functions: list[str]) -> GymSpec:
    registered = gym.registry.get(env_id)
    if registered is None and importlib.util.find_spec("ale_py") is not None:
        gym.register_envs(importlib.import_module("ale_py"))
    try:
        return gym.spec(env_id)
    except gym.error.Error:
        hint = (
            closest(env_id, [*functions, *gym.registry])
            or "; `python -c 'import gymnasium; gymnasium.pprint_registry()'` lists all"
        )
        raise UserError(f"env {name!r} is no Gymnasium id and no function of a module{hint}") from None


def _from_spec(spec: GymSpec, num_envs: int, kwargs: dict[str, Any]) -> GymVector:
    if _native_is_equivalent(spec, kwargs):
        return _trusting(gym.make_vec(spec, num_envs, vectorization_mode="vector_entry_point", **kwargs))
    # Passive checks cost a third of a step of a small env; `check_env` does more, once.
    kwargs = {"disable_env_checker": True, **kwargs}
    return _one_by_one(lambda: gym.make(copy.deepcopy(spec), **kwargs), num_envs)


def _trusting(env: GymVector) -> GymVector:
    """The same env, which checks only the shape of actions.

    Native vector envs compare every action with the bounds of the space, which takes a sixth of a step of CartPole;
    our actions are within them by construction.
    """
    space: Any = copy.copy(env.unwrapped.action_space)  # other envs may share it
    space.contains = partial(_has_shape, space.shape)
    env.unwrapped.action_space = space
    return env


def _has_shape(shape: tuple[int, ...], action: Any) -> bool:
    return bool(action.shape == shape)


def _native_is_equivalent(spec: GymSpec, kwargs: dict[str, Any]) -> bool:
    """Whether the registered vector env is the same env: it loses no wrapper and takes every argument.

    That of ale-py is not: it preprocesses, and its single env does not.
    """
    if spec.vector_entry_point is None or spec.additional_wrappers or spec.namespace == "ALE":
        return False
    entry = spec.vector_entry_point
    creator = entry if callable(entry) else load_env_creator(entry)
    return set(kwargs) <= set(inspect.signature(creator).parameters)


def _from_factory(factory: Callable[..., Any], num_envs: int, kwargs: dict[str, Any]) -> GymVector:
    if not takes_num_envs(factory):
        return _one_by_one(lambda: factory(**kwargs), num_envs)
    made = factory(num_envs=num_envs, **kwargs)
    if not isinstance(made, gym.vector.VectorEnv):
        raise UserError(f"{_name(factory)} takes num_envs but returned a {type(made).__name__}; return a VectorEnv")
    if made.num_envs != num_envs:
        raise UserError(f"{_name(factory)} was asked for num_envs={num_envs} and made {made.num_envs}; make as many")
    return made


def _one_by_one(make: Callable[[], Any], num_envs: int) -> GymVector:
    def make_checked() -> gym.Env[Any, Any]:
        env = make()
        if not isinstance(env, gym.Env):
            raise UserError(
                f"the env function returned a {type(env).__name__}; return a gymnasium.Env, "
                "or take num_envs and return a gymnasium.vector.VectorEnv"
            )
        return env

    return SyncVectorEnv([make_checked] * num_envs, copy=False)


def _name(factory: Callable[..., Any]) -> str:
    return getattr(factory, "__qualname__", repr(factory))
