"""Ape-X (Horgan et al. 2018, figure 1).

    actor 0 ──items, priorities──┐
    actor 1 ──items, priorities──┼──▶ replay ──batch──▶ learner ──┐
      ⋮                          │       ▲                 │      │
    actor N ──items, priorities──┘       └───priorities────┘      │
        ▲                                                         │
        └─────────────────── weights (versioned) ◀────────────────┘──▶ evaluator

Every env has its own degree of exploration. Actors compute initial priorities from the values that they acted on; the
learner updates them. The table's rate limiter fixes the ratio of samples to inserts: the side that is ahead waits. With
`--data`, a reader fills a second table, and a share of every batch comes from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pappus.config import ReplayConfig, RunConfig, TopologyConfig
from pappus.edges.counters import CounterEdge
from pappus.edges.replay import ReplayEdge
from pappus.edges.weights import WeightsEdge
from pappus.errors import UserError
from pappus.kinds import ACTOR, EVALUATOR, LEARNER, REPLAY
from pappus.replay import find_selector
from pappus.topologies.builders import build_evaluator, build_replay_actor, build_replay_server, replay_spec
from pappus.topologies.data_tables import add_data
from pappus.topologies.learners import build_replay_learner
from pappus.topologies.program import Program, Run


@dataclass(frozen=True)
class ApexConfig(TopologyConfig):
    """The replay between actors and learner."""

    uses_data: ClassVar[Literal["no", "beside", "only"]] = "beside"

    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """The table."""
    refresh_every: int = 400
    """Env steps of an actor between two checks for new weights."""
    prefetch: int = 16
    """Batches prefetched for the learner."""

    def check(self, config: RunConfig) -> None:
        if config.actors < 1:
            raise UserError(f"actors={config.actors} must be at least 1")
        if config.batch_size < 1:
            raise UserError(f"batch_size={config.batch_size} must be at least 1: how many items make an update")
        check_replay(self.replay)
        if self.refresh_every < 1 or self.prefetch < 1:
            raise UserError(f"refresh_every={self.refresh_every} and prefetch={self.prefetch} must be at least 1")

    def items_per_update(self, config: RunConfig) -> int:
        return config.batch_size

    def policy_lag(self, config: RunConfig) -> float:
        """Updates of the steps that all envs make before their actors look for weights."""
        steps = config.actors * max(self.refresh_every, config.envs_per_actor)
        return steps * self.replay.samples_per_insert / config.batch_size

    def actors_for(self, config: RunConfig, cores: int, heavy: bool) -> int:
        """Learner and replay server need a core each. One actor of cheap envs is faster than the learner."""
        return cores - 2 if heavy else 1

    @property
    def slack_option(self) -> str:
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
    for selector in (replay.sampler, replay.remover):
        find_selector(selector)  # raises for a name that is unknown


def apex(run: Run) -> Program:
    config, program = run.config, Program("apex", run.config.seed)
    assert isinstance(config.topology, ApexConfig)
    envs = config.actors * config.envs_per_actor
    spec = replay_spec(run, config.topology.replay, envs, config.topology.prefetch)
    replay = program.connect(ReplayEdge("replay", spec))
    weights = program.connect(WeightsEdge("weights", run.weights_size))
    steps = program.connect(CounterEdge("steps", writers=config.actors))

    for i in range(config.actors):
        program.add(
            ACTOR, build_replay_actor, index=i, run=run, refresh_every=config.topology.refresh_every,
            sink=replay.sink(config.envs_per_actor), weights=weights.reader(), counter=steps.counter(i),
        )
    program.add(REPLAY, build_replay_server, durable=True, run=run, host=replay.host())
    program.add(
        LEARNER, build_replay_learner, essential=True, run=run, capacity=replay.spec.table.max_size,
        source=replay.source(), data=add_data(program, run, config.topology.replay, config.topology.prefetch),
        weights=weights.writer(), counted=steps.reader(), keeps_rows=config.topology.replay.keep_on_device,
    )
    program.add(EVALUATOR, build_evaluator, run=run, weights=weights.reader())
    return program
