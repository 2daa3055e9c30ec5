"""How much of the machine do systems that learn from replay use?

Env steps and updates are tied by the table's limiter, so both are told. Measured on one core each: how fast envs step,
how fast a policy acts and records what comes of it, and how fast a learner updates from a filled table (draws a batch,
computes the loss, steps the optimizer, writes priorities back). The limit is what all cores would reach if an env step
cost the first two, and every so-manieth one an update (a system in one thread has one core). A system has one learner,
so it may get no further than "of a learner" 1.0, however many cores are left. Work:

    preset   the system as it is configured for the env
    paper    batch and samples per insert as in the system's paper
    peers    one update of 64 for every 4 steps: what SB3, tianshou and RLlib do with --peers, in the same run

    python -m benchmarks.replay_throughput --peers
    python -m benchmarks.replay_throughput --systems apex-dqn --work paper --envs 0 64 256
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import platform
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.peers.dqn_work import BATCH, STEPS_PER_UPDATE
from benchmarks.peers.run import DQNS, measure_peers
from benchmarks.throughput import (
    CORES,
    Limits,
    Measured,
    measure_system,
    one_thread_env,
    peer_table,
    provenance,
    rate,
    stepping_rate,
)
from pappus.accelerator import one_thread
from pappus.api import configure, describe
from pappus.config import ReplayConfig, RunConfig
from pappus.edges.counters import SharedCounters
from pappus.edges.weights import FlatWeights
from pappus.envs.check import random_action
from pappus.envs.vector import VectorEnv
from pappus.recording.direct import DirectReplay
from pappus.roles.acting import LocalPolicy, ReplayActor
from pappus.topologies.apex import ApexConfig
from pappus.topologies.builders import replay_spec
from pappus.topologies.learners import build_replay_learner
from pappus.topologies.program import Run, off_policy
from pappus.topologies.seed_replay import SeedReplayConfig
from pappus.transports.memory import HeapBlock
from pappus.types import Array, Timestep, map_leaves

RATIO = "topology.replay.samples_per_insert"
PAPERS: dict[str, dict[str, Any]] = {
    "dqn": {"batch_size": 32, RATIO: 8.0},  # Mnih et al. 2015: an update every 4 steps
    "apex-dqn": {"batch_size": 512, RATIO: 0.78},  # Horgan et al. 2018: 19 batches for 12,500 transitions a second
    "seed-r2d2": {"batch_size": 64, RATIO: 0.75},  # Espeholt et al. 2019: the replay ratio of their Atari runs
}
PEERS_WORK = {"batch_size": BATCH, RATIO: BATCH / STEPS_PER_UPDATE}
PEERS_SYSTEMS = ("dqn", "apex-dqn")
"""Those that learn from transitions, as the peers do."""
FILLED = 100_000
"""Items that are enough to call a table filled: larger ones would take minutes."""
RECORDED_STEPS = 256
COLUMNS = ("system", "work", "envs", "env/s", "acting/s", "updates/s of a core", "limit/s", "steps/s", "updates/s",
           "of limit", "of a learner")


@dataclass(frozen=True)
class Parts:
    """What one core that does nothing else does per second: env steps, steps acted in and recorded, updates."""

    env: float
    acting: float
    updates: float
    precision: str

    def limits(self, updates_per_step: float, cores: int) -> Limits:
        """In env steps, if so many updates (usually far less than one) go with each."""
        return Limits(self.env, self.acting, self.updates / updates_per_step, self.precision, cores)


def replay_of(config: RunConfig) -> ReplayConfig:
    """The table of a system that has one."""
    assert isinstance(config.topology, ApexConfig | SeedReplayConfig), f"{config.system} does not learn from replay"
    return config.topology.replay


def updates_per_step(config: RunConfig, items_per_step: float) -> float:
    """Updates that the limiter asks for: each item is drawn so often, and a batch of them is an update."""
    return items_per_step * replay_of(config).samples_per_insert / config.batch_size


class Recorded:
    """Envs that show over and over what was seen once: they cost nothing."""

    def __init__(self, env: VectorEnv, steps: int = RECORDED_STEPS) -> None:
        self.spec, self.num_envs = env.spec, env.num_envs
        rng, self._next = np.random.default_rng(0), 0
        self._timesteps = [_kept(env.reset())]
        for _ in range(steps):
            action = random_action(env.spec, self._timesteps[-1].observation, env.num_envs, rng)
            self._timesteps.append(_kept(env.step(action)))

    def reset(self) -> Timestep:
        return self._timesteps[0]

    def step(self, action: Array) -> Timestep:
        self._next = self._next % (len(self._timesteps) - 1) + 1
        return self._timesteps[self._next]

    def take_metrics(self) -> dict[str, tuple[float, float]]:
        return {}

    def close(self) -> None: ...


def _kept(timestep: Timestep) -> Timestep:
    return timestep._replace(observation=map_leaves(np.copy, timestep.observation))


class Bench:
    """An actor and a learner around a table that makes nobody wait, all in this thread."""

    def __init__(self, run: Run, env: Any) -> None:
        config, algorithm = run.config, off_policy(run.algorithm)
        unlimited = dataclasses.replace(replay_of(config), tolerance=1e9)
        spec = replay_spec(run, unlimited, env.num_envs, prefetch=1)
        replay = DirectReplay(spec)
        weights = FlatWeights("weights", run.weights_size, HeapBlock(*FlatWeights.footprint(run.weights_size)))
        self.counted = SharedCounters("steps", 1, HeapBlock(*SharedCounters.footprint(1)))
        numbers = np.arange(env.num_envs)
        policy = LocalPolicy(
            algorithm, weights, env.num_envs, 1, config.precision,
            lambda: algorithm.exploration(numbers, env.num_envs, self.counted.total()),
        )
        refresh_every = config.topology.refresh_every if isinstance(config.topology, ApexConfig) else 1
        sink = replay.sink(env.num_envs)
        self.actor = ReplayActor("actor", env, policy, sink, self.counted.counter(0), refresh_every)
        self.source = replay.source()
        source, capacity = replay.source(), spec.table.max_size
        self.learner = build_replay_learner("learner", 0, run, capacity, source, weights, self.counted)
        self.learner.step()  # publishes

    def fill(self, items: int) -> float:
        """Record until so many went in; how many a step has made.

        A table may hold fewer: where episodes are short, their last observations take room, too.
        """
        while self.source.info()["inserts"] < items:
            for _ in range(100):
                self.actor.step()
        return float(self.source.info()["inserts"]) / self.counted.total()


def measure_parts(config: RunConfig, seconds: float) -> tuple[Parts, float]:
    """Each part alone on one thread, on real data, in the precision of the real run; and the items that a step makes.

    The latter depends on how long episodes are, where items are sequences.
    """
    run = describe(dataclasses.replace(config, steps=10**12), config.env)
    with one_thread():
        env = one_thread_env(config)
        bench = Bench(run, Recorded(env))
        items_per_step = bench.fill(min(FILLED, replay_of(config).capacity))
        acting = rate(bench.actor.step, env.num_envs, seconds)
        stepping = stepping_rate(env, seconds)
        updates = rate(bench.learner.step, 1, seconds)
        env.close()
    return Parts(stepping, acting, updates, run.config.precision), items_per_step


def measure(config: RunConfig, seconds: float, limit_seconds: float) -> tuple[Parts, Limits, Measured]:
    """The parts, the limit at the updates per step that the run had, and the run."""
    parts, items_per_step = measure_parts(config, limit_seconds)
    cores = 1 if config.inline else CORES
    expected = parts.limits(updates_per_step(config, items_per_step), cores).together
    # Half of the run lies behind the warm-up, whatever it takes.
    least = int(4 * replay_of(config).warm_up / items_per_step)
    measured = measure_system(config, expected, seconds, least)
    return parts, parts.limits(measured.updates / measured.steps, cores), measured


def settings_of(system: str, work: str) -> dict[str, Any] | None:
    """What a kind of work changes in a system's preset; None where there is no such work for it."""
    if work == "peers":
        return PEERS_WORK if system in PEERS_SYSTEMS else None
    return PAPERS[system] if work == "paper" else {}


