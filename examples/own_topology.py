"""A topology of your own: IMPALA whose actors are born different.

    bold actors ────unrolls───┐
                              ├──▶ queue ──batch──▶ learner ──weights──▶ everybody
    careful actors ─unrolls───┘

Half of the actors act with logits divided by two, so that they explore more; V-trace corrects for it, because the
log-probability that an actor records is the one it really acted with.

    python examples/own_topology.py
"""

from __future__ import annotations

import dataclasses

import pappus
from pappus.core import Sink, WeightsReader
from pappus.edges.queue import QueueEdge
from pappus.edges.weights import WeightsEdge
from pappus.envs.vector import make_env
from pappus.kinds import ACTOR, EVALUATOR, LEARNER
from pappus.networks.actor_critic import Output
from pappus.roles.actor import Actor
from pappus.roles.policy import LocalPolicy
from pappus.systems import SYSTEMS
from pappus.topologies.builders import build_evaluator
from pappus.topologies.learner_builders import build_learner
from pappus.topologies.program import Program
from pappus.topologies.run import Run, derive_seed


class BoldPolicy(LocalPolicy):
    """A policy whose distribution is flattened before it is sampled from."""

    def __init__(self, run: Run, weights: WeightsReader, seed: int, temperature: float) -> None:
        super().__init__(run.algorithm, weights, run.config.envs_per_actor, seed)
        plain = self._step

        def flattened(observation, first, state):  # type: ignore[no-untyped-def]
            output = plain(observation, first, state)
            return Output(output.policy / temperature, output.value, output.state)

        self._step = flattened


def build_actor(
    name: str, incarnation: int, run: Run, index: int, temperature: float, sink: Sink, weights: WeightsReader
) -> Actor:
    env_seed, policy_seed = derive_seed(run.config.seed, "actor", index, incarnation)
    env = make_env(run.env, run.config.envs_per_actor, env_seed, run.config.env_options)
    return Actor(name, env, BoldPolicy(run, weights, policy_seed, temperature), sink, run.config.unroll_length)


def bold_and_careful(run: Run) -> Program:
    program, actors = Program("bold-and-careful"), run.config.actors
    spec = run.unroll_spec(run.config.envs_per_actor)
    unrolls = program.connect(QueueEdge("unrolls", spec, producers=actors, capacity=run.config.queue_size))
    weights = program.connect(WeightsEdge("weights", run.weights_size))
    for i in range(actors):
        ends = {"sink": unrolls.sink(i), "weights": weights.reader()}
        program.add(ACTOR, build_actor, index=i, run=run, temperature=2.0 if i % 2 else 1.0, **ends)
    ends = {"source": unrolls.source(), "weights": weights.writer()}
    program.add(LEARNER, build_learner, essential=True, run=run, slots=actors, **ends)
    program.add(EVALUATOR, build_evaluator, run=run, weights=weights.reader())
    return program


if __name__ == "__main__":
    impala = SYSTEMS["impala"]
    SYSTEMS["bold"] = dataclasses.replace(impala, name="bold", topology=bold_and_careful)
    faster = {"algorithm.reward_scale": 0.05, "optimizer.learning_rate": 3e-3}
    pappus.train("bold", "CartPole-v1", actors=2, target_return=475.0, **faster)
