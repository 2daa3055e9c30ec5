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

from pappus.config import EnvOptions
from pappus.envs.gym_adapter import GymVectorEnv, autoreset_mode
from pappus.envs.gym_source import GymVector, make_gym_vector
from pappus.envs.sampling import by_choice, random_action
from pappus.envs.seeds import first_env_seed
from pappus.envs.snapshot import obstacle
from pappus.envs.vector import EnvSource, VectorEnv, backend_of, make_env
from pappus.envs.watch import Notes, WatchedEnv, WatchedVectorEnv
from pappus.types import ACTION_MASK, Array, ContinuousAction, DiscreteAction, EnvSpec, Nest, Timestep

SIZES = (1, 16, 64)
MAX_STEPS = 5_000
"""Steps of random play in search of problems and of an end, unless the time is up before."""
_COMPARED_STEPS = 200
_PATIENCE = 5.0
"""A number of envs is measured only if making them takes less than so many times the given seconds."""


@dataclass
class Report:
    """Facts, steps per second by number of envs, problems (the env is wrong) and warnings (it may be meant so)."""

    env: str
    facts: list[tuple[str, str]] = field(default_factory=list)
    rates: dict[int, float | None] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [self.env, *(f"  {name:<12} {text}" for name, text in self.facts)]
        for num_envs, rate in self.rates.items():
            speed = "not measured: making so many takes too long" if rate is None else f"{rate:,.0f} steps/s"
            lines.append(f"  {f'{num_envs} envs' if num_envs > 1 else '1 env':<12} {speed}")
        lines += [f"problem: {problem}" for problem in self.problems]
        lines += [f"warning: {warning}" for warning in self.warnings]
        return "\n".join(lines if self.problems else [*lines, "no problems found"])


def check_env(env: EnvSource, options: EnvOptions, seconds: float = 2.0) -> Report:
    """Play randomly, compare with what the spaces promise, and time it; an exception of the env itself is raised."""
    report = Report(env if isinstance(env, str) else getattr(env, "__qualname__", repr(env)))
    if _takes_no_seed(env, options, report):
        return report
    began = time.perf_counter()
    notes = Notes()
    with contextlib.closing(_watched(env, options, notes)) as one:
        cost = time.perf_counter() - began
        report.facts = _facts(one, options)
        _play(one, notes, report, seconds / 4)
    report.problems += notes.problems
    if not report.problems:
        _compare(env, options, report)
        for num_envs in SIZES:
            affordable = num_envs * cost < _PATIENCE * seconds
            report.rates[num_envs] = _rate(env, options, num_envs, seconds / 4) if affordable else None
    return report


def _takes_no_seed(env: EnvSource, options: EnvOptions, report: Report) -> bool:
    if backend_of(env, options) != "gymnasium":
        return False
    with contextlib.closing(make_gym_vector(env, 1, options.kwargs)) as vector:
        inner = vector.envs[0].unwrapped if isinstance(vector, SyncVectorEnv) else vector.unwrapped
        parameters = inspect.signature(inner.reset).parameters.values()
    if not any(p.name == "seed" or p.kind is p.VAR_KEYWORD for p in parameters):
        report.problems.append(f"{type(inner).__name__}.reset takes no seed; write reset(self, *, seed=None, options=None)")
    return bool(report.problems)


def _watched(env: EnvSource, options: EnvOptions, notes: Notes) -> VectorEnv:
    if backend_of(env, options) != "gymnasium":
        return make_env(env, 1, 0, options)
    vector: GymVector = make_gym_vector(env, 1, options.kwargs)
    if isinstance(vector, SyncVectorEnv):
        vector.envs = [WatchedEnv(one, notes) for one in vector.envs]
    else:
        vector = WatchedVectorEnv(vector, notes)
    return GymVectorEnv(vector, first_env_seed(0, 1))


def _play(env: VectorEnv, notes: Notes, report: Report, seconds: float) -> None:
    rng, deadline = np.random.default_rng(0), time.perf_counter() + seconds
    timestep, steps, episodes = env.reset(), 0, 0
    while steps < MAX_STEPS and (steps < _COMPARED_STEPS or time.perf_counter() < deadline):
        _look_at_masks(env.spec, timestep, notes)
        try:
            timestep = env.step(random_action(env.spec, timestep.observation, 1, rng))
        except Exception:
            if notes.problems:  # a consequence of what was noted, and less clear than it
                return
            raise
        steps += 1
        episodes += timestep.episodes is not None
    if not episodes and _time_limit(_unwatched(env)) is None:
        report.warnings.append(
            f"no episode ended within {steps:,} steps of random play, and there is no time limit; returns come with ends only"
        )


def _look_at_masks(spec: EnvSpec, timestep: Timestep, notes: Notes) -> None:
    if not spec.masked:
        return
    masks = timestep.observation[ACTION_MASK]
    if not np.isin(masks, (0, 1)).all():
        notes.add(ACTION_MASK, "values", f"has the value {masks[~np.isin(masks, (0, 1))][0]}; use 0 and 1")
    for choice, part in enumerate(by_choice(spec, masks)):
        if not part.any(axis=1).all():
            notes.add(ACTION_MASK, f"empty {choice}", f"forbids everything for choice {choice}; allow one at least")


def _compare(env: EnvSource, options: EnvOptions, report: Report) -> None:
    """Two envs of one seed that get the same actions show the same."""
    with (
        contextlib.closing(make_env(env, 1, 0, options)) as left,
        contextlib.closing(make_env(env, 1, 0, options)) as right,
    ):
        rng, pair = np.random.default_rng(0), (left.reset(), right.reset())
        for step in range(_COMPARED_STEPS):
            different = _difference(*pair)
            if different:
                report.warnings.append(f"not reproducible: with the same seed and actions, {different} after {step} steps")
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


def _rate(env: EnvSource, options: EnvOptions, num_envs: int, seconds: float) -> float:
    with contextlib.closing(make_env(env, num_envs, 0, options)) as envs:
        rng, timestep, steps = np.random.default_rng(0), envs.reset(), 0
        action = random_action(envs.spec, timestep.observation, num_envs, rng)
        began = time.perf_counter()
        while time.perf_counter() - began < seconds or not steps:
            if envs.spec.masked:
                action = random_action(envs.spec, timestep.observation, num_envs, rng)
            timestep = envs.step(action)
            steps += 1
        return steps * num_envs / (time.perf_counter() - began)
