"""IMPALA (Espeholt et al. 2018, figure 1 left).

    actor 0 ──unrolls──┐
    actor 1 ──unrolls──┼──▶ queue ──batch──▶ learner ──┐
      ⋮                │                               │
    actor N ──unrolls──┘                               │
        ▲                                              │
        └────────────── weights (versioned) ◀──────────┘──▶ evaluator

Many learners (figure 1 right): each has a queue and some of the actors; their gradients are summed at every step.

    actors 0, 2 … ──▶ queue ──batch──▶ learner ────gradients──┐
    actors 1, 3 … ──▶ queue ──batch──▶ learner-1 ──gradients──┼──▶ all-reduce ──▶ the same step for all
      ⋮                                                       │

Actors act with a copy of the policy that lags behind; the learner corrects for that. The queue is bounded, and so is
the lag: an actor that is `queue_size` unrolls ahead waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pappus.config import RunConfig, TopologyConfig
from pappus.edges.queue import QueueEdge
from pappus.edges.weights import WeightsEdge
from pappus.errors import UserError
from pappus.kinds import ACTOR, EVALUATOR
from pappus.topologies.builders import build_actor, build_evaluator
from pappus.topologies.learners import actors_of, add_learners, check_learners, numbered, slots_per_batch
from pappus.topologies.program import Program, Run

MOST_CHEAP = 4
"""Actors of cheap envs per learner: with more, a learner on a CPU is the bottleneck."""


@dataclass(frozen=True)
class ImpalaConfig(TopologyConfig):
    """No settings; batches must consist of whole unrolls of actors."""

    many_learners: ClassVar[bool] = True
    slack_option: ClassVar[str] = "--queue-size"

    def check(self, config: RunConfig) -> None:
        check_learners(config)
        if config.actors < self.fewest_actors(config.learners):
            raise UserError(
                f"actors={config.actors} must be at least 1 for every learner; give --actors {config.learners} or more"
            )
        actors = config.steady_actors // config.learners
        batch, envs, slots = config.batch_size, config.envs_per_actor, actors * config.queue_size
        if batch % envs:
            choices = [str(n) for n in range(1, batch + 1) if batch % n == 0]
            raise UserError(
                f"envs_per_actor={envs} does not divide batch_size={batch}; use {', '.join(choices[:12])}, or give "
                f"--batch-size {envs}, too"
            )
        if batch // envs > slots:
            raise UserError(
                f"batch_size={batch} needs {batch // envs} actors' unrolls at once, but {actors} "
                f"actors with queue_size={config.queue_size} hold {slots}; raise queue_size to "
                f"{-(-batch // envs // actors)} or use more actors"
            )

    def actors_for(self, config: RunConfig, cores: int, heavy: bool) -> int:
        """One learner on a CPU keeps up with a few actors of cheap envs."""
        free = cores - config.learners
        return free if heavy or config.device != "cpu" else min(MOST_CHEAP * config.learners, free)

    def policy_lag(self, config: RunConfig) -> float:
        """Every env is part of the unrolls in the queue, and of the one that is being filled."""
        ahead = config.actors * config.envs_per_actor * (config.queue_size + 1)
        return ahead / self.items_per_update(config)

    def fewest_actors(self, learners: int) -> int:
        return learners


def impala(run: Run) -> Program:
    config, program = run.config, Program("impala", run.config.seed)
    spec = run.unroll_spec(config.envs_per_actor)
    unrolls = [
        program.connect(QueueEdge(numbered("unrolls", i), spec, actors_of(config, i), config.queue_size))
        for i in range(config.learners)
    ]
    weights = program.connect(WeightsEdge("weights", run.weights_size))

    for i in range(config.actors):
        place, learner = divmod(i, config.learners)
        sink = unrolls[learner].sink(place)
        program.add(ACTOR, build_actor, index=i, run=run, sink=sink, weights=weights.reader())
    add_learners(
        program, run, weights, lambda i: {"source": unrolls[i].source(), "slots": slots_per_batch(config, i)}
    )
    program.add(EVALUATOR, build_evaluator, run=run, weights=weights.reader())
    return program
