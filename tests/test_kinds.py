"""A topology may declare kinds of its own: a run asks a role's kind, never its name."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import pappus
from pappus.api import configure, describe
from pappus.edges.queue import QueueEdge
from pappus.edges.weights import WeightsEdge
from pappus.kinds import RoleKind
from pappus.runtimes.resources import colocations
from pappus.system import System, Topology
from pappus.systems import ALGORITHMS
from pappus.topologies.builders import build_actor, build_evaluator
from pappus.topologies.impala import ImpalaConfig
from pappus.topologies.learners import build_learner
from pappus.topologies.program import Program, Run

PLAYER = RoleKind("player", steps_envs=True)
TRAINER = RoleKind("trainer", trains=True, uses_device=True)
JUDGE = RoleKind("judge", evaluates=True, background=True)


def with_own_kinds(run: Run) -> Program:
    """IMPALA with other names."""
    program, config = Program("own kinds", run.config.seed), run.config
    spec = run.unroll_spec(config.envs_per_actor)
    unrolls = program.connect(QueueEdge("unrolls", spec, config.actors, config.queue_size))
    weights = program.connect(WeightsEdge("weights", run.weights_size))
    for i in range(config.actors):
        program.add(PLAYER, build_actor, index=i, run=run, sink=unrolls.sink(i), weights=weights.reader())
    program.add(
        TRAINER, build_learner, essential=True, run=run, slots=config.actors, source=unrolls.source(),
        weights=weights.writer(),
    )
    program.add(JUDGE, build_evaluator, run=run, weights=weights.reader())
    return program


OWN = System(ALGORITHMS["vtrace"], Topology("own", with_own_kinds, ImpalaConfig()))
SMALL = {"actors": 2, "batch_size": 2, "envs_per_actor": 1, "evaluation.episodes": 2}


@pytest.mark.parametrize("runtime", ["inline", "local"])
def test_a_trainer_counts_steps_and_updates_and_saves_weights_that_eval_finds(tmp_path: Path, runtime: str) -> None:
    result = pappus.train(OWN, "CartPole-v1", steps=2000, runtime=runtime, run_dir=str(tmp_path / "run"), **SMALL)
    assert result.summary.steps >= 2000 and result.summary.updates > 0
    assert result.summary.eval_return is not None, "the judge evaluates"
    assert pappus.evaluate(result.directory, episodes=2, system=OWN).mean > 0
    resumed = pappus.resume(result.directory, system=OWN, steps=3000)
    assert resumed.summary.steps >= 3000
    scalars = json.loads((result.directory / "metrics.jsonl").read_text().splitlines()[-1])
    assert {"charts/SPS", "trainer/busy", "player/busy"} <= scalars.keys()
    assert set(result.summary.extras["bytes_moved"]) == {"unrolls", "weights"}


def test_a_trainer_is_asked_to_finish_when_time_is_up(tmp_path: Path) -> None:
    result = pappus.train(
        OWN, "CartPole-v1", steps=10**9, seconds=1.0, runtime="local", run_dir=str(tmp_path / "run"), **SMALL
    )
    assert result.summary.exit_reason == "time is up" and result.summary.eval_return is not None


def test_who_uses_the_device_reserves_a_gpu_and_who_works_in_the_background_nothing() -> None:
    config = configure(OWN, "CartPole-v1", {"runtime": "ray", "actors": 1})
    program = with_own_kinds(describe(config, "CartPole-v1", OWN))
    asked = colocations(program, dataclasses.replace(config, device="cuda"))
    amounts = {colocation.groups[0]: colocation.total for colocation in asked}
    assert amounts == {"player-0": {"CPU": 1}, "trainer": {"CPU": 1, "GPU": 1}, "judge": {}}
