"""`pappus check-env`: what an env is, how fast it steps, and what is wrong with it."""

from __future__ import annotations

import contextlib
import inspect
import time
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np
import optree
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TimeLimit

from pappus.config import EnvOptions
from pappus.envs.gym_backend import make_gym_vector
from pappus.envs.gym_vector import GymVector, GymVectorEnv, autoreset_mode
from pappus.envs.vector import EnvSource, VectorEnv, backend_of, first_env_seed, make_env, making
from pappus.envs.watch import Notes, WatchedEnv, WatchedVectorEnv
from pappus.types import ACTION_MASK, Array, ArraySpec, ContinuousAction, DiscreteAction, EnvSpec, Nest, Timestep

Facts = list[tuple[str, str]]

SIZES = (1, 16, 64)
MAX_STEPS = 5_000
"""Steps of random play in search of problems and of an end, unless time runs out before."""
_COMPARED_STEPS = 200
_PATIENCE = 20.0
"""N envs are measured only if making them takes less than this many times the measurement."""


@dataclass
class Report:
    """Facts, steps per second by number of envs, problems (the env is wrong), warnings (it may be intended)."""

    env: str
    facts: Facts = field(default_factory=list)
    rates: dict[int, float | None] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [self.env, *(f"  {name:<12} {text}" for name, text in self.facts)]
        for num_envs, rate in self.rates.items():
            speed = "not measured: making them takes too long" if rate is None else f"{rate:,.0f} steps/s"
            lines.append(f"  {f'{num_envs} envs' if num_envs > 1 else '1 env':<12} {speed}")
        lines += [f"problem: {problem}" for problem in self.problems]
        lines += [f"warning: {warning}" for warning in self.warnings]
        return "\n".join(lines if self.problems else [*lines, "no problems found"])


def check_env(env: EnvSource, options: EnvOptions, seconds: float = 2.0) -> Report:
    """Play randomly, compare with the spaces, and time it; an exception of the env itself is raised."""
    report, notes = Report(env if isinstance(env, str) else getattr(env, "__qualname__", repr(env))), Notes()
    limited = _look_at_source(env, options, report)
    if not report.problems:
        ended = _play(env, options, report, notes, seconds / 4)
        if not (ended or limited or notes.problems):
            text = "random play ended no episode and there is no time limit; only ended ones are reported"
            report.warnings.append(text)
        report.problems += notes.problems
    if not report.problems:
        _compare(env, options, report)
        _measure(env, options, report, seconds / 4)
    return report


def _look_at_source(env: EnvSource, options: EnvOptions, report: Report) -> bool:
    """Note what the env declares; whether its episodes are limited in time, as far as that can be known."""
    ours = backend_of(env, options) == "gymnasium"
    with making(env, options):
        made: Any = make_gym_vector(env, 1, options.kwargs) if ours else make_env(env, 1, 0, options)
    with contextlib.closing(made):
        source: Any = made if ours else getattr(made, "env", None)
        if not hasattr(source, "single_observation_space"):  # a backend that is not built on Gymnasium
            report.facts.append(("vectorised", f"natively, by {type(made).__name__}"))
            return True
        report.facts += _source_facts(source, options)
        if ours:
            _look_at_reset(source, report)
        return _time_limit(source, options) is not None


def _look_at_reset(source: GymVector, report: Report) -> None:
    inner = source.envs[0].unwrapped if isinstance(source, SyncVectorEnv) else source.unwrapped
    parameters = inspect.signature(inner.reset).parameters.values()
    if not any(p.name == "seed" or p.kind is p.VAR_KEYWORD for p in parameters):
        name = f"{type(inner).__name__}.reset"
        report.problems.append(f"{name} takes no seed; write reset(self, *, seed=None, options=None)")


