"""Gorila (Nair et al. 2015, figure 2).

    bundle 0: env ⇄ actor ──▶ replay ──▶ learner ──gradients──┐
    bundle 1: env ⇄ actor ──▶ replay ──▶ learner ──gradients──┼──▶ parameter server 0 ‖ 1 ‖ … S
      ⋮                                                       │        (each a part of the weights)
    bundle N: env ⇄ actor ──▶ replay ──▶ learner ──gradients──┘                │
                      ▲                     ▲                                  │
                      └─────────────────────┴────────── weights ◀──────────────┘──▶ evaluator

With a central memory instead of local ones:

    bundle 0: env ⇄ actor ──items──┐            ┌──batch──▶ learner ──gradients──┐
    bundle 1: env ⇄ actor ──items──┼──▶ replay ─┼──batch──▶ learner ──gradients──┼──▶ parameter server 0 ‖ 1 ‖ … S
      ⋮                            │            │                                │
    bundle N: env ⇄ actor ──items──┘            └──batch──▶ learner ──gradients──┘

No bundle waits for another: a gradient may be computed with weights that have changed since. The servers drop
those that are too old, and those of batches whose loss is unusual.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pappus.config import RunConfig
from pappus.core import ItemSink, ItemSource, ReplayAlgorithm, Sink, StepCounter, WeightsReader
from pappus.edges.counters import CounterEdge
from pappus.edges.queue import QueueEdge
from pappus.edges.replay import ReplayEdge
from pappus.edges.weights import WeightsEdge
from pappus.errors import UserError
from pappus.kinds import BUNDLE, EVALUATOR, PARAMETER_SERVER, REPLAY
from pappus.recording.direct import DirectReplay
from pappus.roles.actor_learner import Bundle
from pappus.roles.gradient_step import GradientStep
from pappus.roles.learner import Learner
from pappus.roles.parameter_server import ServerSettings, ShardedChannel, ShardedWeights, gradient_spec, shard_sizes
from pappus.roles.replay_server import FOLDER, ReplayServer
from pappus.roles.replay_training import ReplayTraining
from pappus.telemetry.metrics import Metrics
from pappus.topologies.apex import ApexConfig
from pappus.topologies.builders import (
    build_evaluator,
    build_parameter_server,
    build_replay_actor,
    build_replay_server,
    refuse_buffers,
    replay_spec,
)
from pappus.topologies.learners import learner_settings
from pappus.topologies.program import Program, Run, off_policy


@dataclass(frozen=True)
class GorilaConfig(ApexConfig):
    """`--actors` is the number of bundles; `replay` sets each bundle's own memory, or the shared one."""

    replay_memory: Literal["local", "central"] = "local"
    """local: every bundle learns from its own actor's experience. central: all share one replay memory."""
    shards: int = 1
    """Parameter servers, each with a part of the weights."""
    max_staleness: int = 100
    """Drop a gradient whose weights are more than this many versions old."""
    loss_deviations: float = 5.0
    """A gradient is dropped if its loss is this many standard deviations above the running mean; 0: never."""

    actors_train: ClassVar[bool] = True
    uses_gpu: ClassVar[bool] = False
    uses_data: ClassVar[Literal["no", "beside", "only"]] = "no"

    def actors_for(self, config: RunConfig, cores: int, heavy: bool) -> int:
        """A bundle computes all the time."""
        return max(2, cores - self.shards)

    def check(self, config: RunConfig) -> None:
        super().check(config)
        if config.device != "cpu":
            raise UserError(f"device={config.device!r}: gorila's many learners share no device; use cpu, or apex")
        if self.shards < 1 or self.max_staleness < 0 or self.loss_deviations < 0:
            raise UserError(
                f"topology.shards={self.shards} must be at least 1, max_staleness={self.max_staleness} and "
                f"loss_deviations={self.loss_deviations} at least 0"
            )

    @property
    def slack_option(self) -> str:
        """Around a local memory actor and learner take turns in one thread: neither is ahead."""
        return super().slack_option if self.replay_memory == "central" else ""


