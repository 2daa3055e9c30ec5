"""SEED (Espeholt et al. 2019): actors hold envs and no network.

    actor 0 ──observations──▶ ┌───────────┐              ┌──────────┐
            ◀────actions───── │ inference │ ──batches──▶ │ learner  │
    actor 1 ──observations──▶ │  (states, │              └────┬─────┘
            ◀────actions───── │  unrolls) │ ◀────weights──────┤
    elsewhere ⇄ gRPC          └───────────┘                   └──▶ evaluator

Many learners share one inference server, which gives them batches round-robin; gradients are summed at every step.

                    ┌──batch 0, 2 …──▶ learner ────gradients──┐
          inference ┤                                         ├──▶ all-reduce ──▶ the same step for both
                    └──batch 1, 3 …──▶ learner-1 ──gradients──┘

The inference server answers many envs with one forward pass of the newest weights, keeps their recurrent states and
assembles unrolls from their experience; an actor needs a core for its envs and nothing else. An actor may divide its
envs into groups, so that it steps one group while the others wait for their actions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from pappus.accelerator import Accelerator
from pappus.config import RunConfig, TopologyConfig, WireConfig
from pappus.core import Borrower, Lender, RequestClient, RequestServer, Sink, Source, WeightsReader
from pappus.edges.calls import CallsEdge
from pappus.edges.edge import PortRef
from pappus.edges.loan import LoanEdge
from pappus.edges.queue import QueueEdge
from pappus.edges.weights import WeightsEdge
from pappus.envs.external import is_external
from pappus.errors import UserError
from pappus.kinds import ACTOR, EVALUATOR, INFERENCE, LEARNER, PREFETCH
from pappus.roles.acting import ActingNetwork
from pappus.roles.cpu_inference import CpuInference
from pappus.roles.device_network import SMALLEST_BATCH, DeviceNetwork
from pappus.roles.gpu_inference import GpuInference
from pappus.roles.inference_server import InferenceSettings
from pappus.roles.prefetcher import Prefetcher
from pappus.roles.seed_actor import SeedActor
from pappus.telemetry.processes import usable_cores
from pappus.topologies.builders import actor_env, build_evaluator, recording_of
from pappus.topologies.impala import MOST_CHEAP
from pappus.topologies.learners import add_learners, build_learner, check_learners, numbered
from pappus.topologies.program import Program, Run, derive_seed
from pappus.transports.addresses import check_free, check_wire, with_port
from pappus.types import ArraySpec, request_spec

MOST_SUSPECTS = 64
"""Clients that a learner may blame before the inference server looks; further ones are blamed again."""


@dataclass(frozen=True)
class SeedConfig(TopologyConfig):
    """Central inference."""

    many_learners: ClassVar[bool] = True
    slack_option: ClassVar[str] = "--queue-size"

    env_groups: int = 0
    """Env groups per actor: it steps one while the others wait for actions; 0: two on an accelerator or if there are
    cores for actors, inference and learner, one otherwise."""
    max_inference_envs: int = 0
    """Envs per forward pass; 0: chosen by measurement."""
    inference_deadline_ms: float = -1.0
    """Batching deadline in milliseconds: how long a request may wait for others to share its forward pass; -1: chosen
    by measurement."""

    inference_in: Literal["auto", "process", "learner"] = "auto"
    """Where inference runs: in its own process, or in threads of the learner's process, on its device; auto: the latter
    on an accelerator."""
    wire: WireConfig = field(default_factory=WireConfig)
    """Access for remote envs."""

    @property
    def others_may_join(self) -> bool:
        return bool(self.wire.listen)

    def check(self, config: RunConfig) -> None:
        check_wire(self.wire)
        if config.runtime != "ray":  # on a cluster it is another machine that listens
            check_free(self.wire.listen)
        check_learners(config)
        if config.learners > 1 and (self.inference_in == "learner" or config.device != "cpu"):
            raise UserError(
                f"learners={config.learners} share one inference server, but with device={config.device!r} and "
                f"topology.inference_in={self.inference_in!r} it runs in the process of one; use --device cpu "
                "and process"
            )
        if self.wire.listen and config.inline:
            raise UserError(f"listen={self.wire.listen!r} needs processes, and the inline runtime has none; use local")
        if not self.wire.listen and (config.actors == 0 or is_external(config.env)):
            raise UserError(f"actors={config.actors} on env {config.env!r} leaves no env to learn from; give --listen")
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

    def policy_lag(self, config: RunConfig) -> float:
        """Batches that wait, and unrolls that are being filled with the newest weights of each step."""
        filling = config.actors * config.envs_per_actor / self.items_per_update(config)
        return config.queue_size + filling

    def actors_for(self, config: RunConfig, cores: int, heavy: bool) -> int:
        """The learner needs a core, and so does inference in a process of its own. One learner on a CPU keeps up with a
        few actors of cheap envs."""
        free = cores - config.learners - (not self.beside_learner(config))
        return free if heavy or config.device != "cpu" else min(MOST_CHEAP, free)

    def beside_learner(self, config: RunConfig) -> bool:
        """Whether inference runs in threads of the learner's process."""
        return self.inference_in == "learner" or (self.inference_in == "auto" and config.device != "cpu")


