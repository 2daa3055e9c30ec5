"""A topology of your own: IMPALA with two kinds of actors.

    bold actors ────unrolls───┐
                              ├──▶ queue ──batch──▶ learner ──weights──▶ actors, evaluator
    careful actors ─unrolls───┘

Bold actors divide their logits by a temperature of 2, so they explore more. They record the log-probability of the
policy that they really acted with, and V-trace corrects for the difference to the learner's policy.

    python examples/own_topology.py
    cd examples; pappus train own_topology:bold --env CartPole-v1 --target-return 475
"""

from __future__ import annotations

from dataclasses import dataclass

import pappus
from pappus.config import RunConfig, TopologyConfig
from pappus.core import Sink, WeightsReader
from pappus.edges.queue import QueueEdge
from pappus.edges.weights import WeightsEdge
from pappus.envs.vector import make_env
from pappus.errors import UserError
from pappus.kinds import ACTOR, EVALUATOR, LEARNER
from pappus.roles.acting import Actor, LocalPolicy
from pappus.system import System, Topology
from pappus.systems import ALGORITHMS
from pappus.topologies.builders import build_evaluator
from pappus.topologies.learners import build_learner
from pappus.topologies.program import Program, Run, derive_seed


@dataclass(frozen=True)
class BoldConfig(TopologyConfig):
    """A batch is one unroll of every actor; there is one learner."""

    temperature: float = 2.0
    """What bold actors divide their logits by (--topology.temperature)."""

    def check(self, config: RunConfig) -> None:
        if config.actors < 2:
            raise UserError(f"actors={config.actors} leaves no pair of a careful and a bold actor; use 2 or more")
        if config.batch_size:
            raise UserError(f"batch_size={config.batch_size}: a batch is one unroll of every actor; leave it out")
        if self.temperature <= 0:
            raise UserError(f"topology.temperature={self.temperature} must be positive")


def build_actor(
    name: str, incarnation: int, run: Run, index: int, temperature: float, sink: Sink, weights: WeightsReader
) -> Actor:
    config = run.config
    env_seed, policy_seed = derive_seed(config.seed, "actor", index, incarnation)
    env = make_env(run.env, config.envs_per_actor, env_seed, config.env_options)
    policy = LocalPolicy(
        run.algorithm, weights, config.envs_per_actor, policy_seed,
        transform=lambda output: output._replace(policy=output.policy / temperature),
    )
    return Actor(name, env, policy, sink, config.unroll_length)


def bold_and_careful(run: Run) -> Program:
    program, actors, topology = Program("bold-and-careful"), run.config.actors, run.config.topology
    assert isinstance(topology, BoldConfig)
    spec = run.unroll_spec(run.config.envs_per_actor)
    unrolls = program.connect(QueueEdge("unrolls", spec, producers=actors, capacity=run.config.queue_size))
    weights = program.connect(WeightsEdge("weights", run.weights_size))
    for i in range(actors):
        ends = {"sink": unrolls.sink(i), "weights": weights.reader()}
        temperature = topology.temperature if i % 2 else 1.0
        program.add(ACTOR, build_actor, index=i, run=run, temperature=temperature, **ends)
    ends = {"source": unrolls.source(), "weights": weights.writer()}
    program.add(LEARNER, build_learner, essential=True, run=run, slots=actors, **ends)
    program.add(EVALUATOR, build_evaluator, run=run, weights=weights.reader())
    return program


bold = System(
    ALGORITHMS["vtrace"], Topology("bold-and-careful", bold_and_careful, BoldConfig()),
    settings={"actors": 2, "algorithm.reward_scale": 0.05, "optimizer.learning_rate": 3e-3},
)

if __name__ == "__main__":
    pappus.train(bold, "CartPole-v1", target_return=475.0)