def _watched(env: EnvSource, options: EnvOptions, notes: Notes) -> VectorEnv:
    if backend_of(env, options) != "gymnasium":
        return make_env(env, 1, 0, options)
    vector: GymVector = make_gym_vector(env, 1, options.kwargs)
    if isinstance(vector, SyncVectorEnv):
        vector.envs = [WatchedEnv(one, notes) for one in vector.envs]
    else:
        vector = WatchedVectorEnv(vector, notes)
    return GymVectorEnv(vector, first_env_seed(0, 1))


def _play(env: EnvSource, options: EnvOptions, report: Report, notes: Notes, seconds: float) -> bool:
    """Random play with checks; whether an episode ended."""
    try:
        with contextlib.closing(_watched(env, options, notes)) as one:
            report.facts += _spec_facts(one.spec)
            return _play_on(one, notes, seconds)
    except Exception:
        if notes.problems:  # it follows from what was noted, and is less clear
            return False
        raise


def _play_on(env: VectorEnv, notes: Notes, seconds: float) -> bool:
    rng, deadline = np.random.default_rng(0), time.perf_counter() + seconds
    timestep, steps, ended = env.reset(), 0, False
    while steps < MAX_STEPS and (steps < _COMPARED_STEPS or time.perf_counter() < deadline):
        _look_at_masks(env.spec, timestep, notes)
        timestep = env.step(random_action(env.spec, timestep.observation, 1, rng))
        steps += 1
        ended = ended or timestep.episodes is not None
    return ended


def _look_at_masks(spec: EnvSpec, timestep: Timestep, notes: Notes) -> None:
    if not spec.masked:
        return
    masks = timestep.observation[ACTION_MASK]
    if not np.isin(masks, (0, 1)).all():
        notes.add(ACTION_MASK, "values", f"has the value {masks[~np.isin(masks, (0, 1))][0]}; use 0 and 1")
    for choice, part in enumerate(_by_choice(spec, masks)):
        if not part.any(axis=1).all():
            notes.add(ACTION_MASK, f"empty {choice}", f"forbids everything for choice {choice}; allow at least one")


def _compare(env: EnvSource, options: EnvOptions, report: Report) -> None:
    """Two envs with one seed and the same actions show the same."""
    with (
        contextlib.closing(make_env(env, 1, 0, options)) as left,
        contextlib.closing(make_env(env, 1, 0, options)) as right,
    ):
        rng, pair = np.random.default_rng(0), (left.reset(), right.reset())
        report.facts.append(("snapshots", "none" if left.snapshot() is None else "yes"))
        for step in range(_COMPARED_STEPS):
            different = _difference(*pair)
            if different:
                text = f"not reproducible: with the same seed and actions, {different} after {step} steps"
                report.warnings.append(text)
                return
            action = random_action(left.spec, pair[0].observation, 1, rng)
            pair = (left.step(action), right.step(action))


def _difference(left: Timestep, right: Timestep) -> str:
    for name, a, b in zip(Timestep._fields[:5], left, right, strict=False):
        paths, leaves, _ = optree.tree_flatten_with_path(a)
        for path, x, y in zip(paths, leaves, optree.tree_leaves(b), strict=True):
            if not np.array_equal(x, y):
                where = tuple(int(i) for i in np.argwhere(np.not_equal(x, y))[0])
                place = name + "".join(f"[{key!r}]" for key in path)
                return f"{place} at index {where[1:]} is {x[where]} and {y[where]}"
    return ""


def _measure(env: EnvSource, options: EnvOptions, report: Report, seconds: float) -> None:
    cost_per_env = 0.0
    for num_envs in SIZES:
        report.rates[num_envs] = None
        if num_envs * cost_per_env < _PATIENCE * seconds:
            began = time.perf_counter()
            with contextlib.closing(make_env(env, num_envs, 0, options)) as envs:
                start = envs.reset()
                cost_per_env = (time.perf_counter() - began) / num_envs
                report.rates[num_envs] = _rate(envs, start, seconds)


