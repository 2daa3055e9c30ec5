"""What the parts of a step cost here: envs by stepping them, all else in real runs of envs that cost nothing."""

from __future__ import annotations

import dataclasses
import math
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing

import numpy as np

from pappus.accelerator import one_thread
from pappus.beginnings import EnvLike
from pappus.config import EnvOptions, RunConfig
from pappus.envs.check import random_action
from pappus.envs.vector import VectorEnv, env_spec, make_env
from pappus.errors import RunError
from pappus.kinds import ACTOR, BUNDLE, EVALUATOR, INFERENCE, LEARNER, MASTER, PARAMETER_SERVER, WORKER
from pappus.settings import override
from pappus.system import System
from pappus.telemetry.processes import usable_cores
from pappus.telemetry.usage import ThreadClock
from pappus.tuning.model import Costs, EnvCost, Line
from pappus.tuning.stand_in import BACKEND, StandIn
from pappus.tuning.window import watch
from pappus.types import Array

ENV_SECONDS = 0.3
"""For each number of envs."""
MAKING_SHARE = 0.1
"""So large a part of all the time may go to making the envs that are stepped at a time."""
LONGEST_STEP = 0.1
"""More envs are stepped at a time only if that takes no longer."""
FEW, MANY = 1, 32
"""Envs that are stepped at a time."""
FEWER = 16
"""By how much fewer envs the second run has in which acting is measured."""
PROBE_SECONDS = 1.2
LEAST_SECONDS, LEAST_MADE = 2 * (ENV_SECONDS + PROBE_SECONDS), 5
"""What all costs take at least, beside making so many envs."""
LONGEST_UPDATE = 0.3
"""Seconds of an update in such a run, if it can be of fewer unrolls."""
MESSAGES = 2000
ECHO = "import os\nwhile data := os.read(0, 1): os.write(1, data)"
STEPPING = tuple(kind.name for kind in (ACTOR, BUNDLE, WORKER))
TRAINING = tuple(kind.name for kind in (LEARNER, PARAMETER_SERVER))


def measure_env(env: EnvLike, options: EnvOptions, threads: bool = False, seconds: float = math.inf) -> EnvCost:
    """Seconds of a step, for one env and for many; of `seconds` in all only some are for making them."""
    *few, making = _stepped(env, options, FEW, threads)
    bearable = min(MANY, MAKING_SHARE * seconds / making, math.inf if threads else LONGEST_STEP / sum(few))
    many = max(2, int(bearable))
    *more, making_many = _stepped(env, options, many, threads)
    computing, asleep = ([(n, cost[i]) for n, cost in ((FEW, few), (many, more))] for i in (0, 1))
    return EnvCost(Line.through(computing), Line.through(asleep), min(making, making_many / many))


def _stepped(env: EnvLike, options: EnvOptions, count: int, threads: bool) -> tuple[float, float, float]:
    """Seconds of a step of so many envs: computing, in whatever thread, and asleep; and those of making them."""
    began = time.perf_counter()
    with closing(make_env(env, count, 1, dataclasses.replace(options, threads=count if threads else 1))) as envs:
        actions = random_action(envs.spec, envs.reset().observation, count, np.random.default_rng(0))
        making = time.perf_counter() - began
        envs.step(actions)
        return *_timed(envs, actions), making


def _timed(envs: VectorEnv, actions: Array) -> tuple[float, float]:
    thread, began = ThreadClock(), time.perf_counter()
    (_, queued), computed, steps = thread.read(), time.process_time(), 0
    while steps < 2 or time.perf_counter() < began + ENV_SECONDS:
        envs.step(actions)
        steps += 1
    seconds, computed = time.perf_counter() - began, time.process_time() - computed
    _, queued_now = thread.read()
    waited = 0.0 if queued is None or queued_now is None else queued_now - queued
    return computed / steps, max(0.0, seconds - computed - waited) / steps


