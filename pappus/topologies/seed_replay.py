"""SEED with replay (Espeholt et al. 2019, section 3.2: R2D2).

    actor 0 ──observations──▶ ┌───────────┐           ┌────────┐            ┌─────────┐
            ◀────actions───── │ inference │ ──items──▶│ replay │ ──batch──▶ │ learner │
    actor 1 ──observations──▶ │  (states, │           └────────┘            └────┬────┘
            ◀────actions───── │ sequences)│               ▲ ◀───priorities───────┤
    elsewhere ⇄ gRPC          └───────────┘ ◀────────────────────weights─────────┴──▶ evaluator

Actors hold envs and no network. The inference server keeps every env's recurrent state and gives each env its own
degree of exploration; it builds the sequences, so a frame is sent once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

from pappus.config import ReplayConfig, RunConfig
from pappus.core import ItemSink, RequestServer, Source, StepCounter, WeightsReader
from pappus.edges.counters import CounterEdge
from pappus.edges.replay import ReplayEdge
from pappus.edges.weights import WeightsEdge
from pappus.envs.external import is_external
from pappus.errors import UserError
from pappus.kinds import EVALUATOR, INFERENCE, LEARNER, REPLAY
from pappus.roles.acting import ActingNetwork
from pappus.roles.gpu_replay_inference import GpuReplayInference
from pappus.roles.inference_server import InferenceSettings
from pappus.roles.replay_inference import CpuReplayInference
from pappus.topologies.apex import check_replay
from pappus.topologies.builders import build_evaluator, build_replay_server, recording_of, replay_spec
from pappus.topologies.data_tables import add_data
from pappus.topologies.learners import build_replay_learner
from pappus.topologies.program import Program, Run, off_policy
from pappus.topologies.seed import (
    SeedConfig,
    add_actors,
    add_suspects,
    device_network,
    inference_settings,
    policy_seed,
)
from pappus.types import Nest

MAX_REMOTE_ENVS = 256
"""Envs that may join from elsewhere at once; fewer with --topology.wire.max-envs."""


@dataclass(frozen=True)
class SeedReplayConfig(SeedConfig):
    """Central inference, and a table."""

    many_learners: ClassVar[bool] = False
    uses_data: ClassVar[Literal["no", "beside", "only"]] = "beside"
    slack_option: ClassVar[str] = "--topology.replay.tolerance"

    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """The table."""
    prefetch: int = 16
    """Batches prefetched for the learner."""

    def items_per_update(self, config: RunConfig) -> int:
        return config.batch_size

    def policy_lag(self, config: RunConfig) -> float:
        """All envs act with the newest weights; updates are as far ahead of a step of them as it calls for."""
        return config.actors * config.envs_per_actor * self.replay.samples_per_insert / config.batch_size

    @property
    def max_remote_envs(self) -> int:
        """Envs from elsewhere that there is room for: what they write stays in the table until items are made of it."""
        return min(self.wire.max_envs, MAX_REMOTE_ENVS) if self.wire.listen else 0

    def settled(self, config: RunConfig) -> SeedReplayConfig:
        """As SEED does it, and no more envs from elsewhere than there is room for."""
        chosen = super().settled(config)
        assert isinstance(chosen, SeedReplayConfig)
        return replace(chosen, wire=replace(chosen.wire, max_envs=min(chosen.wire.max_envs, MAX_REMOTE_ENVS)))

    def check(self, config: RunConfig) -> None:
        super().check(config)
        check_replay(self.replay)
        if config.batch_size < 1 or self.prefetch < 1:
            raise UserError(f"batch_size={config.batch_size} and prefetch={self.prefetch} must be at least 1")


def seed_replay(run: Run) -> Program:
    config, program = run.config, Program("seed-replay", run.config.seed)
    assert isinstance(config.topology, SeedReplayConfig)
    inference = add_actors(program, run)
    envs = config.actors * config.envs_per_actor + config.topology.max_remote_envs
    spec = replay_spec(run, config.topology.replay, envs, config.topology.prefetch, origins=True)
    replay = program.connect(ReplayEdge("replay", spec))
    weights = nearby = program.connect(WeightsEdge("weights", run.weights_size))
    steps = program.connect(CounterEdge("steps", writers=1))

    accused, (accuser,) = add_suspects(program, run)

    beside = config.topology.beside_learner(config)
    if beside:
        nearby = program.connect(WeightsEdge("nearby weights", run.weights_size, config.device))
    program.add(
        INFERENCE, build_gpu_replay_inference if beside else build_replay_inference, run=run,
        group=LEARNER.name if beside else "", settings=inference_settings(run), server=inference.server(),
        open_sink=replay.sinks(), weights=nearby.reader(), counter=steps.counter(0), suspects=accused,
    )
    program.add(REPLAY, build_replay_server, durable=True, run=run, host=replay.host())
    program.add(
        LEARNER, build_replay_learner, group=LEARNER.name, essential=True, run=run, capacity=replay.spec.table.max_size,
        source=replay.source(), data=add_data(program, run, config.topology.replay, config.topology.prefetch),
        weights=weights.writer(), nearby=nearby.writer() if beside else None, counted=steps.reader(),
        keeps_rows=config.topology.replay.keep_on_device, suspects=accuser,
    )
    if not is_external(run.env):
        program.add(EVALUATOR, build_evaluator, run=run, weights=weights.reader())
    return program


def build_replay_inference(
    name: str, incarnation: int, run: Run, settings: InferenceSettings, server: RequestServer,
    open_sink: Callable[[int], ItemSink], weights: WeightsReader, counter: StepCounter,
    suspects: Source | None = None,
) -> CpuReplayInference:
    """Central inference that writes to replay."""
    config, algorithm = run.config, off_policy(run.algorithm)
    network = ActingNetwork(algorithm, weights, policy_seed(run, incarnation), config.precision_on("cpu"))
    return CpuReplayInference(
        name, server, network, algorithm, open_sink, counter, _expected(config), settings, recording_of(run),
        suspects, stacks=run.env_spec.frame_stack > 1,
    )


def build_gpu_replay_inference(
    name: str, incarnation: int, run: Run, settings: InferenceSettings, server: RequestServer,
    open_sink: Callable[[int], ItemSink], weights: WeightsReader, counter: StepCounter,
    suspects: Source | None = None,
) -> GpuReplayInference:
    """The same on the learner's device."""
    algorithm, stacks = off_policy(run.algorithm), run.env_spec.frame_stack > 1

    def recorded(state: Nest) -> Nest:
        """All but frames, which are rebuilt from the table."""
        return ((), state[1]) if stacks else state

    shown = run.env_spec.observation
    network = device_network(run, incarnation, server, weights, observation=shown, recorded=recorded)
    return GpuReplayInference(
        name, server, network, algorithm, open_sink, counter, _expected(run.config), settings,
        recorded(run.state_spec), recording_of(run), suspects,
    )


def _expected(config: RunConfig) -> int:
    """Envs of our own actors, or the least that there can be."""
    return max(1, config.actors) * config.envs_per_actor
