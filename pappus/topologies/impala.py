"""IMPALA (Espeholt et al. 2018, figure 1 left).

    actor 0 ──unrolls──┐
    actor 1 ──unrolls──┼──▶ queue ──batch──▶ learner ──┐
      ⋮                │                               │
    actor N ──unrolls──┘                               │
        ▲                                              │
        └────────────── weights (versioned) ◀──────────┘──▶ evaluator

Actors hold a copy of the policy that lags behind; the learner corrects for it. The queue is bounded, so the lag
is too: an actor that is `queue_size` unrolls ahead waits.
"""

from __future__ import annotations

from pappus.core import Sink, Source, WeightsReader, WeightsWriter
from pappus.envs.vector import make_env
from pappus.roles.actor import Actor
from pappus.roles.evaluator import MAX_ENVS, Evaluator
from pappus.roles.learner import Learner, LearnerSettings
from pappus.roles.policy import LocalPolicy
from pappus.topologies.program import Program
from pappus.topologies.run import Run, derive_seed


def impala(run: Run) -> Program:
    """The program of the figure above."""
    config, program = run.config, Program("impala", run.config.seed)
    unrolls = program.queue("unrolls", run.unroll_spec, producers=config.actors, capacity=config.queue_size)
    weights = program.weights("weights", run.weights_size)

    for i in range(config.actors):
        program.add(f"actor-{i}", build_actor, run=run, index=i, sink=unrolls.sink(i), weights=weights.reader())
    program.add("learner", build_learner, essential=True, run=run, source=unrolls.source(), weights=weights.writer())
    program.add("evaluator", build_evaluator, run=run, weights=weights.reader())
    return program


def build_actor(name: str, incarnation: int, run: Run, index: int, sink: Sink, weights: WeightsReader) -> Actor:
    """An actor with a policy of its own."""
    config = run.config
    env_seed, policy_seed = derive_seed(config.seed, "actor", index, incarnation)
    env = make_env(run.env, config.envs_per_actor, env_seed, config.env_options)
    policy = LocalPolicy(run.algorithm, weights, config.envs_per_actor, policy_seed, config.precision)
    return Actor(name, env, policy, sink, config.unroll_length)


def build_learner(name: str, incarnation: int, run: Run, source: Source, weights: WeightsWriter) -> Learner:
    """The one learner."""
    config = run.config
    settings = LearnerSettings(
        config.optimizer, config.steps, config.unrolls_per_batch, derive_seed(config.seed, "learner")[0],
        config.device, config.precision, run.directory,
    )
    return Learner(name, run.algorithm, source, weights, settings)


def build_evaluator(name: str, incarnation: int, run: Run, weights: WeightsReader) -> Evaluator:
    """Greedy, on envs of its own."""
    config = run.config
    num_envs = min(config.evaluation.episodes, MAX_ENVS)
    env = make_env(run.env, num_envs, derive_seed(config.seed, "evaluator", incarnation)[0], config.env_options)
    policy = LocalPolicy(run.algorithm, weights, num_envs, None, config.precision)
    return Evaluator(name, env, policy)
