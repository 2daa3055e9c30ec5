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

from dataclasses import dataclass

from pappus.config import RunConfig, TopologyConfig
from pappus.core import Sink, Source, WeightsReader, WeightsWriter
from pappus.envs.vector import make_env
from pappus.errors import UserError
from pappus.roles.actor import Actor
from pappus.roles.evaluator import MAX_ENVS, Evaluator
from pappus.roles.gradient_learner import LearnerSettings
from pappus.roles.learner import Learner
from pappus.roles.policy import LocalPolicy
from pappus.topologies.program import Program
from pappus.topologies.run import Run, derive_seed, on_policy


@dataclass(frozen=True)
class ImpalaConfig(TopologyConfig):
    """Nothing to choose; what must hold is that batches are made of whole unrolls of actors."""

    def check(self, config: RunConfig) -> None:
        """Raise `UserError` for a rule that the run's config breaks."""
        if config.actors < 1:
            raise UserError(f"actors={config.actors} must be at least 1")
        batch, envs, slots = config.batch_size, config.envs_per_actor, config.actors * config.queue_size
        if batch % envs:
            choices = [str(n) for n in range(1, batch + 1) if batch % n == 0]
            raise UserError(f"envs_per_actor={envs} does not divide batch_size={batch}; use {', '.join(choices[:12])}")
        if config.unrolls_per_batch > slots:
            raise UserError(
                f"batch_size={batch} needs {config.unrolls_per_batch} actors' unrolls at once, but {config.actors} "
                f"actors with queue_size={config.queue_size} hold {slots}; raise queue_size to "
                f"{-(-config.unrolls_per_batch // config.actors)} or use more actors"
            )

    @property
    def slack_option(self) -> str:
        """Unrolls wait in a queue."""
        return "--queue-size"


def impala(run: Run) -> Program:
    """The program of the figure above."""
    config, program = run.config, Program("impala", run.config.seed)
    unrolls = program.queue(
        "unrolls", run.unroll_spec(config.envs_per_actor), producers=config.actors, capacity=config.queue_size
    )
    weights = program.weights("weights", run.weights_size)

    for i in range(config.actors):
        program.add(f"actor-{i}", build_actor, run=run, index=i, sink=unrolls.sink(i), weights=weights.reader())
    program.add(
        "learner", build_learner, essential=True, run=run, slots=config.unrolls_per_batch, source=unrolls.source(),
        weights=weights.writer(),
    )
    program.add("evaluator", build_evaluator, run=run, weights=weights.reader())
    return program


def build_actor(name: str, incarnation: int, run: Run, index: int, sink: Sink, weights: WeightsReader) -> Actor:
    """An actor with a policy of its own."""
    config = run.config
    env_seed, policy_seed = derive_seed(config.seed, "actor", index, incarnation)
    env = make_env(run.env, config.envs_per_actor, env_seed, config.env_options)
    policy = LocalPolicy(run.algorithm, weights, config.envs_per_actor, policy_seed, config.precision)
    return Actor(name, env, policy, sink, config.unroll_length)


def build_learner(
    name: str, incarnation: int, run: Run, slots: int, source: Source, weights: WeightsWriter,
    nearby: WeightsWriter | None = None,
) -> Learner:
    """The one learner; so many slots of its source make one batch."""
    return Learner(name, on_policy(run.algorithm), source, weights, learner_settings(run), slots, nearby)


def learner_settings(run: Run) -> LearnerSettings:
    """What a learner needs to know of the run."""
    config = run.config
    return LearnerSettings(
        config.optimizer, config.steps, derive_seed(config.seed, "learner")[0], config.device, config.precision,
        run.directory,
    )


def build_evaluator(name: str, incarnation: int, run: Run, weights: WeightsReader) -> Evaluator:
    """Greedy, on envs of its own."""
    config = run.config
    num_envs = min(config.evaluation.episodes, MAX_ENVS)
    env = make_env(run.env, num_envs, derive_seed(config.seed, "evaluator", incarnation)[0], config.env_options)
    policy = LocalPolicy(run.algorithm, weights, num_envs, None, config.precision)
    return Evaluator(name, env, policy)