def row(config: RunConfig, work: str, parts: Parts, limits: Limits, measured: Measured) -> list[str]:
    """Of the table of results."""
    ratio = replay_of(config).samples_per_insert
    return [
        config.system, f"{work}: {config.batch_size}, {ratio:g}×", f"{config.actors} × {config.envs_per_actor}",
        *(f"{figure:,.0f}" for figure in (parts.env, parts.acting, parts.updates, limits.together)),
        f"{measured.steps:,.0f}", f"{measured.updates:,.0f}", f"{measured.steps / limits.together:.2f}",
        f"{measured.updates / parts.updates:.2f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", choices=tuple(PAPERS), default=tuple(PAPERS))
    parser.add_argument("--work", nargs="+", choices=("preset", "paper", "peers"), default=("preset", "paper", "peers"))
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--envs", type=int, nargs="+", default=[0], help="per actor, one row each; 0: the preset's")
    parser.add_argument("--actors", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=20.0, help="of the real run and of each peer")
    parser.add_argument("--limit-seconds", type=float, default=3.0, help="of each part of the limit")
    parser.add_argument("--peers", action="store_true", help="also the DQNs of RLlib, SB3 and tianshou")
    arguments = parser.parse_args()
    if arguments.peers and not ("peers" in arguments.work and set(arguments.systems) & set(PEERS_SYSTEMS)):
        parser.error(f"--peers compares with the work `peers` of {' or '.join(PEERS_SYSTEMS)}; measure it, too")
    table = Table(title=f"{arguments.env}, {CORES} cores, {platform.processor() or 'CPU'}")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in COLUMNS[:3] else "right", no_wrap=True)
    best = 0.0
    for work, envs, system in itertools.product(arguments.work, arguments.envs, arguments.systems):
        settings = settings_of(system, work)
        if settings is None:
            continue
        given = {"actors": arguments.actors, **({"envs_per_actor": envs} if envs else {})}
        config = configure(system, arguments.env, {**settings, **given})
        parts, limits, measured = measure(config, arguments.seconds, arguments.limit_seconds)
        best = max(best, measured.steps) if work == "peers" else best
        table.add_row(*row(config, work, parts, limits, measured))
    console = Console(width=150)
    console.print(table)
    if arguments.peers:
        console.print(peer_table(measure_peers(arguments.env, arguments.seconds, DQNS), best))
    console.print(provenance())


if __name__ == "__main__":
    main()