def seed(run: Run, name: str = "seed", synchronous: bool = False, ahead: int = 0) -> Program:
    """The program of the figure above. With synchronous batches there is one slot, which comes back when the learner
    has published what it learnt from it, and one for every batch that envs may be ahead."""
    program = Program(name, run.config.seed)
    inference = add_actors(program, run)
    weights = program.connect(WeightsEdge("weights", run.weights_size))
    add = _add_threads if options_of(run).beside_learner(run.config) else _add_processes
    add(program, run, inference, weights, replace(inference_settings(run), synchronous=synchronous, ahead=ahead))
    if not is_external(run.env):
        program.add(EVALUATOR, build_evaluator, run=run, weights=weights.reader())
    return program


def add_actors(program: Program, run: Run) -> CallsEdge:
    """All actors, and the edge by which they ask the inference server for actions."""
    config, env, options = run.config, run.env_spec, options_of(run)
    inference = program.connect(CallsEdge(
        "inference", request_spec(env), env.action.array, config.actors, options.env_groups,
        config.envs_per_actor // options.env_groups, options.wire, env.action.choices, Path(config.run_dir).name,
        config.unroll_length + 1,
    ))
    for i in range(config.actors):
        client = inference.client(i)
        program.add(ACTOR, build_seed_actor, index=i, run=run, env_groups=options.env_groups, client=client)
    return inference


def _add_processes(
    program: Program, run: Run, inference: CallsEdge, weights: WeightsEdge, settings: InferenceSettings
) -> None:
    config, spec = run.config, run.unroll_spec(run.config.batch_envs)
    slots, after = (1 + settings.ahead, "weights") if settings.synchronous else (config.queue_size, "")
    batches = [
        program.connect(QueueEdge(numbered("batches", i), spec, producers=1, capacity=slots, after=after))
        for i in range(config.learners)
    ]
    accused, accusers = add_suspects(program, run)
    program.add(
        INFERENCE, build_inference, run=run, settings=settings, server=inference.server(),
        sinks=[queue.sink(0) for queue in batches], weights=weights.reader(), suspects=accused,
    )
    add_learners(
        program, run, weights, lambda i: {"source": batches[i].source(), "slots": 1, "suspects": accusers[i]}
    )


def _add_threads(
    program: Program, run: Run, inference: CallsEdge, weights: WeightsEdge, settings: InferenceSettings
) -> None:
    """The paper's three kinds of thread on one device: inference, prefetch and training."""
    device, spec = run.config.device, run.unroll_spec(run.config.batch_envs)
    slots = 1 + settings.ahead if settings.synchronous else run.config.queue_size
    unrolls = program.connect(LoanEdge("unrolls"))
    batches = program.connect(QueueEdge("batches", spec, producers=1, capacity=slots, device=device))
    nearby = program.connect(WeightsEdge("nearby weights", run.weights_size, device))
    accused, (accuser,) = add_suspects(program, run)
    program.add(
        INFERENCE, build_gpu_inference, group=LEARNER.name, run=run, settings=settings, server=inference.server(),
        unrolls=unrolls.lender(), weights=nearby.reader(), suspects=accused,
    )
    program.add(
        PREFETCH, build_prefetcher, group=LEARNER.name, run=run, unrolls=unrolls.borrower(), sink=batches.sink(0)
    )
    program.add(
        LEARNER, build_learner, group=LEARNER.name, essential=True, run=run, slots=1, source=batches.source(),
        weights=weights.writer(), nearby=nearby.writer(), suspects=accuser,
    )


