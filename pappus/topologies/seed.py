"""SEED (Espeholt et al. 2019): actors hold envs and no network.

    actor 0 ──observations──▶ ┌───────────┐              ┌──────────┐
            ◀────actions───── │ inference │ ──batches──▶ │ learner  │
    actor 1 ──observations──▶ │  (states, │              └────┬─────┘
            ◀────actions───── │  unrolls) │ ◀────weights──────┤
    elsewhere ⇄ gRPC          └───────────┘                   └──▶ evaluator

Many learners share one inference server, which deals the batches out in turn; their gradients meet before every step.

                    ┌──batch 0, 2 …──▶ learner ────gradients──┐
          inference ┤                                         ├──▶ all-reduce ──▶ the same step for both
                    └──batch 1, 3 …──▶ learner-1 ──gradients──┘

The inference server answers many envs with one forward pass of the newest weights, keeps their recurrent states and
assembles what they experience; an actor needs a core for its envs and nothing else. An actor may divide its
envs into groups, so that it steps one group while the others wait for their actions.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Literal

from pappus.config import RunConfig, TopologyConfig, WireConfig
from pappus.edges.calls import CallsEdge
from pappus.edges.loan import LoanEdge
from pappus.edges.queue import QueueEdge
from pappus.edges.weights import WeightsEdge
from pappus.envs.external import is_external
from pappus.errors import UserError
from pappus.kinds import ACTOR, EVALUATOR, INFERENCE, LEARNER, PREFETCH
from pappus.roles.inference_server import InferenceSettings
from pappus.telemetry.processes import usable_cores
from pappus.topologies.builders import (
    build_evaluator,
    build_gpu_inference,
    build_inference,
    build_prefetcher,
    build_seed_actor,
)
from pappus.topologies.learner_builders import build_learner
from pappus.topologies.learners import add_learners, check_learners, numbered
from pappus.topologies.program import Program
from pappus.topologies.run import Run
from pappus.transports.addresses import check_wire, with_port
from pappus.types import request_spec


@dataclass(frozen=True)
class SeedConfig(TopologyConfig):
    """Central inference."""

    many_learners: ClassVar[bool] = True

    env_groups: int = 0
    """Groups into which an actor divides its envs: it steps one while the others wait for their actions; 0: two where
    actors, inference and learner have room beside each other, one otherwise."""
    max_inference_envs: int = 0
    """Envs that are answered with one forward pass; 0: chosen by measurement."""
    inference_deadline_ms: float = -1.0
    """Time that a request may wait for others to share its forward pass; -1: chosen by measurement."""

    inference_in: Literal["auto", "process", "learner"] = "auto"
    """Where inference runs: in a process of its own, or in threads of the learner's process, on its device; auto: the
    latter on an accelerator."""
    wire: WireConfig = field(default_factory=WireConfig)
    """Envs that join from elsewhere."""

    def check(self, config: RunConfig) -> None:
        """Raise `UserError` for a rule that the run's config breaks."""
        check_wire(self.wire)
        check_learners(config)
        if config.learners > 1 and (self.inference_in == "learner" or config.device != "cpu"):
            raise UserError(
                f"learners={config.learners} share one inference server, but with device={config.device!r} and "
                f"topology.inference_in={self.inference_in!r} it lives in the process of one; use --device cpu, process"
            )
        if self.wire.listen and config.inline:
            raise UserError(f"listen={self.wire.listen!r} needs processes, and the inline runtime has none; use local")
        if not self.wire.listen and (config.actors == 0 or is_external(config.env)):
            raise UserError(f"actors={config.actors} on env {config.env!r} leaves nobody to learn from; give --listen")
        if self.env_groups < 0 or config.envs_per_actor % (self.env_groups or 1):
            choices = [str(n) for n in range(1, config.envs_per_actor + 1) if config.envs_per_actor % n == 0]
            raise UserError(
                f"topology.env_groups={self.env_groups} does not divide envs_per_actor={config.envs_per_actor}; "
                f"use {', '.join(choices[:12])}"
            )
        if self.max_inference_envs < 0:
            raise UserError(
                f"topology.max_inference_envs={self.max_inference_envs} must not be negative; 0 chooses by measurement"
            )

    def settled(self, config: RunConfig) -> SeedConfig:
        """With a port that actors find again after a restart, and as many env groups as the machine has use for."""
        room = config.device != "cpu" or usable_cores() >= config.actors + 2  # for actors, inference and learner
        overlap = room and not config.inline and config.envs_per_actor % 2 == 0
        wire = replace(self.wire, listen=with_port(self.wire.listen))
        return replace(self, env_groups=self.env_groups or (2 if overlap else 1), wire=wire)

    @property
    def slack_option(self) -> str:
        """Unrolls wait in a queue."""
        return "--queue-size"


