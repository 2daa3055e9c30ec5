"""SEED with replay (Espeholt et al. 2019, section 3.2: R2D2).

    actor 0 ──observations──▶ ┌───────────┐           ┌────────┐            ┌─────────┐
            ◀────actions───── │ inference │ ──items──▶│ replay │ ──batch──▶ │ learner │
    actor 1 ──observations──▶ │  (states, │           └────────┘            └────┬────┘
            ◀────actions───── │ sequences)│               ▲ ◀───priorities───────┤
    elsewhere ⇄ gRPC          └───────────┘ ◀────────────────────weights─────────┴──▶ evaluator

Actors hold envs and no network. The inference server knows every env's recurrent state and gives each a degree of
exploration of its own; it makes the sequences, so a frame is sent once.
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
from pappus.roles.inference_server import InferenceSettings
from pappus.roles.replay_inference import ReplayInference
from pappus.topologies.apex import check_replay
from pappus.topologies.builders import build_evaluator, build_replay_server, recording_of, replay_spec
from pappus.topologies.data_tables import add_data
from pappus.topologies.learners import build_replay_learner
from pappus.topologies.program import Program, Run, off_policy
from pappus.topologies.seed import SeedConfig, add_actors, add_suspects, inference_settings, policy_seed

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
    """Batches that are drawn ahead of the learner."""

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
    weights = program.connect(WeightsEdge("weights", run.weights_size))
    steps = program.connect(CounterEdge("steps", writers=1))

    accused, (accuser,) = add_suspects(program, run)

    beside = config.topology.beside_learner(config)
    program.add(
        INFERENCE, build_replay_inference, group=LEARNER.name if beside else "", run=run,
        device=config.device if beside else "cpu", settings=inference_settings(run),
        server=inference.server(), open_sink=replay.sinks(), weights=weights.reader(), counter=steps.counter(0),
        suspects=accused,
    )
    program.add(REPLAY, build_replay_server, durable=True, run=run, host=replay.host())
    program.add(
        LEARNER, build_replay_learner, group=LEARNER.name, essential=True, run=run, capacity=replay.spec.table.max_size,
        source=replay.source(), data=add_data(program, run, config.topology.replay, config.topology.prefetch),
        weights=weights.writer(), counted=steps.reader(), keeps_rows=config.topology.replay.keep_on_device,
        suspects=accuser,
    )
    if not is_external(run.env):
        program.add(EVALUATOR, build_evaluator, run=run, weights=weights.reader())
    return program


def build_replay_inference(
    name: str, incarnation: int, run: Run, device: str, settings: InferenceSettings, server: RequestServer,
    open_sink: Callable[[int], ItemSink], weights: WeightsReader, counter: StepCounter,
    suspects: Source | None = None,
) -> ReplayInference:
    """Central inference that writes to replay."""
    config, algorithm = run.config, off_policy(run.algorithm)
    seed = policy_seed(run, incarnation)
    network = ActingNetwork(algorithm, weights, seed, config.precision_on(device), device=device)
    expected = max(1, config.actors) * config.envs_per_actor
    return ReplayInference(
        name, server, network, algorithm, open_sink, counter, expected, settings, recording_of(run), device,
        stacks=run.env_spec.frame_stack > 1, suspects=suspects,
    )
