"""Builders of learners, and of what applies their gradients, that topologies share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from pappus.algorithms.ppo import PPO
from pappus.algorithms.synced_ppo import SyncedPPO
from pappus.config import ReplayConfig, RunConfig
from pappus.core import (
    Algorithm,
    AllReduce,
    GradientChannel,
    ItemSink,
    ItemSource,
    ShardWeights,
    SharedParameters,
    Sink,
    Source,
    StepCounter,
    StepTotal,
    WeightsReader,
    WeightsWriter,
)
from pappus.errors import UserError
from pappus.networks.flat import FlatParameters
from pappus.recording.direct import DirectReplay
from pappus.roles.actor_learner import Bundle, RemoteGradientLearner
from pappus.roles.epoch_learner import EpochLearner
from pappus.roles.gradient_learner import GradientLearner, LearnerSettings, NoWeights
from pappus.roles.learner import Learner
from pappus.roles.lock_free import LockFreeChannel
from pappus.roles.master import Master
from pappus.roles.parameter_server import ParameterServer, ServerSettings
from pappus.roles.replay_learner import ReplayLearner
from pappus.roles.shards import ShardedChannel, ShardedWeights, shard_sizes
from pappus.roles.synced_epochs import SyncedEpochLearner
from pappus.roles.worker import UnrollSlot, Worker, WorkerLearner
from pappus.topologies.builders import build_actor, build_replay_actor, replay_spec
from pappus.topologies.learners import device_of
from pappus.topologies.run import Run, derive_seed, off_policy, on_policy


def build_learner(
    name: str, incarnation: int, run: Run, slots: int, source: Source, weights: WeightsWriter | None,
    nearby: WeightsWriter | None = None, index: int = 0, all_reduce: AllReduce | None = None,
) -> Learner:
    """A learner; so many slots of its source make one batch."""
    settings = replace(learner_settings(run, index), all_reduce=all_reduce)
    return Learner(name, on_policy(run.algorithm), source, weights or NoWeights(), settings, slots, nearby)


def learner_settings(run: Run, index: int = 0) -> LearnerSettings:
    """What the learner of that number needs to know of the run; all begin with the same weights."""
    config = run.config
    return LearnerSettings(
        config.optimizer, config.steps, derive_seed(config.seed, "learner")[0], device_of(config, index),
        config.precision, run.directory,
    )


def actors_of(config: RunConfig, learner: int) -> int:
    """How many actors feed the learner of that number: they are dealt out in turn."""
    return len(range(learner, config.actors, config.learners))


def slots_per_batch(config: RunConfig, learner: int) -> int:
    """Unrolls of whole actors that make a batch of that learner: as many as the config says, or one of each."""
    steady = len(range(learner, config.steady_actors, config.learners))
    return config.batch_size // config.envs_per_actor or steady


def build_sync_learner(
    name: str, incarnation: int, run: Run, slots: int, source: Source, weights: WeightsWriter | None, index: int = 0,
    all_reduce: AllReduce | None = None, published: WeightsReader | None = None,
) -> GradientLearner:
    """One that goes over a batch several times, if its algorithm does so; so many slots make a batch."""
    settings = replace(learner_settings(run, index), all_reduce=all_reduce, published=published)
    publishes = weights or NoWeights()
    algorithm: Any = run.algorithm
    if not isinstance(algorithm, PPO):
        return Learner(name, on_policy(algorithm), source, publishes, settings, slots)
    if all_reduce is None:
        return EpochLearner(name, algorithm, source, publishes, settings, slots)
    return SyncedEpochLearner(name, algorithm, SyncedPPO(algorithm), source, publishes, settings, slots)


def build_replay_learner(
    name: str, incarnation: int, run: Run, capacity: int, source: ItemSource, weights: WeightsWriter,
    counted: StepTotal,
) -> ReplayLearner:
    """The one learner."""
    return ReplayLearner(name, off_policy(run.algorithm), source, weights, counted, learner_settings(run), capacity)


def build_bundle(
    name: str, incarnation: int, run: Run, index: int, counter: StepCounter, gradients: Sequence[Sink],
    weights: Sequence[WeightsReader], memory: ReplayConfig, refresh_every: int, prefetch: int,
    sink: ItemSink | None, source: ItemSource | None,
) -> Bundle:
    """An actor and a learner around the replay memory that they are given, or else one of their own."""
    if sink is None or source is None:
        envs = run.config.envs_per_actor
        replay = DirectReplay(replay_spec(run, memory, envs, prefetch, index))
        sink, source = replay.sink(envs), replay.source()
    sizes = shard_sizes(run.weights_size, len(weights))
    sharded = ShardedWeights(weights, sizes)
    actor = build_replay_actor(name, incarnation, run, index, refresh_every, sink, sharded, counter)
    learner = RemoteGradientLearner(
        name, off_policy(run.algorithm), source, ShardedChannel(weights, gradients, sizes), counter,
        learner_settings(run), memory.capacity,
    )
    return Bundle(name, actor, learner)


def build_parameter_server(
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


def refuse_buffers(algorithm: Algorithm, who: str, instead: str) -> None:
    """Raise `UserError` for a network with numbers that no gradient moves."""
    buffers = [name for name, buffer in algorithm.build_network().named_buffers() if buffer.is_floating_point()]
    if buffers:
        raise UserError(
            f"the network has buffers that no gradient moves ({', '.join(buffers[:3])}), and {who} know of weights "
            f"only; use layers without running statistics, make constants plain attributes, or use {instead}"
        )


def build_lock_free_worker(
    name: str, incarnation: int, run: Run, index: int, shared: SharedParameters, steps: StepCounter,
    updates: StepCounter,
) -> Worker:
    """One that changes the weights itself."""
    gradient_channel = LockFreeChannel(shared, updates, steps, run.config.optimizer, run.config.steps)
    return build_worker(name, incarnation, run, index, gradient_channel, steps)


def build_remote_gradient_worker(
    name: str, incarnation: int, run: Run, index: int, gradients: Sequence[Sink], weights: Sequence[WeightsReader],
    steps: StepCounter,
) -> Worker:
    """One that sends its gradients to shards."""
    gradient_channel = ShardedChannel(weights, gradients, shard_sizes(run.weights_size, len(weights)))
    return build_worker(name, incarnation, run, index, gradient_channel, steps)


def build_worker(
    name: str, incarnation: int, run: Run, index: int, gradient_channel: GradientChannel, steps: StepCounter
) -> Worker:
    """An actor and a learner around one unroll."""
    slot = UnrollSlot(run.unroll_spec(run.config.envs_per_actor), gradient_channel)
    learner = WorkerLearner(name, on_policy(run.algorithm), slot, gradient_channel, steps, learner_settings(run))
    return Worker(name, build_actor(name, incarnation, run, index, slot, learner.weights), learner, slot)


def build_master(
    name: str, incarnation: int, run: Run, shared: SharedParameters, weights: WeightsWriter, steps: StepTotal,
    updates: StepTotal,
) -> Master:
    """The one master."""
    config = run.config
    return Master(name, initial_weights(run), shared, weights, steps, updates, config.optimizer, config.steps)
