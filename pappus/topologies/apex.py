"""Ape-X (Horgan et al. 2018, figure 1).

    actor 0 ──items, priorities──┐
    actor 1 ──items, priorities──┼──▶ replay ──batch──▶ learner ──┐
      ⋮                          │       ▲                 │      │
    actor N ──items, priorities──┘       └───priorities────┘      │
        ▲                                                         │
        └─────────────────── weights (versioned) ◀────────────────┘──▶ evaluator

Every env explores to a degree of its own. Actors compute the first priorities from the values that they acted on; the
learner updates them. The table's limiter holds samples per insert to a ratio: whoever is ahead waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from pappus.config import ReplayConfig, RunConfig, TopologyConfig
from pappus.core import ItemSink, ItemSource, StepCounter, StepTotal, WeightsReader, WeightsWriter
from pappus.envs.vector import make_env
from pappus.errors import UserError
from pappus.replay.experience_tables import layout_for
from pappus.replay.recording import history_of
from pappus.replay.service import CHUNK_LENGTH
from pappus.replay.spec import ReplaySpec
from pappus.roles.policy import LocalPolicy
from pappus.roles.replay_actor import ReplayActor
from pappus.roles.replay_learner import ReplayLearner
from pappus.roles.replay_server import ReplayHost, ReplayServer
from pappus.topologies.impala import build_evaluator, learner_settings
from pappus.topologies.program import Program
from pappus.topologies.run import Run, derive_seed, off_policy
from pappus.transports.addresses import private_socket
from pappus.types import Array


@dataclass(frozen=True)
class ApexConfig(TopologyConfig):
    """What lies between actors and learner."""

    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """The table."""
    refresh_every: int = 400
    """Env steps of an actor between two looks at the newest weights."""
    prefetch: int = 16
    """Batches that are drawn ahead of the learner."""

    def check(self, config: RunConfig) -> None:
        """Raise `UserError` for a rule that the run's config breaks."""
        if config.actors < 1:
            raise UserError(f"actors={config.actors} must be at least 1")
        if config.batch_size < 1:
            raise UserError(f"batch_size={config.batch_size} must be at least 1: how many items make an update")
        check_replay(self.replay)
        if self.refresh_every < 1 or self.prefetch < 1:
            raise UserError(f"refresh_every={self.refresh_every} and prefetch={self.prefetch} must be at least 1")

    @property
    def slack_option(self) -> str:
        """The table's limiter holds both sides together."""
        return "--topology.replay.tolerance"


def check_replay(replay: ReplayConfig) -> None:
    """Raise `UserError` for a table that cannot work."""
    if not 1 <= replay.warm_up <= replay.capacity:
        raise UserError(f"replay.warm_up={replay.warm_up} must lie between 1 and capacity={replay.capacity}")
    if not replay.samples_per_insert > 0:
        raise UserError(f"replay.samples_per_insert={replay.samples_per_insert} must be positive")
    if not replay.tolerance >= 1:
        raise UserError(f"replay.tolerance={replay.tolerance} must be at least 1 batch")
    for name in ("priority_exponent", "importance_exponent"):
        if not 0 <= getattr(replay, name) <= 1:
            raise UserError(f"replay.{name}={getattr(replay, name)} must lie between 0 and 1")


def apex(run: Run) -> Program:
    """The program of the figure above."""
    config, program = run.config, Program("apex", run.config.seed)
    assert isinstance(config.topology, ApexConfig)
    envs = config.actors * config.envs_per_actor
    replay = program.replay("replay", replay_spec(run, config.topology.replay, envs, config.topology.prefetch))
    weights = program.weights("weights", run.weights_size)
    steps = program.counters("steps", writers=config.actors)

    for i in range(config.actors):
        program.add(
            f"actor-{i}", build_actor, run=run, index=i, sink=replay.sink(config.envs_per_actor),
            weights=weights.reader(), counter=steps.counter(i),
        )
    program.add("replay", build_replay_server, durable=True, run=run, replay_server=replay.replay_server())
    program.add(
        "learner", build_learner, essential=True, run=run, capacity=replay.spec.table.max_size,
        source=replay.source(), weights=weights.writer(), counted=steps.reader(),
    )
    program.add("evaluator", build_evaluator, run=run, weights=weights.reader())
    return program


def replay_spec(run: Run, config: ReplayConfig, envs: int, prefetch: int, index: int = 0) -> ReplaySpec:
    """A table (of several, the one of that number), with room for what is not an item yet of so many envs."""
    algorithm = off_policy(run.algorithm)
    layout = layout_for(run.env_spec, algorithm.behaviour, run.state_spec, algorithm.experience)
    chunks_ahead = 2 + math.ceil((history_of(layout) + layout.lead) / CHUNK_LENGTH)
    max_steps = config.capacity * layout.steps_per_item + envs * CHUNK_LENGTH * 2 * chunks_ahead
    return ReplaySpec(
        layout, layout.table(config, run.config.batch_size), max_steps, run.config.batch_size,
        config.importance_exponent, derive_seed(run.config.seed, "replay", index)[0], prefetch,
        private_socket(f"{run.directory}"),
    )


def build_actor(
    name: str, incarnation: int, run: Run, index: int, sink: ItemSink, weights: WeightsReader, counter: StepCounter
) -> ReplayActor:
    """An actor with a policy of its own, and a degree of exploration for each of its envs."""
    config, algorithm = run.config, off_policy(run.algorithm)
    assert isinstance(config.topology, ApexConfig)
    env_seed, policy_seed = derive_seed(config.seed, "actor", index, incarnation)
    env = make_env(run.env, config.envs_per_actor, env_seed, config.env_options)
    policy = LocalPolicy(
        algorithm, weights, config.envs_per_actor, policy_seed, config.precision, exploration_of(run, index, counter)
    )
    return ReplayActor(name, env, policy, sink, counter, config.topology.refresh_every)


def exploration_of(run: Run, index: int, counter: StepCounter) -> Callable[[], Array]:
    """How much each env of an actor explores, at any time."""
    algorithm, count = off_policy(run.algorithm), run.config.envs_per_actor
    envs = index * count + np.arange(count)
    return lambda: algorithm.exploration(envs, run.config.actors * count, counter.total())


def build_replay_server(name: str, incarnation: int, run: Run, replay_server: ReplayHost) -> ReplayServer:
    """The one table."""
    return ReplayServer(name, replay_server, None if run.directory is None else run.directory / "replay")


def build_learner(
    name: str, incarnation: int, run: Run, capacity: int, source: ItemSource, weights: WeightsWriter,
    counted: StepTotal,
) -> ReplayLearner:
    """The one learner."""
    return ReplayLearner(name, off_policy(run.algorithm), source, weights, counted, learner_settings(run), capacity)
