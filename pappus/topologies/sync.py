"""Synchronous rollouts: A2C and PPO (Mnih et al. 2016; Schulman et al. 2017; RLlib, Liang et al. 2018, figure 3).

    actor 0 ───unroll──┐   barrier
    actor 1 ───unroll──┼──────┤──▶ batch ──▶ learner ──┐
      ⋮                │      │                        │
    actor N ───unroll──┘                               │
        ▲                                              │
        └─────────────────── weights ◀─────────────────┘──▶ evaluator

An actor has one slot. It is returned when the learner has published the weights that it led to, so all act with the
newest weights without further messages. With `stragglers`, the learner does not wait for the last actors; their
unrolls, acted with weights that are one version older by then, are part of the next batch.

Many learners: each has some of the actors and learns from their part of the batch; every minibatch sums gradients.

    actors 0, 2 … ───unroll──▶ barrier ──part──▶ learner ────gradients──┐
    actors 1, 3 … ───unroll──▶ barrier ──part──▶ learner-1 ──gradients──┼──▶ all-reduce ──▶ the same step for all
      ⋮                                                                 │
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pappus.config import RunConfig, TopologyConfig
from pappus.core import EpochAlgorithm
from pappus.edges.queue import QueueEdge
from pappus.edges.weights import WeightsEdge
from pappus.errors import UserError
from pappus.kinds import ACTOR, EVALUATOR
from pappus.topologies.builders import build_actor, build_evaluator
from pappus.topologies.learners import actors_of, add_learners, check_learners, numbered
from pappus.topologies.program import Program, Run


@dataclass(frozen=True)
class SyncConfig(TopologyConfig):
    """A batch is one unroll of every env of all actors, except stragglers."""

    many_learners: ClassVar[bool] = True
    waits_for_all_actors: ClassVar[bool] = True

    stragglers: int = 0
    """Actors that a batch does not wait for: it consists of the unrolls of the first ones to finish. Many learners
    divide them as they divide the actors."""

    def check(self, config: RunConfig) -> None:
        check_learners(config)
        actors, learners = config.actors, config.learners
        if actors < learners:
            every = f" for every learner; give --actors {learners} or more" if learners > 1 else ""
            raise UserError(f"actors={actors} must be at least 1{every}")
        if not 0 <= self.stragglers <= actors - learners:
            raise UserError(
                f"topology.stragglers={self.stragglers} must lie in 0 … {actors - learners}: of actors={actors} at "
                f"least one must be waited for{' by every learner' if learners > 1 else ''}"
            )
        for envs in {self.waited_for(config, i) * config.envs_per_actor for i in range(learners)}:
            if config.batch_size not in (0, envs):
                raise UserError(
                    f"batch_size={config.batch_size}: a batch is one unroll of each of the {envs} envs that "
                    f"{'a learner waits' if learners > 1 else 'are waited'} for; leave it out, or change --actors, "
                    "--envs-per-actor"
                )
            if not config.network.factory:  # the program asks an own network whether it has a memory
                config.algorithm.check_batch(config.unroll_length, envs, config.network.core != "none")

    def waited_for(self, config: RunConfig, learner: int) -> int:
        """Actors whose unrolls make a batch of the learner of that number."""
        return actors_of(config, learner) - len(range(learner, self.stragglers, config.learners))

    def takes_turns(self, config: RunConfig) -> bool:
        """One actor waits while the learner learns, and the other way round."""
        return config.actors == 1

    def fewest_actors(self, learners: int) -> int:
        return learners

    def actors_for(self, config: RunConfig, cores: int, heavy: bool) -> int:
        """Cheap envs are stepped fastest in the learner's own thread."""
        return cores - config.learners if heavy else config.learners


def sync(run: Run) -> Program:
    config, program = run.config, Program("sync", run.config.seed)
    assert isinstance(config.topology, SyncConfig)
    learners, spec = range(config.learners), run.unroll_spec(config.envs_per_actor)
    slots = [config.topology.waited_for(config, i) for i in learners]
    if isinstance(run.algorithm, EpochAlgorithm):
        for count in slots:
            run.algorithm.check_batch(config.unroll_length, count * config.envs_per_actor)
    unrolls = [
        program.connect(QueueEdge(numbered("unrolls", i), spec, actors_of(config, i), capacity=1, after="weights"))
        for i in learners
    ]
    weights = program.connect(WeightsEdge("weights", run.weights_size))

    for i in range(config.actors):
        place, learner = divmod(i, config.learners)
        sink = unrolls[learner].sink(place)
        program.add(ACTOR, build_actor, index=i, run=run, sink=sink, weights=weights.reader())
    add_learners(
        program, run, weights,
        lambda i: {"source": unrolls[i].source(), "slots": slots[i], "published": weights.reader() if i else None},
    )
    program.add(EVALUATOR, build_evaluator, run=run, weights=weights.reader())
    return program
