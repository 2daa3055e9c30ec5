from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from pappus.api import configure, describe
from pappus.edges.all_reduce import AllReduceEdge
from pappus.edges.queue import QueueEdge
from pappus.edges.weights import WeightsEdge
from pappus.errors import UserError
from pappus.kinds import RoleKind
from pappus.roles.role import Role
from pappus.topologies.impala import impala
from pappus.topologies.program import Program, derive_seed
from tests.config_tools import check


def test_the_program_is_the_papers_figure() -> None:
    settings = {"actors": 3, "envs_per_actor": 4, "unroll_length": 5, "queue_size": 2}
    program = impala(describe(configure("impala", "CartPole-v1", settings), "CartPole-v1"))
    assert [node.name for node in program.roles] == ["actor-0", "actor-1", "actor-2", "learner", "evaluator"]
    assert [node.name for node in program.roles if node.essential] == ["learner"]
    unrolls, weights = program.edges["unrolls"], program.edges["weights"]
    assert isinstance(unrolls, QueueEdge) and (unrolls.producers, unrolls.capacity) == (3, 2)
    assert unrolls.spec.observation.shape == (6, 4, 4) and unrolls.spec.reward.shape == (5, 4)
    assert isinstance(weights, WeightsEdge) and weights.size == 4 * 64 + 64 + 64 * 64 + 64 + 64 * 3 + 3
    ends = {spec.name: set(map(str, spec.ends())) for spec in program.roles}
    assert ends["actor-2"] == {"unrolls.sink(2)", "weights.reader()"}
    assert ends["learner"] == {"unrolls.source()", "weights.writer()"}
    assert ends["evaluator"] == {"weights.reader()"}


def test_many_learners_have_a_queue_each_and_actors_are_dealt_out() -> None:
    settings = {"actors": 5, "learners": 2, "envs_per_actor": 4}
    program = impala(describe(configure("impala", "CartPole-v1", settings), "CartPole-v1"))
    learners = {node.name: node for node in program.roles if node.name.startswith("learner")}
    assert list(learners) == ["learner", "learner-1"] and all(node.essential for node in learners.values())
    assert [node.begins_with for node in learners.values()] == ["learner", "learner"]
    assert [node.saved for node in learners.values()] == [True, False], "the first saves for both"
    ends = {spec.name: set(map(str, spec.ends())) for spec in program.roles}
    assert ends["learner"] == {"unrolls.source()", "weights.writer()", "other learners.member(0)"}
    assert ends["learner-1"] == {"unrolls-1.source()", "other learners.member(1)"}
    sinks = [next(end for end in ends[f"actor-{i}"] if "sink" in end) for i in range(5)]
    assert sinks == ["unrolls.sink(0)", "unrolls-1.sink(0)", "unrolls.sink(1)", "unrolls-1.sink(1)", "unrolls.sink(2)"]
    assert [node.arguments["slots"] for node in learners.values()] == [3, 2], "one unroll of each of its actors"
    all_reduce = program.edges["other learners"]
    assert isinstance(all_reduce, AllReduceEdge) and all_reduce.backend == "memory"


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"learners": 0}, "learners=0 must be at least 1"),
        ({"learners": 2, "actors": 1}, "actors=1 must be at least 1 for every learner; give --actors 2 or more"),
        ({"learners": 2, "actors": 2, "batch_size": 256}, "needs 4 actors' unrolls at once, but 1 actors .* hold 2"),
        ({"learners": 2, "actors": 2, "runtime": "inline", "all_reduce": "gloo"}, "the inline runtime has none"),
        ({"learners": 2, "actors": 2, "all_reduce": "nccl"}, "needs GPUs, but device='cpu'; use gloo or memory"),
        ({"learners": 2, "actors": 2, "device": "cuda:1"}, "is one GPU, and learners=2 need one each"),
    ],
)
def test_learners_that_cannot_work_are_refused_with_a_sentence(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        check("impala", "CartPole-v1", settings)


@pytest.mark.parametrize("system", ["dqn", "ddpg", "apex-dqn", "r2d2", "seed-r2d2", "gorila-dqn", "a3c"])
def test_other_systems_have_no_learners_that_share_updates(system: str) -> None:
    with pytest.raises(UserError, match=f"learners=2: '{system}' supports only one learner; use --learners 1"):
        check(system, "CartPole-v1", {"learners": 2})


def test_a_network_with_running_statistics_is_for_one_learner() -> None:
    run = describe(configure("impala", "CartPole-v1", {}), "CartPole-v1")
    build = run.algorithm.build_network

    def with_statistics() -> nn.Module:
        network = build()
        network.add_module("norm", nn.BatchNorm1d(4))
        return network

    run.algorithm.build_network = with_statistics  # type: ignore[method-assign]
    impala(run)
    with pytest.raises(UserError, match=r"gradients do not train \(norm\.running_mean.* differ between learners=2"):
        impala(replace(run, config=replace(run.config, learners=2, actors=2)))


def test_running_moments_are_for_many_learners_too() -> None:
    settings = {"learners": 2, "actors": 2, "network.normalize": True}
    run = describe(configure("impala", "CartPole-v1", settings), "CartPole-v1")
    assert [node.name for node in impala(run).roles][2:4] == ["learner", "learner-1"]


def test_names_are_given_once() -> None:
    program = Program("toy")
    program.add(RoleKind("role"), Role)
    program.connect(WeightsEdge("weights", 1))
    with pytest.raises(UserError, match="role 'role' is in program 'toy' twice"):
        program.add(RoleKind("role"), Role)
    with pytest.raises(UserError, match="edge 'weights' is in program 'toy' twice"):
        program.connect(WeightsEdge("weights", 1))


def test_seeds_differ_by_purpose_and_repeat_for_the_same_one() -> None:
    paths = [("actor", 0, 0), ("actor", 0, 1), ("actor", 1, 0), ("learner",), ("evaluator", 0)]
    seeds = [seed for path in paths for seed in derive_seed(1, *path)]
    assert len(set(seeds)) == len(seeds) and derive_seed(1, "actor", 0, 0) == derive_seed(1, "actor", 0, 0)
    assert derive_seed(2, "actor", 0, 0) != derive_seed(1, "actor", 0, 0)
