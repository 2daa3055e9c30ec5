"""How much of the machine does a system use?

Measures, on one core each, how fast envs step, the policy infers and the learner trains; derives the limit that all
cores would reach if nothing else cost anything; runs the real system; and prints the ratio. With --peers the same env
and network run in other libraries, each in an environment of its own, in the same run. For systems that learn from
replay see `benchmarks.replay_throughput`.

    python -m benchmarks.throughput --env CartPole-v1 --envs 64 128 256 --peers
    python -m benchmarks.throughput --env ALE/Pong-v5 --envs 16 --seconds 60 --peers
    python -m benchmarks.throughput --systems impala seed-vtrace --envs 0 64 256 512
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.peers.run import PeerResult, measure_peers
from pappus.accelerator import one_thread
from pappus.api import configure, execute
from pappus.config import RunConfig
from pappus.edges.queue import RingQueue
from pappus.edges.weights import FlatWeights
from pappus.envs.check import random_action
from pappus.envs.vector import VectorEnv, env_spec, make_env
from pappus.networks.flat import FlatParameters
from pappus.precision import choose_precision
from pappus.recording.unrolls import UnrollWriter
from pappus.roles.acting import LocalPolicy
from pappus.roles.gradient_step import GradientStep, LearnerSettings
from pappus.roles.learner import Learner, Publication, UnrollTraining
from pappus.systems import find_system
from pappus.telemetry.metrics import Metrics
from pappus.transports.memory import HeapBlock
from pappus.types import Unroll, unroll_spec

CORES = len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Limits:
    """Steps per second of one core that does nothing else."""

    env: float
    inference: float
    training: float
    precision: str
    cores: int = CORES

    @property
    def together(self) -> float:
        """What all cores reach when each step is stepped, inferred and trained on once: cores over summed costs."""
        return self.cores / (1 / self.env + 1 / self.inference + 1 / self.training)


@dataclass(frozen=True)
class Measured:
    """What the real thing does per second."""

    steps: float
    updates: float


class Repeating:
    """A source that always has the same batch."""

    name = "unrolls"

    def __init__(self, batch: list[Unroll]) -> None:
        self._batch = batch

    def take(self, count: int) -> list[Unroll]:
        return self._batch

    def release(self) -> None: ...

    def depth(self) -> int:
        return 1

    def explain(self) -> str:
        return "always ready"

    def fileno(self) -> int:
        return -1

    def clear(self) -> None: ...


def measure_limits(config: RunConfig, seconds: float) -> Limits:
    """Each part alone on one thread, on real data, in the precision of the real run."""
    with one_thread():
        return _measure_limits(config, seconds)


def _measure_limits(config: RunConfig, seconds: float) -> Limits:
    spec = env_spec(config.env, config.env_options)
    algorithm = find_system(config.system).algorithm.make(config.algorithm, spec, config.network)
    precision = choose_precision(config, algorithm, spec)
    network: Any = algorithm.build_network()
    size = FlatParameters(network).size
    weights = FlatWeights("weights", size, HeapBlock(*FlatWeights.footprint(size)))
    slots = unroll_spec(spec, algorithm.behaviour, network.state_spec, config.unroll_length, config.batch_envs)
    queue = RingQueue("unrolls", slots, 1, 1, HeapBlock(*RingQueue.footprint(slots, 1, 1)))
    settings = LearnerSettings(config.optimizer, 10**12, 1, config.device, precision)
    gradient = GradientStep(Metrics("learner"), algorithm, settings)
    training = UnrollTraining(algorithm, Repeating(queue.rings[0].slots), gradient, 1)
    learner = Learner("learner", gradient, training, Publication(weights))
    learner.step()  # publishes
    play_into(queue.rings[0].slots[0], config, LocalPolicy(algorithm, weights, config.batch_envs, 1, precision))
    env = one_thread_env(config)
    policy = LocalPolicy(algorithm, weights, env.num_envs, 1, precision)
    policy.refresh()
    timestep = env.reset()
    inference = rate(lambda: policy.act(timestep), env.num_envs, seconds)
    stepping = stepping_rate(env, seconds)
    training = rate(learner.step, config.batch_envs * config.unroll_length, seconds)
    env.close()
    return Limits(stepping, inference, training, precision)


def one_thread_env(config: RunConfig) -> VectorEnv:
    """The envs of one actor, stepped by one thread."""
    return make_env(config.env, config.envs_per_actor, 1, dataclasses.replace(config.env_options, threads=1))


def stepping_rate(env: VectorEnv, seconds: float) -> float:
    """Steps per second of envs that always get the same actions."""
    actions = random_action(env.spec, env.reset().observation, env.num_envs, np.random.default_rng(0))
    return rate(lambda: env.step(actions), env.num_envs, seconds)


def play_into(slot: Unroll, config: RunConfig, policy: LocalPolicy) -> None:
    """Fill a slot with what the policy does."""
    env = make_env(config.env, config.batch_envs, 1, config.env_options)
    timestep, writer = env.reset(), UnrollWriter(config.unroll_length)
    policy.refresh()
    writer.begin(slot, timestep, policy.state)
    while not writer.full:
        action, behaviour = policy.act(timestep)
        timestep = env.step(action)
        writer.append(action, behaviour, 0, timestep)
    env.close()


def rate(work: Callable[[], object], steps: int, seconds: float) -> float:
    """Steps per second of repeating `work`, after a fifth of the time to warm up."""
    deadline = time.perf_counter() + seconds / 5
    while time.perf_counter() < deadline:
        work()
    count, start = 0, time.perf_counter()
    while time.perf_counter() < start + seconds:
        work()
        count += steps
    return count / (time.perf_counter() - start)


def measure_system(config: RunConfig, limit: float, seconds: float, least_steps: int) -> Measured:
    """The real thing, learning on, in the second half of a run of about so many seconds; evaluated only at the end."""
    with tempfile.TemporaryDirectory() as parent:
        directory = Path(parent) / "run"
        steps = max(int(0.75 * limit * seconds), least_steps)
        config = dataclasses.replace(
            config, steps=steps, run_dir=str(directory),
            evaluation=dataclasses.replace(config.evaluation, episodes=1, every_steps=0),
        )
        execute(config, config.env)
        rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    return second_half([row for row in rows if row["step"] > 0 and "charts/SPS" in row], steps)


def second_half(rows: list[dict[str, float]], steps: int) -> Measured:
    """From what was logged where half of the steps were done to where all were."""
    half = next(row for row in rows if row["step"] >= steps / 2)
    last = next((row for row in rows if row["step"] >= steps), rows[-1])
    per_second = (
        (last[count] - half[count]) / (last["time"] - half["time"]) for count in ("step", "charts/updates")
    )
    return Measured(*per_second)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", default=["impala"], help="one row each, in the same run")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--envs", type=int, nargs="+", default=[64], help="per actor, one row each; 0: the preset's")
    parser.add_argument("--actors", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0, help="of the real run and of each peer")
    parser.add_argument("--limit-seconds", type=float, default=3.0, help="of each part of the limit")
    parser.add_argument("--peers", action="store_true", help="also RLlib IMPALA, Sample Factory APPO and SB3 PPO")
    arguments = parser.parse_args()
    table = Table(title=f"{arguments.env}, {CORES} cores, {platform.processor() or 'CPU'}")
    for column in ("system", "setting", "env/s", "inference/s", "training/s", "limit/s", "precision", "measured/s",
                   "of limit"):
        table.add_column(column, justify="left" if column in ("system", "setting") else "right", no_wrap=True)
    best = 0.0
    for envs, system in itertools.product(arguments.envs, arguments.systems):
        settings = {"actors": arguments.actors, **({"envs_per_actor": envs, "batch_size": 0} if envs else {})}
        config = configure(system, arguments.env, settings)
        limits = measure_limits(config, arguments.limit_seconds)
        least = 4 * config.batch_envs * config.unroll_length
        measured = measure_system(config, limits.together, arguments.seconds, least).steps
        best = max(best, measured)
        figures = (limits.env, limits.inference, limits.training, limits.together)
        table.add_row(
            system, f"{arguments.actors} × {config.envs_per_actor} envs", *(f"{figure:,.0f}" for figure in figures),
            limits.precision, f"{measured:,.0f}", f"{measured / limits.together:.2f}",
        )
    console = Console(width=130)
    console.print(table)
    if arguments.peers:
        console.print(peer_table(measure_peers(arguments.env, arguments.seconds), best))
    console.print(provenance())


def provenance() -> str:
    """What was measured."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    return f"commit {commit or 'unknown'}, torch {torch.__version__}"


def peer_table(results: list[PeerResult], best: float) -> Table:
    """What peers reach, and how many times that we do at our best."""
    table = Table(title="peers, same env and network")
    for column in ("peer", "version", "workers × envs", "steps/s", "updates/s", "pappus is faster by"):
        table.add_column(column)
    for result in results:
        setting = f"{result.workers} × {result.envs}"
        updates = f"{result.updates_per_second:,.0f}" if result.updates_per_second else "–"
        figures = (f"{result.steps_per_second:,.0f}", updates, f"{best / result.steps_per_second:.1f} ×") \
            if not result.error else (result.error, "–", "–")
        table.add_row(result.peer, result.version, setting, *figures)
    return table


if __name__ == "__main__":
    main()
