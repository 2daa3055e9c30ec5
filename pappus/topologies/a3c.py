"""A3C (Mnih et al. 2016, algorithm S3): workers compute gradients on their own envs, a master holds the weights.

Lock-free, as in the paper: every worker updates the shared weights and the optimizer's statistics in place.

    worker 0: env ⇄ actor ──unroll──▶ learner ──changes──┐
    worker 1: env ⇄ actor ──unroll──▶ learner ──changes──┼──▶ weights, statistics ──▶ master ──▶ evaluator
      ⋮                                                  │        │
    worker N: env ⇄ actor ──unroll──▶ learner ──changes──┘        │
                      ▲                  ▲                        │
                      └──────────────────┴──────── weights ◀──────┘

Serialised: gradients are applied one after the other by parameter servers, as in Gorila.

    worker 0: env ⇄ actor ──unroll──▶ learner ──gradients──┐
    worker 1: env ⇄ actor ──unroll──▶ learner ──gradients──┼──▶ parameter server 0 ‖ 1 ‖ … S ──▶ evaluator
      ⋮                                                    │        │
    worker N: env ⇄ actor ──unroll──▶ learner ──gradients──┘        │
                      ▲                  ▲                          │
                      └──────────────────┴───────── weights ◀───────┘

A worker acts for one unroll, sends its gradient and reads new weights, which include that gradient. Meanwhile others do
the same: the staleness of a gradient is the number of updates between a worker's weights and its own update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from pappus.config import RunConfig, TopologyConfig
from pappus.core import GradientChannel, ShardWeights, SharedParameters, Sink, StepCounter, StepTotal, WeightsReader
from pappus.edges.counters import CounterEdge
from pappus.edges.queue import QueueEdge
from pappus.edges.shared_parameters import SharedParametersEdge
from pappus.edges.weights import WeightsEdge
from pappus.errors import UserError
from pappus.kinds import EVALUATOR, MASTER, PARAMETER_SERVER, WORKER
from pappus.roles.actor_learner import OwnWeights, UnrollSlot, Worker
from pappus.roles.gradient_step import GradientStep
from pappus.roles.learner import Learner, UnrollTraining
from pappus.roles.lock_free import LockFreeChannel, Master, statistics_of
from pappus.roles.parameter_server import ServerSettings, ShardedChannel, gradient_spec, shard_sizes
from pappus.telemetry.metrics import Metrics
from pappus.topologies.builders import build_actor, build_evaluator, build_parameter_server, refuse_buffers
from pappus.topologies.learners import initial_weights, learner_settings
from pappus.topologies.program import Program, Run, on_policy


@dataclass(frozen=True)
class A3CConfig(TopologyConfig):
    """`--actors` is the number of workers."""

    updates: Literal["auto", "lock-free", "serialised"] = "auto"
    """lock-free: workers update the shared weights in place. serialised: parameter servers apply their gradients. auto:
    serialised on a cluster, whose nodes share no memory, and lock-free otherwise."""
    shards: int = 1
    """Parameter servers, each with a part of the weights (serialised)."""
    max_staleness: int | None = None
    """Drop a gradient whose weights are more than this many versions old; None: never (serialised)."""
    loss_deviations: float = 0.0
    """A gradient is dropped if its loss is this many standard deviations above the running mean; 0: never
    (serialised)."""

    actors_train: ClassVar[bool] = True
    uses_gpu: ClassVar[bool] = False

    def actors_for(self, config: RunConfig, cores: int, heavy: bool) -> int:
        """A worker computes all the time, and so do parameter servers on a cluster."""
        return max(2, cores - (self.shards if config.runtime == "ray" else 0))

    def items_per_update(self, config: RunConfig) -> int:
        """A worker learns from what its own envs did."""
        return config.envs_per_actor

    def policy_lag(self, config: RunConfig) -> float:
        """The others make an update each meanwhile."""
        return config.actors - 1.0

    def check(self, config: RunConfig) -> None:
        if config.actors < 1:
            raise UserError(f"actors={config.actors} must be at least 1")
        if config.batch_size:
            raise UserError(
                f"batch_size={config.batch_size}: a worker of a3c learns from one unroll of all its envs; "
                "set envs_per_actor instead"
            )
        if config.device != "cpu":
            raise UserError(f"device={config.device!r}: a3c's many workers share no device; use cpu, or impala")
        epochs = getattr(config.algorithm, "epochs", 1)
        if epochs > 1:
            raise UserError(f"algorithm.epochs={epochs}: workers of a3c send one gradient per unroll; use 1, or impala")
        optimizer = config.optimizer
        if optimizer.name == "radam":
            raise UserError("optimizer.name='radam' has no statistics that a3c's workers can share; use adam")
        if optimizer.name == "adam" and max(optimizer.decay, optimizer.momentum) >= 1:
            raise UserError(
                f"optimizer.decay={optimizer.decay} and momentum={optimizer.momentum} must be below 1 for adam, which "
                "would never learn from a gradient otherwise"
            )
        self.settled(config)._check_servers()

    def settled(self, config: RunConfig) -> A3CConfig:
        chosen: Literal["lock-free", "serialised"] = "serialised" if config.runtime == "ray" else "lock-free"
        return self if self.updates != "auto" else replace(self, updates=chosen)

    def _check_servers(self) -> None:
        if self.shards < 1 or self.loss_deviations < 0 or (self.max_staleness is not None and self.max_staleness < 0):
            raise UserError(
                f"topology.shards={self.shards} must be at least 1, max_staleness={self.max_staleness} and "
                f"loss_deviations={self.loss_deviations} at least 0"
            )
        if self.updates == "lock-free" and (self.shards > 1 or self.loss_deviations or self.max_staleness is not None):
            raise UserError(
                f"topology.shards={self.shards}, max_staleness={self.max_staleness} and loss_deviations="
                f"{self.loss_deviations} are for parameter servers, which lock-free updates do not have; use "
                "--topology.updates serialised"
            )


def refusal(algorithm: Any) -> str:
    """Why it cannot carry an algorithm, an `AlgorithmSpec`; empty where it can."""
    return "" if not algorithm.several_epochs else (
        f"{algorithm.name} makes several updates from each batch, and a worker of a3c sends one gradient per unroll; "
        f"use {algorithm.name}@sync"
    )


def a3c(run: Run) -> Program:
    config, program = run.config, Program("a3c", run.config.seed)
    assert isinstance(config.topology, A3CConfig)
    refuse_buffers(on_policy(run.algorithm), "a3c's workers", "impala")
    topology = config.topology.settled(config)
    (lock_free if topology.updates == "lock-free" else serialised)(run, program, topology)
    return program


def lock_free(run: Run, program: Program, topology: A3CConfig) -> None:
    """The first figure."""
    config = run.config
    steps, updates = (program.connect(CounterEdge(name, writers=config.actors)) for name in ("steps", "updates"))
    rows = 1 + len(statistics_of(config.optimizer))
    shared = program.connect(SharedParametersEdge("shared parameters", run.weights_size, rows))
    weights = program.connect(WeightsEdge("weights", run.weights_size))
    for i in range(config.actors):
        program.add(
            WORKER, build_lock_free_worker, index=i, run=run, shared=shared.port(),
            steps=steps.counter(i), updates=updates.counter(i),
        )
    program.add(
        MASTER, build_master, durable=True, run=run, shared=shared.port(), weights=weights.writer(),
        steps=steps.reader(), updates=updates.reader(),
    )
    program.add(EVALUATOR, build_evaluator, run=run, weights=weights.reader())


def serialised(run: Run, program: Program, topology: A3CConfig) -> None:
    """The second figure."""
    config, sizes = run.config, shard_sizes(run.weights_size, topology.shards)
    settings = ServerSettings(config.optimizer, config.steps, topology.max_staleness, topology.loss_deviations)
    steps = program.connect(CounterEdge("steps", writers=config.actors))
    gradients = [
        program.connect(QueueEdge(f"gradients-{i}", gradient_spec(size), config.actors, 1, after=f"weights-{i}"))
        for i, size in enumerate(sizes)
    ]
    weights = [program.connect(WeightsEdge(f"weights-{i}", size)) for i, size in enumerate(sizes)]
    for i in range(config.actors):
        program.add(
            WORKER, build_remote_gradient_worker, index=i, run=run, steps=steps.counter(i),
            gradients=[edge.sink(i) for edge in gradients], weights=[edge.reader() for edge in weights]
        )
    for i in range(topology.shards):
        program.add(
            PARAMETER_SERVER, build_parameter_server, index=i, durable=True, run=run, shards=topology.shards,
            settings=settings, source=gradients[i].source(), weights=weights[i].writer(), counted=steps.reader(),
        )
    program.add(EVALUATOR, build_evaluator, run=run, weights=[edge.reader() for edge in weights])


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
    name: str, incarnation: int, run: Run, shared: SharedParameters, weights: ShardWeights, steps: StepTotal,
    updates: StepTotal,
) -> Master:
    config = run.config
    master = Master(name, initial_weights(run), shared, weights, steps, updates, config.optimizer, config.steps)
    master.layout = run.layout
    return master
