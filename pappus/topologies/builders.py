"""Builders that topologies share: each makes one role from a run and the ports that it is given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from pappus.config import ReplayConfig
from pappus.core import Algorithm, ItemSink, ShardWeights, Sink, Source, StepCounter, StepTotal, WeightsReader
from pappus.data.recorder import Recording
from pappus.envs.vector import VectorEnv, backend_of, make_env
from pappus.errors import UserError
from pappus.layout import cut
from pappus.recording.direct import ReplaySpec, layout_for
from pappus.replay.service.service import CHUNK_LENGTH
from pappus.roles.acting import Actor, LocalPolicy, ReplayActor, exploration_of
from pappus.roles.evaluator import MAX_ENVS, Evaluator
from pappus.roles.parameter_server import ParameterServer, ServerSettings, ShardedWeights, shard_sizes
from pappus.roles.replay_server import FOLDER, ReplayHost, ReplayServer
from pappus.telemetry.processes import usable_cores
from pappus.topologies.learners import initial_weights
from pappus.topologies.program import Run, derive_seed, off_policy
from pappus.transports.private_folder import private_socket


def actor_env(run: Run, num_envs: int, seed: int) -> VectorEnv:
    """Envs of an actor. Natively vectorised ones step in threads of their own: each of several actors takes its share
    of the cores, unless the threads are given."""
    config, options = run.config, run.config.env_options
    native = backend_of(run.env, options) != "gymnasium"
    share = max(1, usable_cores() // config.actors) if native and config.actors > 1 else 0
    return make_env(run.env, num_envs, seed, replace(options, threads=options.threads or share))


def recording_of(run: Run) -> Recording | None:
    """Where a role records what it sees, if the run does."""
    if not run.config.record:
        return None
    choices = run.env_spec.action.choices
    log_prob = getattr(run.algorithm, "behaviour_log_prob", None)
    return Recording(Path(run.config.record), log_prob, choices[0] if len(choices) == 1 else 0)


def build_actor(name: str, incarnation: int, run: Run, index: int, sink: Sink, weights: WeightsReader) -> Actor:
    """An actor with its own copy of the policy."""
    config = run.config
    env_seed, policy_seed = derive_seed(config.seed, "actor", index, incarnation)
    env = actor_env(run, config.envs_per_actor, env_seed)
    policy = LocalPolicy(run.algorithm, weights, config.envs_per_actor, policy_seed, config.precision_on("cpu"))
    return Actor(name, env, policy, sink, config.unroll_length, recording_of(run))


def build_evaluator(
    name: str, incarnation: int, run: Run, weights: WeightsReader | Sequence[WeightsReader]
) -> Evaluator:
    """Plays greedily, on its own envs, with weights that one role publishes or parameter servers hold in shards. Its
    network is where the learner's is, unless that is on another machine."""
    config = run.config
    num_envs = min(config.evaluation.episodes, MAX_ENVS)
    env = make_env(run.env, num_envs, derive_seed(config.seed, "evaluator", incarnation)[0], config.env_options)
    if isinstance(weights, Sequence):
        weights = ShardedWeights(weights, shard_sizes(run.weights_size, len(weights)))
    device = config.device if config.runtime != "ray" and not config.inline else "cpu"
    policy = LocalPolicy(run.algorithm, weights, num_envs, None, config.precision_on(device), device=device)
    return Evaluator(name, env, policy)


def build_replay_actor(
    name: str, incarnation: int, run: Run, index: int, refresh_every: int, sink: ItemSink, weights: WeightsReader,
    counter: StepCounter,
) -> ReplayActor:
    """An actor with its own copy of the policy, and its own degree of exploration for each env."""
    config, algorithm = run.config, off_policy(run.algorithm)
    env_seed, policy_seed = derive_seed(config.seed, "actor", index, incarnation)
    env = actor_env(run, config.envs_per_actor, env_seed)
    explore = exploration_of(algorithm, index, config.actors, config.envs_per_actor, counter)
    policy = LocalPolicy(algorithm, weights, config.envs_per_actor, policy_seed, config.precision_on("cpu"), explore)
    return ReplayActor(name, env, policy, sink, counter, refresh_every, recording_of(run))


def replay_spec(
    run: Run, config: ReplayConfig, envs: int, prefetch: int, index: int = 0, origins: bool = False
) -> ReplaySpec:
    """The table number `index`, with room for the steps of `envs` envs that are not part of an item yet. It gives what
    does not come from data of every batch. `origins`: see `layout_for`."""
    algorithm, batch_size = off_policy(run.algorithm), run.config.batch_size - run.config.batch_from_data
    layout = layout_for(run.env_spec, algorithm, run.state_spec, origins)
    chunks_ahead = 2 + math.ceil((layout.history + layout.lead) / CHUNK_LENGTH)
    max_steps = config.capacity * layout.steps_per_item + envs * CHUNK_LENGTH * 2 * chunks_ahead
    return ReplaySpec(
        layout, layout.table(config, batch_size), max_steps, batch_size, config.importance_exponent,
        derive_seed(run.config.seed, "replay", index)[0], prefetch, private_socket(f"{run.directory}"),
    )


def build_replay_server(name: str, incarnation: int, run: Run, host: ReplayHost) -> ReplayServer:
    return ReplayServer(name, host, None if run.directory is None else run.directory / FOLDER)


def build_parameter_server(
    name: str, incarnation: int, run: Run, index: int, shards: int, settings: ServerSettings, source: Source,
    weights: ShardWeights, counted: StepTotal,
) -> ParameterServer:
    """Shard `index` of `shards`; all begin with parts of the same weights."""
    sizes = shard_sizes(run.weights_size, shards)
    initial = torch.split(initial_weights(run), sizes)[index]
    server = ParameterServer(name, initial, source, weights, settings, counted, leads=index == 0)
    server.layout = cut(run.layout, sizes)[index]
    return server


def refuse_buffers(algorithm: Algorithm, who: str, instead: str) -> None:
    """Raise `UserError` for a network with buffers that no gradient moves."""
    buffers = [name for name, buffer in algorithm.build_network().named_buffers() if buffer.is_floating_point()]
    if buffers:
        raise UserError(
            f"the network has buffers that gradients do not train ({', '.join(buffers[:3])}), and {who} "
            f"transfer only weights; use layers without running statistics, make constants plain attributes, "
            f"or use {instead}"
        )
