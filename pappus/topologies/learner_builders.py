"""Builders of learners, and of the roles that apply their gradients."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pappus.config import ReplayConfig, RunConfig
from pappus.core import (
    Algorithm,
    AllReduce,
    EpochAlgorithm,
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
from pappus.roles.actor_learner import Bundle, OwnWeights, UnrollSlot, Worker
from pappus.roles.epoch_training import EpochTraining
from pappus.roles.gradient_step import GradientStep, LearnerSettings
from pappus.roles.learner import Learner, Publication, Training
from pappus.roles.lock_free import LockFreeChannel
from pappus.roles.master import Master
from pappus.roles.parameter_server import ParameterServer, ServerSettings
from pappus.roles.replay_training import ReplayTraining
from pappus.roles.shards import ShardedChannel, ShardedWeights, shard_sizes
from pappus.roles.unroll_training import UnrollTraining
from pappus.telemetry.metrics import Metrics
from pappus.topologies.builders import build_actor, build_replay_actor, replay_spec
from pappus.topologies.learners import device_of, synced_epochs
from pappus.topologies.run import Run, derive_seed, off_policy, on_policy


def build_learner(
    name: str, incarnation: int, run: Run, slots: int, source: Source, weights: WeightsWriter | None,
    nearby: WeightsWriter | None = None, index: int = 0, all_reduce: AllReduce | None = None,
    published: WeightsReader | None = None,
) -> Learner:
    """A learner of unrolls, in epochs if its algorithm has them; `slots` slots of its source make a batch."""
    algorithm = run.algorithm
    gradient = GradientStep(Metrics(name), algorithm, learner_settings(run, index), all_reduce)
    training: Training
    if isinstance(algorithm, EpochAlgorithm):
        synced = None if all_reduce is None else synced_epochs(algorithm, all_reduce.members)
        training = EpochTraining(algorithm, source, gradient, slots, synced)
    else:
        training = UnrollTraining(on_policy(algorithm), source, gradient, slots, releases_early=nearby is not None)
    return Learner(name, gradient, training, Publication(weights, nearby, published))


def learner_settings(run: Run, index: int = 0) -> LearnerSettings:
    """Settings of learner `index`; all learners begin with the same weights."""
    config = run.config
    return LearnerSettings(
        config.optimizer, config.steps, derive_seed(config.seed, "learner")[0], device_of(config, index),
        config.precision, run.directory,
    )


def actors_of(config: RunConfig, learner: int) -> int:
    """The number of actors that feed learner `learner`; actors are assigned in turn."""
    return len(range(learner, config.actors, config.learners))


def slots_per_batch(config: RunConfig, learner: int) -> int:
    """Unrolls that make a batch of learner `learner`: as the config says, or one of each of its actors."""
    steady = len(range(learner, config.steady_actors, config.learners))
    return config.batch_size // config.envs_per_actor or steady


def build_replay_learner(
    name: str, incarnation: int, run: Run, capacity: int, source: ItemSource, weights: WeightsWriter,
    counted: StepTotal,
) -> Learner:
    """The one learner of a table of `capacity` items."""
    gradient = GradientStep(Metrics(name), run.algorithm, learner_settings(run))
    training = ReplayTraining(off_policy(run.algorithm), source, counted, gradient, capacity)
    return Learner(name, gradient, training, Publication(weights))


def build_bundle(
    name: str, incarnation: int, run: Run, index: int, counter: StepCounter, gradients: Sequence[Sink],
    weights: Sequence[WeightsReader], memory: ReplayConfig, refresh_every: int, prefetch: int,
    sink: ItemSink | None, source: ItemSource | None,
) -> Bundle:
    """An actor and a learner around a given replay memory, or else one of their own."""
    if sink is None or source is None:
        envs = run.config.envs_per_actor
        replay = DirectReplay(replay_spec(run, memory, envs, prefetch, index))
        sink, source = replay.sink(envs), replay.source()
    sizes = shard_sizes(run.weights_size, len(weights))
    actor = build_replay_actor(
        name, incarnation, run, index, refresh_every, sink, ShardedWeights(weights, sizes), counter
    )
    channel = ShardedChannel(weights, gradients, sizes)
    gradient = GradientStep(Metrics(name), run.algorithm, learner_settings(run), channel=channel)
    training = ReplayTraining(off_policy(run.algorithm), source, counter, gradient, memory.capacity)
    return Bundle(name, actor, Learner(name, gradient, training))


def build_parameter_server(
    name: str, incarnation: int, run: Run, index: int, shards: int, settings: ServerSettings, source: Source,
    weights: ShardWeights, counted: StepTotal,
) -> ParameterServer:
    """Shard `index` of `shards`; all begin with parts of the same weights."""
    initial = torch.split(initial_weights(run), shard_sizes(run.weights_size, shards))[index]
    return ParameterServer(name, initial, source, weights, settings, counted, leads=index == 0)


def initial_weights(run: Run) -> torch.Tensor:
    """The first weights of a run, in one flat tensor."""
    torch.manual_seed(derive_seed(run.config.seed, "learner")[0])
    return FlatParameters(run.algorithm.build_network()).values


def refuse_buffers(algorithm: Algorithm, who: str, instead: str) -> None:
    """Raise `UserError` for a network with buffers that no gradient moves."""
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
    """A worker that changes the shared weights itself."""
    channel = LockFreeChannel(shared, updates, steps, run.config.optimizer, run.config.steps)
    return build_worker(name, incarnation, run, index, channel, steps)


def build_remote_gradient_worker(
    name: str, incarnation: int, run: Run, index: int, gradients: Sequence[Sink], weights: Sequence[WeightsReader],
    steps: StepCounter,
) -> Worker:
    """A worker that sends its gradients to shards."""
    channel = ShardedChannel(weights, gradients, shard_sizes(run.weights_size, len(weights)))
    return build_worker(name, incarnation, run, index, channel, steps)


def build_worker(
    name: str, incarnation: int, run: Run, index: int, channel: GradientChannel, steps: StepCounter
) -> Worker:
    """An actor and a learner around one unroll."""
    slot = UnrollSlot(run.unroll_spec(run.config.envs_per_actor), channel)
    gradient = GradientStep(Metrics(name), run.algorithm, learner_settings(run), channel=channel)
    learner = Learner(name, gradient, UnrollTraining(on_policy(run.algorithm), slot, gradient, 1, counter=steps))
    weights = OwnWeights(channel, gradient.flat.values.detach().numpy())
    return Worker(name, build_actor(name, incarnation, run, index, slot, weights), learner, slot)


def build_master(
    name: str, incarnation: int, run: Run, shared: SharedParameters, weights: WeightsWriter, steps: StepTotal,
    updates: StepTotal,
) -> Master:
    """The one master."""
    config = run.config
    return Master(name, initial_weights(run), shared, weights, steps, updates, config.optimizer, config.steps)