def seed(run: Run) -> Program:
    """The program of the figure above."""
    config, program = run.config, Program("seed", run.config.seed)
    inference = program.connect(calls(run))
    weights = program.connect(WeightsEdge("weights", run.weights_size))
    for i in range(config.actors):
        add_seed_actor(program, run, i, inference)
    add_inference(run, program, inference, weights)
    if not is_external(run.env):
        program.add(EVALUATOR, build_evaluator, run=run, weights=weights.reader())
    return program


def add_inference(
    run: Run, program: Program, inference: CallsEdge, weights: WeightsEdge, synchronous: bool = False
) -> None:
    """Inference server and learners, each in its own process, or both on one device. With synchronous batches there is
    one slot, which comes back when the learner has published what it learnt from it."""
    settings = replace(inference_settings(run), synchronous=synchronous)
    slots = 1 if synchronous else run.config.queue_size
    add = _add_threads if _beside_learner(run) else _add_processes
    add(run, program, inference, weights, settings, slots)


def _add_processes(
    run: Run, program: Program, inference: CallsEdge, weights: WeightsEdge, settings: InferenceSettings, slots: int
) -> None:
    config = run.config
    spec, after = run.unroll_spec(config.batch_envs), "weights" if settings.synchronous else ""
    names = [numbered("batches", i) for i in range(config.learners)]
    queues = [QueueEdge(name, spec, producers=1, capacity=slots, after=after) for name in names]
    batches = [program.connect(queue) for queue in queues]
    program.add(
        INFERENCE, build_inference, run=run, settings=settings, server=inference.server(),
        sinks=[queue.sink(0) for queue in batches], weights=weights.reader(),
    )
    add_learners(program, run, build_learner, weights, lambda i: {"source": batches[i].source(), "slots": 1})


def _add_threads(
    run: Run, program: Program, inference: CallsEdge, weights: WeightsEdge, settings: InferenceSettings, slots: int
) -> None:
    """The paper's three kinds of thread on one device: inference, prefetch and training."""
    device, spec = run.config.device, run.unroll_spec(run.config.batch_envs)
    unrolls = program.connect(LoanEdge("unrolls"))
    batches = program.connect(QueueEdge("batches", spec, producers=1, capacity=slots, device=device))
    nearby = program.connect(WeightsEdge("nearby weights", run.weights_size, device))
    program.add(
        INFERENCE, build_gpu_inference, group=LEARNER.name, run=run, settings=settings, server=inference.server(),
        unrolls=unrolls.lender(), weights=nearby.reader(),
    )
    program.add(
        PREFETCH, build_prefetcher, group=LEARNER.name, run=run, unrolls=unrolls.borrower(), sink=batches.sink(0)
    )
    program.add(
        LEARNER, build_learner, group=LEARNER.name, essential=True, run=run, slots=1, source=batches.source(),
        weights=weights.writer(), nearby=nearby.writer(),
    )


def add_seed_actor(program: Program, run: Run, index: int, inference: CallsEdge) -> None:
    """The actor of that number, which asks the inference server for actions."""
    program.add(
        ACTOR, build_seed_actor, index=index, run=run, env_groups=_options(run).env_groups,
        client=inference.client(index),
    )


def calls(run: Run) -> CallsEdge:
    """The lines of all env groups to the inference server."""
    config, options, env = run.config, _options(run), run.env_spec
    return CallsEdge(
        "inference", request_spec(env), env.action.array, config.actors, options.env_groups, _env_group_envs(run),
        options.wire, env.action.choices, Path(config.run_dir).name,
    )


def inference_settings(run: Run) -> InferenceSettings:
    """What the inference server needs to know of the run."""
    config, options = run.config, _options(run)
    measured = not config.inline  # what depends on a clock is not reproducible
    deadline = None if options.inference_deadline_ms < 0 and measured else max(0.0, options.inference_deadline_ms / 1e3)
    return InferenceSettings(
        run.unroll_spec, config.unroll_length, config.batch_envs,
        options.max_inference_envs or (0 if measured else config.actors * config.envs_per_actor), deadline,
    )


def _beside_learner(run: Run) -> bool:
    inference_in = _options(run).inference_in
    return inference_in == "learner" or (inference_in == "auto" and run.config.device != "cpu")


def _options(run: Run) -> SeedConfig:
    assert isinstance(run.config.topology, SeedConfig)
    return run.config.topology


def _env_group_envs(run: Run) -> int:
    return run.config.envs_per_actor // _options(run).env_groups