def add_suspects(program: Program, run: Run) -> tuple[PortRef[Source] | None, list[PortRef[Sink] | None]]:
    """Where others may join, a way back from every learner to the inference server: the origins of clients whose
    experience made a batch not finite. None elsewhere."""
    if not options_of(run).others_may_join:
        return None, [None] * run.config.learners
    origin = ArraySpec((), "int64")
    edge = program.connect(QueueEdge("suspects", origin, producers=run.config.learners, capacity=MOST_SUSPECTS))
    return edge.source(), [edge.sink(i) for i in range(run.config.learners)]


def inference_settings(run: Run) -> InferenceSettings:
    """What depends on a clock is not reproducible: the inline runtime measures nothing."""
    config, options = run.config, options_of(run)
    measured = not config.inline
    deadline = None if options.inference_deadline_ms < 0 and measured else max(0.0, options.inference_deadline_ms / 1e3)
    return InferenceSettings(
        run.unroll_spec, config.unroll_length, config.batch_envs,
        options.max_inference_envs or (0 if measured else config.actors * config.envs_per_actor), deadline,
    )


def options_of(run: Run) -> SeedConfig:
    """The topology's settings."""
    assert isinstance(run.config.topology, SeedConfig)
    return run.config.topology


def build_seed_actor(
    name: str, incarnation: int, run: Run, index: int, env_groups: int, client: RequestClient
) -> SeedActor:
    """An actor without a network: a vector env for each of its env groups."""
    config = run.config
    groups = [[group] if group else [] for group in range(env_groups)]  # the first has the seed of IMPALA's actor
    seeds = [derive_seed(config.seed, "actor", index, incarnation, *group)[0] for group in groups]
    size = config.envs_per_actor // env_groups
    return SeedActor(name, [actor_env(run, size, seed) for seed in seeds], client)


def build_inference(
    name: str, incarnation: int, run: Run, settings: InferenceSettings, server: RequestServer, sinks: Sequence[Sink],
    weights: WeightsReader, suspects: Source | None = None,
) -> CpuInference:
    """Central inference in its own process, for one learner or many."""
    network = ActingNetwork(run.algorithm, weights, policy_seed(run, incarnation), run.config.precision_on("cpu"))
    return CpuInference(name, server, network, sinks, settings, recording_of(run), suspects)


def build_gpu_inference(
    name: str, incarnation: int, run: Run, settings: InferenceSettings, server: RequestServer, unrolls: Lender,
    weights: WeightsReader, suspects: Source | None = None,
) -> GpuInference:
    """Central inference on the learner's device."""
    network = device_network(run, incarnation, server, weights)
    return GpuInference(name, server, network, unrolls, settings, run.config.device, recording_of(run), suspects)


def device_network(
    run: Run, incarnation: int, server: RequestServer, weights: WeightsReader, **for_replay: Any
) -> DeviceNetwork:
    """The network of an inference server on the learner's device, which copies requests without the CPU."""
    config, accelerator = run.config, Accelerator(run.config.device)
    for memory in server.memory():
        accelerator.pin(memory)
    seed, padding = policy_seed(run, incarnation), SMALLEST_BATCH if accelerator.real else 0
    said = getattr(run.algorithm, "said", ()) if config.record else ()
    return DeviceNetwork(run.algorithm, weights, seed, config.precision, accelerator, padding, said, **for_replay)


def build_prefetcher(name: str, incarnation: int, run: Run, unrolls: Borrower, sink: Sink) -> Prefetcher:
    """Packs unrolls into batches on the device."""
    return Prefetcher(name, unrolls, sink, run.config.batch_envs, run.config.device)


def policy_seed(run: Run, incarnation: int) -> int:
    """The random stream of IMPALA's first actor, so that with one actor SEED and IMPALA act alike."""
    return derive_seed(run.config.seed, "actor", 0, incarnation)[1]
