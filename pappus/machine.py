"""What this machine or a cluster has, and what `--actors auto` and `--device auto` make of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np

from pappus.config import AUTO, RunConfig
from pappus.data.specs import spec_of
from pappus.envs.external import has_no_env
from pappus.envs.vector import make_env
from pappus.errors import UserError
from pappus.system import System
from pappus.telemetry.processes import cpu_seconds, usable_cores
from pappus.telemetry.usage import ThreadClock, descendants
from pappus.types import ACTION_MASK, Array, ContinuousAction, EnvSpec

HEAVY_SECONDS = 50e-6
"""An env whose step takes longer than this deserves a core: one core makes fewer than 20,000 such steps a second."""
PROBE_ENVS, PROBE_SECONDS = 4, 0.2
"""Envs that are stepped to find that out, and for how long."""
StepKind: TypeAlias = Literal["cheap", "slow", "waiting"]
WAITING_SHARE = 0.5
"""An env waits if nothing is computed in so large a part of a step that is not cheap."""
WAITING_ACTORS = 4
"""For each core, where envs wait: each is a process of its own."""


@dataclass(frozen=True)
class Machine:
    """Cores that a run may use, and the name of a GPU, empty where there is none; of a cluster all that is free."""

    cores: int
    gpu: str = ""


@cache
def this_machine() -> Machine:
    import torch

    return Machine(usable_cores(), torch.cuda.get_device_name() if torch.cuda.is_available() else "")


def machine_for(config: RunConfig) -> Machine:
    """Where the run will be: here, or on the cluster whose address is given."""
    if config.runtime != "ray" or not config.cluster.address:
        return this_machine()
    from pappus.runtimes.ray_connection import free_resources

    free = free_resources(config.cluster)
    return Machine(int(free.get("CPU", 0)), "a GPU of the cluster" if free.get("GPU", 0) >= 1 else "")


def fit(config: RunConfig, env: Any, system: System, machine: Machine | None = None) -> tuple[RunConfig, str]:
    """`config` with everything chosen that is `auto`, and a line that says what was chosen and why."""
    line: list[str] = []
    if config.topology.uses_data == "only":
        config = with_actors(config)
    if config.actors == AUTO or config.device == "auto":
        machine = machine or machine_for(config)
    if machine is not None and config.device == "auto":
        reason = why_no_gpu(config)
        if machine.gpu and not reason and not _sees_pictures(config, env, system):
            reason = "the network is small"
        config = replace(config, device="cuda" if machine.gpu and not reason else "cpu")
        if machine.gpu:
            where = f"cpu: {reason}" if reason else f"cuda ({machine.gpu}): the network sees pictures"
            line.append(f"the learner computes on {where}")
    if machine is not None and config.actors == AUTO:
        step = _kind_of_step(config, env)
        config = with_actors(config, machine.cores, heavy=step == "slow" and machine.cores > 2)
        cost = f", whose steps are {step}" if machine.cores > 2 else ""
        if step == "waiting":
            spread = config if config.inline or config.runtime == "ray" else _spread(config, machine.cores)
            cost = ", which wait for something outside"
            cost += f": spread over {spread.actors} actors, with the same batches" if spread is not config else ""
            config = spread
        many = config.actors > 1
        share = f"{_envs_per_actor(config)} envs{' each' * many}{cost}"
        line.append(f"{machine.cores} cores: {config.actors} actor{'s' * many} with {share}")
    return with_actors(config), "; ".join(line)


def with_actors(config: RunConfig, cores: int = 0, heavy: bool = False) -> RunConfig:
    """`config` with as many actors as so many cores have use for, where that is `auto`, and each one's share of envs;
    `heavy` envs take a core each."""
    if config.topology.uses_data == "only" and config.actors == AUTO:
        config = replace(config, actors=0)
    if config.actors == AUTO:
        config = replace(config, actors=_actors(config, cores, heavy))
    return replace(config, envs_per_actor=_envs_per_actor(config))


def chosen_words(config: RunConfig, fitted: RunConfig) -> list[str]:
    """What `fit` chose, as options: runs that are started together must not choose again, beside each other."""
    actors = ["--actors", str(fitted.actors)] if config.actors == AUTO else []
    if actors and not config.envs and fitted.envs_per_actor != config.envs_per_actor:
        actors += ["--envs-per-actor", str(fitted.envs_per_actor)]
    return [*actors, *(["--device", fitted.device] if config.device == "auto" else [])]


def why_no_gpu(config: RunConfig) -> str:
    """Why the learner of this run cannot compute on a GPU that is there; empty where it can."""
    if not config.topology.uses_gpu:
        return "its many learners share no GPU"
    if config.learners > 1:
        return "several learners need a GPU each"
    return "the inline runtime computes on the CPU, to be deterministic" if config.runtime == "inline" else ""


def _actors(config: RunConfig, cores: int, heavy: bool) -> int:
    """As many as the topology has use for; of envs that are given in total each gets the same even share."""
    fewest = max(1, config.topology.fewest_actors(config.learners))
    wanted = max(fewest, config.topology.actors_for(config, cores, heavy))
    even = [actors for actors in range(fewest, wanted + 1) if config.envs and config.envs % (2 * actors) == 0]
    return even[-1] if even else wanted


def _envs_per_actor(config: RunConfig) -> int:
    """Each actor's share of `--envs`, an even number where it can be: two groups of envs take turns. Without `--envs`,
    the largest part of `--envs-per-actor` that keeps within `--max-envs`: batches are still made of whole unrolls."""
    each = config.envs_per_actor
    if not config.envs or not config.actors:
        most = max(1, config.max_envs // max(1, config.steady_actors)) if config.max_envs else each
        return next((part for part in range(min(each, most), 0, -1) if each % part == 0), each)
    share = config.envs / config.actors
    return 2 * round(share / 2) if share >= 2 else 1


def _sees_pictures(config: RunConfig, env: Any, system: System) -> bool:
    """Whether the network convolves."""
    import torch

    algorithm = system.algorithm.make(config.algorithm, spec_of(env, config.env_options), config.network)
    return any(isinstance(module, torch.nn.Conv2d) for module in algorithm.build_network().modules())


def _kind_of_step(config: RunConfig, env: Any, clock: Callable[[], float] = time.perf_counter) -> StepKind:
    """Whether a step of one env is cheap, computes for long, or waits for something outside. The fastest of many
    counts: others may have waited for a core."""
    if has_no_env(env):
        return "slow"
    before = set(descendants(os.getpid()))  # none of them computes for the envs
    with closing(make_env(env, PROBE_ENVS, 0, config.env_options)) as envs:
        shown, fastest = envs.reset().observation, float("inf")
        work, began = Work(before), clock()
        while (now := clock()) < began + PROBE_SECONDS and fastest / PROBE_ENVS > HEAVY_SECONDS:
            action, now = _allowed(envs.spec, shown), clock()
            try:
                shown = envs.step(action).observation
            except Exception:  # the run will say what is wrong with the env, and where
                return "cheap"
            fastest = min(fastest, clock() - now)
        asleep = 1.0 - work.seconds() / (now - began)
    if fastest / PROBE_ENVS <= HEAVY_SECONDS:
        return "cheap"
    return "waiting" if asleep > WAITING_SHARE else "slow"


class Work:
    """Seconds in which this process computed, or had no core, or processes that it has started since `before`."""

    def __init__(self, before: Collection[int]) -> None:
        self._before, self._thread = before, ThreadClock()
        self._began = self._read()

    def seconds(self) -> float:
        """Since it was made."""
        return self._read() - self._began

    def _read(self) -> float:
        _, queued = self._thread.read()
        started = (pid for pid in descendants(os.getpid()) if pid not in self._before)
        return time.process_time() + (queued or 0.0) + sum(cpu_seconds(pid) or 0.0 for pid in started)


def _spread(config: RunConfig, cores: int) -> RunConfig:
    """The same envs, and the same batches of policies as new, on as many actors as there may be: while one waits,
    others go on. Where actors train, each more of them adds lag, and stays away."""
    envs, items = config.actors * config.envs_per_actor, config.topology.items_per_update(config)
    lag = config.topology.policy_lag(config)
    for actors in range(min(envs, WAITING_ACTORS * cores), config.actors, -1):
        spread = replace(config, actors=actors, envs_per_actor=envs // actors)
        if envs % actors or _envs_per_actor(spread) != spread.envs_per_actor:
            continue
        with suppress(UserError):
            spread.topology.check(spread)
            if spread.topology.items_per_update(spread) == items and spread.topology.policy_lag(spread) <= lag:
                return spread
    return config


def _allowed(spec: EnvSpec, shown: Any) -> Array:
    """The first action of every env that its mask allows, or 0."""
    action = spec.action
    if not spec.masked or isinstance(action, ContinuousAction):
        return np.zeros((PROBE_ENVS, *action.array.shape), action.array.dtype)
    parts = np.split(np.asarray(shown[ACTION_MASK]), np.cumsum(action.choices)[:-1], axis=1)
    return np.stack([part.argmax(1) for part in parts], 1).reshape(-1, *action.array.shape).astype(action.array.dtype)
