"""Offline: a learner, and data in place of actors (Levine et al. 2020; batch RL of Ernst et al. 2005).

    data set ──episodes──▶ reader ──items──▶ replay ──batch──▶ learner ──weights──▶ evaluator
                                                ▲─priorities─┘

A reader plays episodes of the set, many side by side, as an actor plays envs, and records them in the same way: n-step
returns, sequences and frame stacks are those of online replay. Data that fits into the table is read once, and the
learner starts when all of it is in; data that does not fit is streamed through the table in shuffled order. A step is
an update.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pappus.config import ReplayConfig, RunConfig, TopologyConfig
from pappus.edges.replay import ReplayEdge
from pappus.edges.weights import WeightsEdge
from pappus.envs.external import has_no_env
from pappus.errors import UserError
from pappus.kinds import EVALUATOR, LEARNER, READER, REPLAY
from pappus.replay import find_selector
from pappus.topologies.builders import build_evaluator
from pappus.topologies.data_tables import about_fits, build_reader, build_table_server, data_table, memory_limit
from pappus.topologies.learners import build_replay_learner
from pappus.topologies.program import Program, Run


@dataclass(frozen=True)
class DataReplayConfig(ReplayConfig):
    """The table of data."""

    capacity: int = 0
    """Maximum number of items; 0: all of the data, or as many as fit into --topology.memory."""
    warm_up: int = 0
    """For streamed data: items required before the first update; 0: half of the capacity."""
    samples_per_insert: float = 8.0
    """For streamed data: mean number of times that an item is sampled before it is replaced."""
    tolerance: float = 32.0
    """For streamed data: batches by which sampling may be ahead of that ratio, or behind it."""
    sampler: str = "uniform"
    """Selector of sampled items: uniform, prioritized, or your own as module:name."""


@dataclass(frozen=True)
class OfflineConfig(TopologyConfig):
    """The data, and the replay between data and learner."""

    uses_data: ClassVar[Literal["no", "beside", "only"]] = "only"
    evaluations: ClassVar[int] = 10
    fresh_start: ClassVar[str] = "data is read again, and batches are drawn in another order"

    replay: DataReplayConfig = field(default_factory=DataReplayConfig)
    """The table."""
    memory: str = ""
    """Maximum memory of the table, such as 4GiB; larger data is streamed. Empty: half of this machine's memory."""
    best: float = 1.0
    """Share of episodes to read, those with the highest returns."""
    readers: int = 1
    """Readers that divide the episodes of streamed data; data that fits has one."""
    prefetch: int = 16
    """Batches prefetched for the learner."""

    def check(self, config: RunConfig) -> None:
        if config.actors or config.envs:
            raise UserError(
                f"actors={config.actors}, envs={config.envs}: {config.system_name!r} learns from data and steps no "
                "envs; leave --actors and --envs out"
            )
        if config.batch_size < 1:
            raise UserError(f"batch_size={config.batch_size} must be at least 1: how many items make an update")
        if config.target_return is not None and has_no_env(config.env):
            raise UserError(
                f"target_return={config.target_return}: without an env nothing is evaluated, so no return ends the "
                "run; leave --target-return out, or give --env"
            )
        if self.readers < 1 or self.prefetch < 1:
            raise UserError(f"topology.readers={self.readers} and prefetch={self.prefetch} must be at least 1")
        if not 0 < self.best <= 1:
            raise UserError(f"topology.best={self.best} must be a share of all episodes, above 0 and at most 1")
        memory_limit(self.memory)
        check_data_replay(self.replay)

    def takes_turns(self, config: RunConfig) -> bool:
        """Once all data is read, only the learner works; data that does not fit is read beside it."""
        return not config.data or about_fits(config.data, self.memory, self.replay.capacity)


def check_data_replay(replay: ReplayConfig) -> None:
    """Raise `UserError` for a table of data that cannot work."""
    if replay.capacity < 0 or not 0 <= replay.warm_up <= (replay.capacity or replay.warm_up):
        raise UserError(
            f"replay.capacity={replay.capacity} must not be negative, and warm_up={replay.warm_up} lie between 0 and it"
        )
    if not replay.samples_per_insert > 0 or not replay.tolerance >= 1:
        raise UserError(
            f"replay.samples_per_insert={replay.samples_per_insert} must be positive, and tolerance={replay.tolerance} "
            "at least 1 batch"
        )
    for name in ("priority_exponent", "importance_exponent"):
        if not 0 <= getattr(replay, name) <= 1:
            raise UserError(f"replay.{name}={getattr(replay, name)} must lie between 0 and 1")
    for selector in (replay.sampler, replay.remover):
        find_selector(selector)  # raises for a name that is unknown


def offline(run: Run) -> Program:
    config, program = run.config, Program("offline", run.config.seed)
    topology = config.topology
    assert isinstance(topology, OfflineConfig)
    table = data_table(
        run, topology.replay, topology.memory, topology.best, topology.readers, topology.prefetch, config.batch_size
    )
    replay = program.connect(ReplayEdge("replay", table.spec))
    weights = program.connect(WeightsEdge("weights", run.weights_size))

    for i in range(table.readers):
        program.add(READER, build_reader, index=i, run=run, table=table, sink=replay.sink(table.lanes))
    program.add(REPLAY, build_table_server, durable=True, host=replay.host(), table=table)
    program.add(
        LEARNER, build_replay_learner, essential=True, run=run, capacity=replay.spec.table.max_size,
        source=replay.source(), weights=weights.writer(), counted=None, keeps_rows=topology.replay.keep_on_device,
    )
    if not has_no_env(run.env):
        program.add(EVALUATOR, build_evaluator, run=run, weights=weights.reader())
    return program
