"""SEED (Espeholt et al. 2019, figure 2): actors hold envs and no network.

    actor 0 ──observations──▶ ┌───────────┐              ┌──────────┐
            ◀────actions───── │ inference │ ──batches──▶ │ learner  │
    actor 1 ──observations──▶ │  (states, │              └────┬─────┘
            ◀────actions───── │  unrolls) │ ◀────weights──────┤
    elsewhere ⇄ gRPC          └───────────┘                   └──▶ evaluator

The inference server answers many envs with one forward pass of the newest weights, keeps their recurrent states and
assembles what they experience; an actor needs a core for its envs and nothing else. Each actor has several lanes of
envs, so that it steps one while the others wait for their actions.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pappus.config import RunConfig, TopologyConfig, WireConfig
from pappus.core import Caller, Desk, Sink, WeightsReader
from pappus.envs.external import is_external
from pappus.envs.vector import make_env
from pappus.errors import UserError
from pappus.roles.inference_server import InferenceServer, InferenceSettings
from pappus.roles.policy import ActingNetwork
from pappus.roles.thin_actor import ThinActor
from pappus.topologies.impala import build_evaluator, build_learner
from pappus.topologies.program import CallsEdge, Program
from pappus.topologies.run import Run, derive_seed
from pappus.transports.addresses import check_wire
from pappus.types import request_spec


@dataclass(frozen=True)
class SeedConfig(TopologyConfig):
    """Central inference."""

    lanes: int = 2
    """Groups into which an actor divides its envs: it steps one while the others wait for their actions."""
    max_inference_envs: int = 0
    """Envs that are answered with one forward pass; 0: chosen by measurement."""
    inference_deadline_ms: float = -1.0
    """Time that a request may wait for others to share its forward pass; -1: chosen by measurement."""

    wire: WireConfig = field(default_factory=WireConfig)
    """Envs that join from elsewhere."""

    def check(self, config: RunConfig) -> None:
        """Raise `UserError` for a rule that the run's config breaks."""
        check_wire(self.wire)
        if self.wire.listen and config.runtime == "inline":
            raise UserError(f"listen={self.wire.listen!r} needs processes, and the inline runtime has none; use local")
        if not self.wire.listen and (config.actors == 0 or is_external(config.env)):
            raise UserError(f"actors={config.actors} on env {config.env!r} leaves nobody to learn from; give --listen")
        if self.lanes < 1 or config.envs_per_actor % self.lanes:
            choices = [str(n) for n in range(1, config.envs_per_actor + 1) if config.envs_per_actor % n == 0]
            raise UserError(
                f"topology.lanes={self.lanes} does not divide envs_per_actor={config.envs_per_actor}; "
                f"use {', '.join(choices[:12])}"
            )
        if self.max_inference_envs < 0:
            raise UserError(
                f"topology.max_inference_envs={self.max_inference_envs} must not be negative; 0 chooses by measurement"
            )


def seed(run: Run) -> Program:
    """The program of the figure above."""
    config, options, program = run.config, _options(run), Program("seed", run.config.seed)
    inference = program.calls(CallsEdge(
        "inference", request_spec(run.env_spec), run.env_spec.action.array, config.actors, options.lanes,
        _lane_envs(run), options.wire, run.env_spec.action.choices, config.run_dir,
    ))
    batches = program.queue("batches", run.unroll_spec(config.batch_envs), producers=1, capacity=config.queue_size)
    weights = program.weights("weights", run.weights_size)

    for i in range(config.actors):
        program.add(f"actor-{i}", build_actor, run=run, index=i, caller=inference.caller(i))
    program.add(
        "inference", build_inference, run=run, desk=inference.desk(), sink=batches.sink(0), weights=weights.reader()
    )
    program.add(
        "learner", build_learner, essential=True, run=run, slots=1, source=batches.source(), weights=weights.writer()
    )
    if not is_external(run.env):
        program.add("evaluator", build_evaluator, run=run, weights=weights.reader())
    return program


def build_actor(name: str, incarnation: int, run: Run, index: int, caller: Caller) -> ThinActor:
    """An actor with an env for each of its lanes."""
    config = run.config
    lanes = [[lane] if lane else [] for lane in range(_options(run).lanes)]  # the first is IMPALA's actor
    seeds = [derive_seed(config.seed, "actor", index, incarnation, *lane)[0] for lane in lanes]
    return ThinActor(name, [make_env(run.env, _lane_envs(run), seed, config.env_options) for seed in seeds], caller)


def build_inference(
    name: str, incarnation: int, run: Run, desk: Desk, sink: Sink, weights: WeightsReader
) -> InferenceServer:
    """The one network that acts. Its random stream is that of IMPALA's first actor: with one actor both act alike."""
    config, options = run.config, _options(run)
    _, policy_seed = derive_seed(config.seed, "actor", 0, incarnation)
    network = ActingNetwork(run.algorithm, weights, policy_seed, config.precision)
    measured = config.runtime != "inline"  # what depends on a clock is not reproducible
    deadline = None if options.inference_deadline_ms < 0 and measured else max(0.0, options.inference_deadline_ms / 1e3)
    settings = InferenceSettings(
        run.unroll_spec, config.unroll_length, config.batch_envs,
        options.max_inference_envs or (0 if measured else config.actors * config.envs_per_actor), deadline,
    )
    return InferenceServer(name, desk, network, sink, settings)


def _options(run: Run) -> SeedConfig:
    assert isinstance(run.config.topology, SeedConfig)
    return run.config.topology


def _lane_envs(run: Run) -> int:
    return run.config.envs_per_actor // _options(run).lanes