def _rate(envs: VectorEnv, timestep: Timestep, seconds: float) -> float:
    rng, steps = np.random.default_rng(0), 0
    action = random_action(envs.spec, timestep.observation, envs.num_envs, rng)
    began = time.perf_counter()
    while time.perf_counter() - began < seconds or not steps:
        if envs.spec.masked:
            action = random_action(envs.spec, timestep.observation, envs.num_envs, rng)
        timestep = envs.step(action)
        steps += 1
    return steps * envs.num_envs / (time.perf_counter() - began)


def _source_facts(source: Any, options: EnvOptions) -> Facts:
    """Spaces, vectorisation, autoreset and time limit of the vector env that a backend steps."""
    vectorised, limit = f"natively, by {type(source).__name__}", _time_limit(source, options)
    if isinstance(source, SyncVectorEnv):
        vectorised = f"no, {type(source.envs[0].unwrapped).__name__} is stepped one by one"
    return [
        ("observation", str(source.single_observation_space)), ("action", str(source.single_action_space)),
        ("vectorised", vectorised),
        ("autoreset", autoreset_mode(source).name.lower().replace("_", " ")),
        ("time limit", f"{limit:,} steps" if limit else "none"),
    ]


def _spec_facts(spec: EnvSpec) -> Facts:
    paths, leaves, _ = optree.tree_flatten_with_path(spec.observation)
    named = zip(paths, leaves, strict=True)
    shown = [f"{'.'.join(map(str, path))}{': ' if path else ''}{_leaf(leaf)}" for path, leaf in named]
    stack = f", {spec.frame_stack} newest frames at once" if spec.frame_stack > 1 else ""
    seen, masks = ", ".join(shown) + stack, "yes" if spec.masked else "none"
    return [("learner sees", seen), ("learner acts", _action(spec)), ("masks", masks)]


def _time_limit(source: Any, options: EnvOptions) -> int | None:
    """Steps after which an episode is truncated, where that can be known."""
    if isinstance(source, SyncVectorEnv):
        env = source.envs[0]
        while isinstance(env, gym.Wrapper) and not isinstance(env, TimeLimit):
            env = env.env
        return int(env._max_episode_steps) if isinstance(env, TimeLimit) else None
    if hasattr(source, "ale"):
        return options.atari.max_frames // options.atari.frame_skip
    limit = getattr(source, "max_episode_steps", None) or getattr(source, "config", {}).get("max_episode_steps")
    return None if limit is None else int(limit)


def _leaf(leaf: ArraySpec) -> str:
    values = f" of {'·'.join(map(str, leaf.num_values))} values" if leaf.num_values else ""
    return f"{leaf.dtype} {list(leaf.shape)}{values}"


def _action(spec: EnvSpec) -> str:
    action = spec.action
    if isinstance(action, ContinuousAction):
        return f"{list(action.shape)} numbers, -1 to 1 from bound to bound"
    if isinstance(action, DiscreteAction):
        return f"one of {action.n}"
    return f"one of each of {', '.join(map(str, action.nvec))}"


def random_action(spec: EnvSpec, observation: Nest, num_envs: int, rng: np.random.Generator) -> Array:
    """One action per env, uniform over the allowed ones; continuous ones also exceed the bounds."""
    action = spec.action
    if isinstance(action, ContinuousAction):
        return rng.uniform(-1.25, 1.25, (num_envs, *action.shape)).astype(np.float32)
    scores = rng.random((num_envs, action.mask_size))
    if spec.masked:
        scores[observation[ACTION_MASK] == 0] = -1
    choices = np.stack([part.argmax(axis=1) for part in _by_choice(spec, scores)], axis=1)
    return choices[:, 0] if isinstance(action, DiscreteAction) else choices


def _by_choice(spec: EnvSpec, rows: Array) -> list[Array]:
    """`[N, mask_size]` cut into one `[N, n]` per choice of the action."""
    return np.split(rows, np.cumsum(spec.action.choices)[:-1], axis=1)
