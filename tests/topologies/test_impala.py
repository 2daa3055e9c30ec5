from __future__ import annotations

import pytest

from pappus.api import configure, describe
from pappus.errors import UserError
from pappus.roles.role import Role
from pappus.topologies.impala import impala
from pappus.topologies.program import Program, QueueEdge, WeightsEdge
from pappus.topologies.run import derive_seed


def test_the_program_is_the_papers_figure() -> None:
    settings = {"actors": 3, "envs_per_actor": 4, "unroll_length": 5, "queue_size": 2}
    program = impala(describe(configure("impala", "CartPole-v1", settings), "CartPole-v1"))
    assert [node.name for node in program.nodes] == ["actor-0", "actor-1", "actor-2", "learner", "evaluator"]
    assert [node.name for node in program.nodes if node.essential] == ["learner"]
    unrolls, weights = program.edges["unrolls"], program.edges["weights"]
    assert isinstance(unrolls, QueueEdge) and (unrolls.producers, unrolls.capacity) == (3, 2)
    assert unrolls.spec.observation.shape == (6, 4, 4) and unrolls.spec.reward.shape == (5, 4)
    assert isinstance(weights, WeightsEdge) and weights.size == 4 * 64 + 64 + 64 * 64 + 64 + 64 * 3 + 3
    sides = {node.name: {(end.edge, end.side, end.index) for end in node.ends()} for node in program.nodes}
    assert sides["actor-2"] == {("unrolls", "sink", 2), ("weights", "reader", 0)}
    assert sides["learner"] == {("unrolls", "source", 0), ("weights", "writer", 0)}
    assert sides["evaluator"] == {("weights", "reader", 0)}


def test_names_are_given_once() -> None:
    program = Program("toy")
    program.add("role", Role)
    program.weights("weights", 1)
    with pytest.raises(UserError, match="role 'role' is in program 'toy' twice"):
        program.add("role", Role)
    with pytest.raises(UserError, match="edge 'weights' is in program 'toy' twice"):
        program.weights("weights", 1)


def test_seeds_differ_by_purpose_and_repeat_for_the_same_one() -> None:
    paths = [("actor", 0, 0), ("actor", 0, 1), ("actor", 1, 0), ("learner",), ("evaluator", 0)]
    seeds = [seed for path in paths for seed in derive_seed(1, *path)]
    assert len(set(seeds)) == len(seeds) and derive_seed(1, "actor", 0, 0) == derive_seed(1, "actor", 0, 0)
    assert derive_seed(2, "actor", 0, 0) != derive_seed(1, "actor", 0, 0)
