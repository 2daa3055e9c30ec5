"""Builders that topologies share: each makes one role from a run and the ports that it is given."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from pappus.accelerator import Accelerator
from pappus.config import ReplayConfig
from pappus.core import (
    Borrower,
    ItemSink,
    Lender,
    RequestClient,
    RequestServer,
    Sink,
    StepCounter,
    WeightsReader,
)
from pappus.envs.vector import make_env
from pappus.recording.direct import ReplaySpec, layout_for
from pappus.replay.service.service import CHUNK_LENGTH
from pappus.roles.actor import Actor
from pappus.roles.cpu_inference import CpuInference
from pappus.roles.evaluator import MAX_ENVS, Evaluator
from pappus.roles.gpu_inference import SMALLEST_BATCH, DeviceNetwork, GpuInference
from pappus.roles.inference_server import InferenceSettings
from pappus.roles.policy import ActingNetwork, LocalPolicy
from pappus.roles.prefetcher import Prefetcher
from pappus.roles.replay_actor import ReplayActor
from pappus.roles.replay_inference import ReplayInference
from pappus.roles.replay_server import ReplayHost, ReplayServer
from pappus.roles.seed_actor import SeedActor
from pappus.roles.shards import ShardedWeights, shard_sizes
from pappus.topologies.run import Run, derive_seed, off_policy
from pappus.transports.addresses import private_socket
from pappus.types import Array


def build_actor(name: str, incarnation: int, run: Run, index: int, sink: Sink, weights: WeightsReader) -> Actor:
    """An actor with its own copy of the policy."""
    config = run.config
    env_seed, policy_seed = derive_seed(config.seed, "actor", index, incarnation)
    env = make_env(run.env, config.envs_per_actor, env_seed, config.env_options)
    policy = LocalPolicy(run.algorithm, weights, config.envs_per_actor, policy_seed, config.precision)
    return Actor(name, env, policy, sink, config.unroll_length)


def build_evaluator(name: str, incarnation: int, run: Run, weights: WeightsReader) -> Evaluator:
    """Plays greedily, on its own envs."""
    config = run.config
    num_envs = min(config.evaluation.episodes, MAX_ENVS)
    env = make_env(run.env, num_envs, derive_seed(config.seed, "evaluator", incarnation)[0], config.env_options)
    policy = LocalPolicy(run.algorithm, weights, num_envs, None, config.precision)
    return Evaluator(name, env, policy)


def build_sharded_evaluator(name: str, incarnation: int, run: Run, weights: Sequence[WeightsReader]) -> Evaluator:
    """Plays greedily with weights that parameter servers hold in shards."""
    sizes = shard_sizes(run.weights_size, len(weights))
    return build_evaluator(name, incarnation, run, ShardedWeights(weights, sizes))


def build_replay_actor(
    name: str, incarnation: int, run: Run, index: int, refresh_every: int, sink: ItemSink, weights: WeightsReader,
    counter: StepCounter,
) -> ReplayActor:
    """An actor with its own copy of the policy, and its own degree of exploration for each env."""
    config, algorithm = run.config, off_policy(run.algorithm)
    env_seed, policy_seed = derive_seed(config.seed, "actor", index, incarnation)
    env = make_env(run.env, config.envs_per_actor, env_seed, config.env_options)
    policy = LocalPolicy(
        algorithm, weights, config.envs_per_actor, policy_seed, config.precision, exploration_of(run, index, counter)
    )
    return ReplayActor(name, env, policy, sink, counter, refresh_every)


def exploration_of(run: Run, index: int, counter: StepCounter) -> Callable[[], Array]:
    """How much each env of an actor explores now."""
    algorithm, count = off_policy(run.algorithm), run.config.envs_per_actor
    envs = index * count + np.arange(count)
    return lambda: algorithm.exploration(envs, run.config.actors * count, counter.total())


def replay_spec(run: Run, config: ReplayConfig, envs: int, prefetch: int, index: int = 0) -> ReplaySpec:
    """The table number `index`, with room for the steps of `envs` envs that are not part of an item yet."""
    algorithm = off_policy(run.algorithm)
    layout = layout_for(run.env_spec, algorithm, run.state_spec)
    chunks_ahead = 2 + math.ceil((layout.history + layout.lead) / CHUNK_LENGTH)
    max_steps = config.capacity * layout.steps_per_item + envs * CHUNK_LENGTH * 2 * chunks_ahead
    return ReplaySpec(
        layout, layout.table(config, run.config.batch_size), max_steps, run.config.batch_size,
        config.importance_exponent, derive_seed(run.config.seed, "replay", index)[0], prefetch,
        private_socket(f"{run.directory}"),
    )


def build_replay_server(name: str, incarnation: int, run: Run, host: ReplayHost) -> ReplayServer:
    """The role that holds the replay tables."""
    return ReplayServer(name, host, None if run.directory is None else run.directory / "replay")


def build_seed_actor(
    name: str, incarnation: int, run: Run, index: int, env_groups: int, client: RequestClient
) -> SeedActor:
    """An actor without a network: a vector env for each of its env groups."""
    config = run.config
    groups = [[group] if group else [] for group in range(env_groups)]  # the first has the seed of IMPALA's actor
    seeds = [derive_seed(config.seed, "actor", index, incarnation, *group)[0] for group in groups]
    size = config.envs_per_actor // env_groups
    return SeedActor(name, [make_env(run.env, size, seed, config.env_options) for seed in seeds], client)


def build_inference(
    name: str, incarnation: int, run: Run, settings: InferenceSettings, server: RequestServer, sinks: Sequence[Sink],
    weights: WeightsReader,
) -> CpuInference:
    """Central inference in its own process, for one learner or many."""
    network = ActingNetwork(run.algorithm, weights, policy_seed(run, incarnation), run.config.precision)
    return CpuInference(name, server, network, sinks, settings)


def build_replay_inference(
    name: str, incarnation: int, run: Run, settings: InferenceSettings, server: RequestServer,
    open_sink: Callable[[int], ItemSink], weights: WeightsReader, counter: StepCounter,
) -> ReplayInference:
    """Central inference that writes to replay."""
    config, algorithm = run.config, off_policy(run.algorithm)
    network = ActingNetwork(algorithm, weights, policy_seed(run, incarnation), config.precision)
    expected = max(1, config.actors) * config.envs_per_actor
    return ReplayInference(name, server, network, algorithm, open_sink, counter, expected, settings)


def build_gpu_inference(
    name: str, incarnation: int, run: Run, settings: InferenceSettings, server: RequestServer, unrolls: Lender,
    weights: WeightsReader,
) -> GpuInference:
    """Central inference on the learner's device."""
    config, accelerator = run.config, Accelerator(run.config.device)
    for memory in server.memory():
        accelerator.pin(memory)
    seed, padding = policy_seed(run, incarnation), SMALLEST_BATCH if accelerator.real else 0
    network = DeviceNetwork(run.algorithm, weights, seed, config.precision, accelerator, padding)
    return GpuInference(name, server, network, unrolls, settings, config.device)


def build_prefetcher(name: str, incarnation: int, run: Run, unrolls: Borrower, sink: Sink) -> Prefetcher:
    """Packs unrolls into batches on the device."""
    return Prefetcher(name, unrolls, sink, run.config.batch_envs, run.config.device)


def policy_seed(run: Run, incarnation: int) -> int:
    """The random stream of IMPALA's first actor, so that with one actor SEED and IMPALA act alike."""
    return derive_seed(run.config.seed, "actor", 0, incarnation)[1]