class Parts:
    """All that a step costs beside the env, from runs with one actor whose envs cost nothing."""

    def __init__(self, reference: RunConfig, env: EnvLike, system: System) -> None:
        options = dataclasses.replace(reference.env_options, last_inputs=False)
        self._reference, self._system, self._stand_in = reference, system, StandIn(env_spec(env, options))
        self._replays = system.algorithm.learns_from_replay
        self.acting = Line(0.0, 0.0)
        """Seconds for n envs."""
        self.training: dict[int, float] = {}
        """Per env step, by the items of an update."""
        self.others = 0.0
        """Per env step."""

    def measure(self, items: Sequence[int]) -> None:
        """For updates of these sizes; for the first of them with few and with many envs, which tells acting."""
        first = items[0]
        few, many = (1, MANY) if self._replays else (max(1, first // FEWER), first)
        points = [(few, acting_of(self._seen(few, first), few))]
        many = many if self._replays else self._bearable(first)
        if many > few:
            points.append((many, acting_of(self._seen(many, first), many)))
        self.acting = Line.through(points)
        for count in items[1:]:
            self._seen(MANY if self._replays else self._bearable(count), count)

    def _bearable(self, count: int) -> int:
        """As many envs, and so unrolls of an update, as it takes to see several updates: with large networks, what an
        env step of an update costs does not depend on its size."""
        known = self.training[min(self.training, key=lambda size: abs(size - count))]
        if not known:  # whoever steps envs makes the updates, too
            return count
        return min(count, max(2, int(LONGEST_UPDATE / (known * self._reference.unroll_length))))

    def _seen(self, envs: int, items: int) -> Mapping[str, float]:
        """What the roles did with so many envs, whose unrolls are an update unless it is of replay."""
        config = override(self._reference, {
            "actors": 1, "envs_per_actor": envs, "learners": 1, "batch_size": items if self._replays else 0,
            "env_options.backend": BACKEND, "runtime": "inline" if self._reference.device == "cpu" else "local",
        })
        window = watch(config, self._stand_in, self._system, PROBE_SECONDS)
        if window.interrupted:
            raise KeyboardInterrupt
        if not window.rate:
            raise RunError(f"a run with {envs} envs that cost nothing made no update; nothing can be predicted")
        self.training[items] = per_step(window.metrics, TRAINING)
        self.others = per_step(window.metrics, other_kinds(window.metrics))
        return window.metrics


def acting_of(metrics: Mapping[str, float], envs: int) -> float:
    """Seconds of a forward pass for so many envs, be it in the actor or in an inference server."""
    return envs * (per_step(metrics, STEPPING) + per_step(metrics, (INFERENCE.name,)))


def other_kinds(metrics: Mapping[str, float]) -> list[str]:
    """Kinds of roles that neither step envs, nor infer, nor train, nor wait for a command."""
    known = (*STEPPING, *TRAINING, INFERENCE.name, EVALUATOR.name, MASTER.name)
    kinds = (name.removesuffix("/busy") for name in metrics if name.endswith("/busy"))
    return [kind for kind in kinds if kind not in known]


def per_step(metrics: Mapping[str, float], kinds: Sequence[str]) -> float:
    """Seconds that roles of these kinds were at work per env step, without those in which they had no core, or were in
    a step of envs."""
    total = 0.0
    for kind in kinds:
        busy = metrics.get(f"{kind}/busy", 0.0)
        rate = metrics.get(f"{kind}/env_steps_per_second") or metrics["charts/SPS"]
        with_core = 1.0 - metrics.get(f"{kind}/waiting_for_a_core", 0.0) / busy if busy else 0.0
        total += max(0.0, busy - metrics.get(f"{kind}/in_envs", 0.0)) * max(0.0, with_core) / rate
    return total


def measure_message() -> float:
    """Seconds until a process that waits has got what another one hands over: half of a way there and back."""
    command, pipe = [sys.executable, "-I", "-S", "-c", ECHO], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as other:
        assert other.stdin is not None and other.stdout is not None
        there, back = other.stdin.fileno(), other.stdout.fileno()
        for i in range(MESSAGES + 1):
            if i == 1:  # the first one waits for its start
                began = time.perf_counter()
            os.write(there, b"x")
            os.read(back, 1)
        return (time.perf_counter() - began) / MESSAGES / 2


def measure(
    reference: RunConfig, env: EnvLike, system: System, items: Sequence[int], one_by_one: bool, seconds: float
) -> Costs:
    """All costs of a system's steps on this machine, of which so many seconds are for tuning."""
    with one_thread():
        in_turn = measure_env(env, reference.env_options, seconds=seconds)
        threads = None
        if one_by_one and in_turn.waits:
            threads = measure_env(env, reference.env_options, threads=True, seconds=seconds)
    parts = Parts(reference, env, system)
    parts.measure(items)
    return Costs(in_turn, threads, parts.acting, parts.training, parts.others, measure_message(), usable_cores())