def refusal(algorithm: Any) -> str:
    """Why it cannot carry an algorithm, an `AlgorithmSpec`; empty where it can."""
    return "" if algorithm.updates_all_weights else (
        f"{algorithm.name} trains parts of its network less often, and gorila's parameter servers apply each gradient "
        f"to all weights; use {algorithm.name}@apex"
    )


def gorila(run: Run) -> Program:
    config, program = run.config, Program("gorila", run.config.seed)
    assert isinstance(config.topology, GorilaConfig)
    check_network(off_policy(run.algorithm))
    topology, shards = config.topology, config.topology.shards
    steps = program.connect(CounterEdge("steps", writers=config.actors))
    sizes = shard_sizes(run.weights_size, shards)
    gradients = [
        program.connect(QueueEdge(f"gradients-{i}", gradient_spec(size), producers=config.actors, capacity=2))
        for i, size in enumerate(sizes)
    ]
    weights = [program.connect(WeightsEdge(f"weights-{i}", size)) for i, size in enumerate(sizes)]
    settings = ServerSettings(config.optimizer, config.steps, topology.max_staleness, topology.loss_deviations)
    replay = None
    if topology.replay_memory == "central":
        envs = config.actors * config.envs_per_actor
        replay = program.connect(ReplayEdge("replay", replay_spec(run, topology.replay, envs, topology.prefetch)))

    for i in range(config.actors):
        program.add(
            BUNDLE, build_bundle, index=i, run=run, topology=topology, counter=steps.counter(i),
            gradients=[edge.sink(i) for edge in gradients], weights=[edge.reader() for edge in weights],
            sink=replay.sink(config.envs_per_actor) if replay else None, source=replay.source() if replay else None,
        )
    if replay:
        program.add(REPLAY, build_replay_server, durable=True, run=run, host=replay.host())
    for i in range(shards):
        program.add(
            PARAMETER_SERVER, build_parameter_server, index=i, durable=True, run=run, shards=shards,
            settings=settings, source=gradients[i].source(), weights=weights[i].writer(), counted=steps.reader(),
        )
    program.add(EVALUATOR, build_evaluator, run=run, weights=[edge.reader() for edge in weights])
    return program


def check_network(algorithm: ReplayAlgorithm) -> None:
    """Raise `UserError` for a network of which some weights are not moved by every gradient."""
    refuse_buffers(algorithm, "gorila's servers", "apex")
    if max(algorithm.part_delays) > 1:
        raise UserError(
            f"{type(algorithm).__name__} trains parts of its network only every {max(algorithm.part_delays)} updates, "
            "and gorila's servers apply each gradient to all weights; train all parts at every update (with ddpg, "
            "--algorithm.policy-delay 1), or use apex"
        )


def build_bundle(
    name: str, incarnation: int, run: Run, topology: GorilaConfig, index: int, counter: StepCounter,
    gradients: Sequence[Sink], weights: Sequence[WeightsReader], sink: ItemSink | None, source: ItemSource | None,
) -> Bundle:
    """An actor and a learner around a given replay memory, or else one of their own."""
    memory = None
    if sink is None or source is None:
        envs = run.config.envs_per_actor
        replay = DirectReplay(replay_spec(run, topology.replay, envs, topology.prefetch, index))
        sink, source = replay.sink(envs), replay.source()
        memory = ReplayServer(name, replay, None if run.directory is None else run.directory / FOLDER / name, name)
    sizes = shard_sizes(run.weights_size, len(weights))
    own = ShardedWeights(weights, sizes)
    actor = build_replay_actor(name, incarnation, run, index, topology.refresh_every, sink, own, counter)
    channel = ShardedChannel(weights, gradients, sizes)
    gradient = GradientStep(Metrics(name), run.algorithm, learner_settings(run), channel=channel)
    training = ReplayTraining(off_policy(run.algorithm), source, counter, gradient, topology.replay.capacity)
    return Bundle(name, actor, Learner(name, gradient, training), memory)
