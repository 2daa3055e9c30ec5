"""The Gymnasium backend: makes N envs of any Gymnasium env, natively vectorised or one by one."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec as GymSpec
from gymnasium.envs.registration import load_env_creator
from gymnasium.vector import SyncVectorEnv

from pappus.config import EnvOptions
from pappus.envs.env_threads import ThreadedVectorEnv
from pappus.envs.external import has_no_env
from pappus.envs.gym_vector import GymVector, GymVectorEnv, trusting
from pappus.envs.vector import backend_of, first_env_seed
from pappus.errors import UserError, closest, install_line
from pappus.imports import imported_module

MUJOCO = "gymnasium.envs.mujoco."
EXTRAS = {MUJOCO: ("MuJoCo", "mujoco"), "gymnasium.envs.box2d.": ("Box2D", "box2d")}
"""What Gymnasium's envs need, by where they stand: a package, and our extra that brings it."""


def make_gym(env: str | Callable[..., Any], num_envs: int, seed: int, options: EnvOptions) -> GymVectorEnv:
    """N envs of a Gymnasium id, a `module:function` or a factory."""
    made = make_gym_vector(env, num_envs, options.kwargs, options.threads)
    return GymVectorEnv(made, first_env_seed(seed, num_envs), options.metrics)


def make_gym_vector(
    env: str | Callable[..., Any], num_envs: int, kwargs: dict[str, Any], threads: int = 0
) -> GymVector:
    """`threads` step envs that are made one by one; with 0 or 1 they are stepped one after the other."""
    source = _resolve(env) if isinstance(env, str) else env
    try:
        if isinstance(source, GymSpec):
            return _from_spec(source, num_envs, kwargs, threads)
        return _from_factory(source, num_envs, kwargs, threads)
    except gym.error.DependencyNotInstalled as missing:
        entry = str(getattr(source, "entry_point", ""))
        for place, (package, extra) in EXTRAS.items():
            if entry.startswith(place):
                line = install_line(extra)
                raise UserError(f"env {env!r} needs {package}, which is not installed; run {line}") from None
        raise UserError(f"env {env!r} needs a package that is missing: {missing}") from None


def is_one_by_one(env: str | Callable[..., Any], options: EnvOptions) -> bool:
    """Whether threads can step the envs of an actor: those that are made one by one. None is made to find out."""
    if has_no_env(env) or backend_of(env, options) != "gymnasium":
        return False
    source = _resolve(env) if isinstance(env, str) else env
    if isinstance(source, GymSpec):
        return not _native_is_equivalent(source, options.kwargs)
    return not _makes_several(source)


def _resolve(name: str) -> GymSpec | Callable[..., Any]:
    module_name, colon, attribute = name.partition(":")
    if not colon:
        return find_spec(name, name, [])
    module = imported_module(module_name, f"env {name!r}")
    factory: Callable[..., Any] | None = getattr(module, attribute, None)
    if callable(factory):
        return factory
    return find_spec(attribute, name, [other for other, value in vars(module).items() if callable(value)])


def find_spec(env_id: str, name: str, functions: list[str]) -> GymSpec:
    """Gymnasium's spec of an id; `name` is what the user wrote, `functions` what else he may have meant."""
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


def _from_spec(spec: GymSpec, num_envs: int, kwargs: dict[str, Any], threads: int) -> GymVector:
    if _native_is_equivalent(spec, kwargs):
        return trusting(gym.make_vec(spec, num_envs, vectorization_mode="vector_entry_point", **kwargs))
    _check_kwargs(spec, kwargs)
    # Passive checks cost a third of a step of a small env; `check_env` does more, once.
    kwargs = {"disable_env_checker": True, **kwargs}
    with _quiet_models(spec):
        return _one_by_one(lambda: gym.make(copy.deepcopy(spec), **kwargs), num_envs, threads)


@contextmanager
def _quiet_models(spec: GymSpec) -> Iterator[None]:
    """While envs are made, MuJoCo is silent: of each it would say on the terminal, and in a file in the user's folder,
    that Gymnasium's models are of an older version."""
    if not str(spec.entry_point).startswith(MUJOCO) or importlib.util.find_spec("mujoco") is None:
        yield
        return
    mujoco = importlib.import_module("mujoco")
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda text: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def _check_kwargs(spec: GymSpec, kwargs: dict[str, Any]) -> None:
    """Raise `UserError` for an argument that neither the env nor `gymnasium.make` takes."""
    if not kwargs or spec.entry_point is None:
        return
    creator = spec.entry_point if callable(spec.entry_point) else load_env_creator(spec.entry_point)
    _check_taken(creator, kwargs, f"env {spec.id!r}", [*inspect.signature(gym.make).parameters][1:])


def _check_taken(creator: Callable[..., Any], kwargs: dict[str, Any], what: str, more: list[str]) -> None:
    try:
        found = inspect.signature(creator).parameters
    except ValueError:  # some classes written in C have no signature
        return
    if any(one.kind is one.VAR_KEYWORD for one in found.values()):
        return
    taken = [name for name in found if name != "self"]
    for name in kwargs:
        if name not in (*taken, *more):
            hint = closest(name, taken) or f"; it takes {', '.join(taken) or 'none'}"
            raise UserError(f"{what} takes no argument {name!r} (env_options.kwargs){hint}")


def _native_is_equivalent(spec: GymSpec, kwargs: dict[str, Any]) -> bool:
    """Whether the registered vector env is the same env: it loses no wrapper and takes every argument.

    That of ale-py is not: it preprocesses, and its single env does not.
    """
    if spec.vector_entry_point is None or spec.additional_wrappers or spec.namespace == "ALE":
        return False
    entry = spec.vector_entry_point
    creator = entry if callable(entry) else load_env_creator(entry)
    return set(kwargs) <= set(inspect.signature(creator).parameters)


def _from_factory(factory: Callable[..., Any], num_envs: int, kwargs: dict[str, Any], threads: int) -> GymVector:
    _check_taken(factory, kwargs, f"env {_name(factory)!r}", [])
    if not _makes_several(factory):
        return _one_by_one(lambda: factory(**kwargs), num_envs, threads)
    made = factory(num_envs=num_envs, **kwargs)
    if not isinstance(made, gym.vector.VectorEnv):
        raise UserError(f"{_name(factory)} takes num_envs but returned a {type(made).__name__}; return a VectorEnv")
    if made.num_envs != num_envs:
        raise UserError(f"{_name(factory)} made {made.num_envs} envs for num_envs={num_envs}; make as many as asked")
    return made


def _makes_several(factory: Callable[..., Any]) -> bool:
    try:
        return "num_envs" in inspect.signature(factory).parameters
    except ValueError:  # some classes written in C have no signature
        return False


def _one_by_one(make: Callable[[], Any], num_envs: int, threads: int) -> GymVector:
    def make_checked() -> gym.Env[Any, Any]:
        env = make()
        if not isinstance(env, gym.Env):
            raise UserError(
                f"the env function returned a {type(env).__name__}; return a gymnasium.Env, "
                "or take num_envs and return a gymnasium.vector.VectorEnv"
            )
        return env

    if threads > 1 and num_envs > 1:
        return ThreadedVectorEnv([make_checked] * num_envs, threads)
    return SyncVectorEnv([make_checked] * num_envs, copy=False)


def _name(factory: Callable[..., Any]) -> str:
    return getattr(factory, "__qualname__", repr(factory))
