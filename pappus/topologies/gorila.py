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

Everybody goes on at their own pace: a gradient may be computed with weights that have changed since. The servers drop
those that are too old, and those of batches whose loss is unusual.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from pappus.config import RunConfig
from pappus.core import (
    Algorithm,
    ItemSink,
    ItemSource,
    ReplayAlgorithm,
    ShardWeights,
    Sink,
    Source,
    StepCounter,
    StepTotal,
    WeightsReader,
)
from pappus.errors import UserError
from pappus.networks.flat import FlatParameters
from pappus.replay.ports import DirectReplay
from pappus.roles.actor_learner import Bundle, RemoteGradientLearner
from pappus.roles.evaluator import Evaluator
from pappus.roles.parameter_server import ParameterServer, ServerSettings, gradient_spec
from pappus.roles.shards import ShardedChannel, ShardedWeights, shard_sizes
from pappus.topologies.apex import ApexConfig, build_actor, build_replay_server, replay_spec
from pappus.topologies.impala import build_evaluator as build_plain_evaluator
from pappus.topologies.impala import learner_settings
from pappus.topologies.program import Program
from pappus.topologies.run import Run, derive_seed, off_policy


@dataclass(frozen=True)
class GorilaConfig(ApexConfig):
    """`--actors` is the number of bundles; `replay` is each bundle's own memory, or the one that all share."""

    replay_memory: Literal["local", "central"] = "local"
    """local: every bundle learns from what its own actor saw. central: all write into one memory, and learn from it."""
    shards: int = 1
    """Parameter servers, each with a part of the weights."""
    max_staleness: int = 100
    """A gradient is dropped if its weights are more versions old than this."""
    loss_deviations: float = 5.0
    """A gradient is dropped if its loss is so many standard deviations above the usual; 0: never."""

    def check(self, config: RunConfig) -> None:
        """Raise `UserError` for a rule that the run's config breaks."""
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


def gorila(run: Run) -> Program:
    """The program of the figure above."""
    config, program = run.config, Program("gorila", run.config.seed)
    assert isinstance(config.topology, GorilaConfig)
    check_network(off_policy(run.algorithm))
    topology, shards = config.topology, config.topology.shards
    steps = program.counters("steps", writers=config.actors)
    sizes = shard_sizes(run.weights_size, shards)
    gradients = [
        program.queue(f"gradients-{i}", gradient_spec(size), producers=config.actors, capacity=2)
        for i, size in enumerate(sizes)
    ]
    weights = [program.weights(f"weights-{i}", size) for i, size in enumerate(sizes)]
    settings = ServerSettings(config.optimizer, config.steps, topology.max_staleness, topology.loss_deviations)
    replay = None
    if topology.replay_memory == "central":
        envs = config.actors * config.envs_per_actor
        replay = program.replay("replay", replay_spec(run, topology.replay, envs, topology.prefetch))

    for i in range(config.actors):
        program.add(
            f"bundle-{i}", build_bundle, run=run, index=i, counter=steps.counter(i),
            gradients=[edge.sink(i) for edge in gradients], weights=[edge.reader() for edge in weights],
            sink=replay.sink(config.envs_per_actor) if replay else None, source=replay.source() if replay else None,
        )
    if replay:
        program.add("replay", build_replay_server, durable=True, run=run, replay_server=replay.replay_server())
    for i in range(shards):
        program.add(
            f"parameter-server-{i}", build_server, durable=True, run=run, index=i, shards=shards, settings=settings,
            source=gradients[i].source(), weights=weights[i].writer(), counted=steps.reader(),
        )
    program.add("evaluator", build_evaluator, run=run, weights=[edge.reader() for edge in weights])
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


def refuse_buffers(algorithm: Algorithm, who: str, instead: str) -> None:
    """Raise `UserError` for a network with numbers that no gradient moves."""
    buffers = [name for name, buffer in algorithm.build_network().named_buffers() if buffer.is_floating_point()]
    if buffers:
        raise UserError(
            f"the network has buffers that no gradient moves ({', '.join(buffers[:3])}), and {who} know of weights "
            f"only; use layers without running statistics, make constants plain attributes, or use {instead}"
        )


def build_server(
    name: str, incarnation: int, run: Run, index: int, shards: int, settings: ServerSettings, source: Source,
    weights: ShardWeights, counted: StepTotal,
) -> ParameterServer:
    """One of so many shards; all begin with parts of the same weights."""
    initial = torch.split(initial_weights(run), shard_sizes(run.weights_size, shards))[index]
    return ParameterServer(name, initial, source, weights, settings, counted, leads=index == 0)


def initial_weights(run: Run) -> torch.Tensor:
    """What a run's learners begin with, in one flat tensor."""
    torch.manual_seed(derive_seed(run.config.seed, "learner")[0])
    return FlatParameters(run.algorithm.build_network()).values


def build_bundle(
    name: str, incarnation: int, run: Run, index: int, counter: StepCounter, gradients: Sequence[Sink],
    weights: Sequence[WeightsReader], sink: ItemSink | None, source: ItemSource | None,
) -> Bundle:
    """An actor and a learner around the replay memory that they are given, or else one of their own."""
    config, topology = run.config, run.config.topology
    assert isinstance(topology, GorilaConfig)
    if sink is None or source is None:
        replay = DirectReplay(replay_spec(run, topology.replay, config.envs_per_actor, topology.prefetch, index))
        sink, source = replay.sink(config.envs_per_actor), replay.source()
    sizes = shard_sizes(run.weights_size, topology.shards)
    actor = build_actor(name, incarnation, run, index, sink, ShardedWeights(weights, sizes), counter)
    learner = RemoteGradientLearner(
        name, off_policy(run.algorithm), source, ShardedChannel(weights, gradients, sizes), counter,
        learner_settings(run), topology.replay.capacity,
    )
    return Bundle(name, actor, learner)


def build_evaluator(name: str, incarnation: int, run: Run, weights: Sequence[WeightsReader]) -> Evaluator:
    """Greedy, on envs of its own."""
    sizes = shard_sizes(run.weights_size, len(weights))
    return build_plain_evaluator(name, incarnation, run, ShardedWeights(weights, sizes))
