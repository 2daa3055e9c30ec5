"""Synchronous rollouts: A2C and PPO (Mnih et al. 2016; Schulman et al. 2017; RLlib, Liang et al. 2018, figure 3).

    worker 0 ──unroll──┐   barrier
    worker 1 ──unroll──┼──────┤──▶ batch ──▶ learner ──┐
      ⋮                │      │                        │
    worker N ──unroll──┘                               │
        ▲                                              │
        └─────────────────── weights ◀─────────────────┘──▶ evaluator

A worker has one slot. It gets it back when the learner has published what it learnt from it, so all act with the newest
weights, and nobody has to be told. With `stragglers`, the learner goes on without the last ones; what those were doing,
with weights that are one version older by then, is part of the next batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pappus.algorithms.ppo import PPO
from pappus.config import RunConfig, TopologyConfig
from pappus.core import Source, WeightsWriter
from pappus.errors import UserError
from pappus.roles.epoch_learner import EpochLearner
from pappus.roles.gradient_learner import GradientLearner
from pappus.roles.learner import Learner
from pappus.topologies.impala import build_actor, build_evaluator, learner_settings
from pappus.topologies.program import Program
from pappus.topologies.run import Run, on_policy


@dataclass(frozen=True)
class SyncConfig(TopologyConfig):
    """`--actors` is the number of workers; a batch is one unroll of every env of all that are waited for."""

    stragglers: int = 0
    """Workers that a batch does not wait for: it is made of the first ones that are done."""

    def check(self, config: RunConfig) -> None:
        """Raise `UserError` for a rule that the run's config breaks."""
        if config.actors < 1:
            raise UserError(f"actors={config.actors} must be at least 1")
        if not 0 <= self.stragglers < config.actors:
            raise UserError(
                f"topology.stragglers={self.stragglers} must lie in 0 … {config.actors - 1}: of actors={config.actors} "
                "at least one must be waited for"
            )
        envs = self.batch_envs(config)
        if config.batch_size not in (0, envs):
            raise UserError(
                f"batch_size={config.batch_size}: a batch is one unroll of each of the {envs} envs that are waited "
                "for; leave it out, or change --actors, --envs-per-actor"
            )

    def batch_envs(self, config: RunConfig) -> int:
        """Envs of a batch."""
        return (config.actors - self.stragglers) * config.envs_per_actor


def sync(run: Run) -> Program:
    """The program of the figure above."""
    config, program = run.config, Program("sync", run.config.seed)
    assert isinstance(config.topology, SyncConfig)
    if isinstance(run.algorithm, PPO):
        run.algorithm.check_batch(config.unroll_length, config.topology.batch_envs(config))
    unrolls = program.queue(
        "unrolls", run.unroll_spec(config.envs_per_actor), producers=config.actors, capacity=1
    )
    weights = program.weights("weights", run.weights_size)

    for i in range(config.actors):
        program.add(f"actor-{i}", build_actor, run=run, index=i, sink=unrolls.sink(i), weights=weights.reader())
    program.add(
        "learner", build_learner, essential=True, run=run, slots=config.actors - config.topology.stragglers,
        source=unrolls.source(), weights=weights.writer(),
    )
    program.add("evaluator", build_evaluator, run=run, weights=weights.reader())
    return program


def build_learner(
    name: str, incarnation: int, run: Run, slots: int, source: Source, weights: WeightsWriter
) -> GradientLearner:
    """One that goes over a batch several times, if its algorithm does so; so many slots make a batch."""
    settings = learner_settings(run)
    algorithm: Any = run.algorithm
    if isinstance(algorithm, PPO):
        return EpochLearner(name, algorithm, source, weights, settings, slots)
    return Learner(name, on_policy(algorithm), source, weights, settings, slots)
