"""Who reserves what, who shares a node, and what is said when it does not fit."""

from __future__ import annotations

from typing import Any

import pytest

from pappus.api import configure, describe
from pappus.config import AlgorithmConfig, ClusterConfig, RunConfig
from pappus.edges.all_reduce import AllReduceEdge
from pappus.errors import UserError
from pappus.kinds import ACTOR, EVALUATOR, LEARNER, RoleKind
from pappus.roles.role import Role
from pappus.runtimes.resources import (
    Colocation,
    NodeRoom,
    colocations,
    parse_amounts,
    refuse_what_never_fits,
    still_waiting,
    who_gives_way,
)
from pappus.topologies.apex import apex
from pappus.topologies.program import Program

GIB = 2**30


def config(device: str = "cpu", **cluster: Any) -> RunConfig:
    return RunConfig(AlgorithmConfig(), runtime="ray", device=device, cluster=ClusterConfig(**cluster))


def program(actors: int = 2) -> Program:
    made = Program("toy")
    for i in range(actors):
        made.add(ACTOR, Role, index=i)
    made.add(LEARNER, Role, essential=True)
    made.add(EVALUATOR, Role)
    return made


def nodes(*free: dict[str, float]) -> list[NodeRoom]:
    return [NodeRoom(f"10.0.0.{i}", dict(one)) for i, one in enumerate(free)]


def test_every_process_reserves_a_core_and_the_evaluator_nothing() -> None:
    amounts = {colocation.groups[0]: colocation.total for colocation in colocations(program(), config())}
    assert amounts == {"actor-0": {"CPU": 1}, "actor-1": {"CPU": 1}, "learner": {"CPU": 1}, "evaluator": {}}


def test_a_learner_on_cuda_reserves_a_gpu_of_its_own() -> None:
    amounts = {colocation.groups[0]: colocation.total for colocation in colocations(program(), config(device="cuda"))}
    assert amounts["learner"] == {"CPU": 1, "GPU": 1} and amounts["actor-0"] == {"CPU": 1}


def test_what_is_asked_for_a_kind_holds_for_all_of_it() -> None:
    settings = config(resources={"actor": "CPU=2,memory=3GiB,far=1"}, placement={"actor": "SPREAD"})
    found = colocations(program(), settings)
    assert [(one.total, one.strategy) for one in found[:2]] == 2 * [({"CPU": 2, "memory": 3 * GIB, "far": 1}, "SPREAD")]
    assert found[2].strategy == "PACK"


def test_groups_that_share_memory_share_a_node_and_add_up() -> None:
    made = program(0)
    all_reduce = made.connect(AllReduceEdge("other learners", 2, 8, "memory"))
    made.add(RoleKind("first"), Role, member=all_reduce.member(0))
    made.add(RoleKind("second"), Role, member=all_reduce.member(1))
    together = [colocation for colocation in colocations(made, config()) if len(colocation.groups) > 1]
    assert [(one.groups, one.total) for one in together] == [(("first", "second"), {"CPU": 2})]


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ({"resources": {"lerner": "CPU=1"}}, "names role 'lerner', .*learner"),
        ({"placement": {"actor": "ALONE"}}, "actor='ALONE' is unknown; use PACK or SPREAD"),
        ({"resources": {"actor": "CPU"}}, "actor='CPU' cannot be read at 'CPU'"),
        ({"resources": {"actor": "memory=3Gb"}}, "cannot be read"),
        ({"resources": {"actor": "CPU=1.2.3"}}, "cannot be read"),
    ],
)
def test_wrong_settings_are_refused_with_a_sentence(cluster: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        colocations(program(), config(**cluster))


def test_who_keeps_tables_reserves_their_memory() -> None:
    settings = {"topology.replay.capacity": 50_000, "cluster.resources": {"learner": "CPU=3"}}
    run = describe(configure("apex-dqn", "CartPole-v1", {"runtime": "ray", **settings}), "CartPole-v1")
    amounts = {colocation.groups[0]: colocation.total for colocation in colocations(apex(run), run.config)}
    assert amounts["learner"] == {"CPU": 3} and amounts["replay"]["memory"] > 50_000 * 2 * 4


def test_nothing_can_be_reserved_too() -> None:
    assert parse_amounts("CPU=0", "actor") == {}


def test_eight_gpus_that_no_node_has_are_refused_with_role_resource_and_inventory() -> None:
    asked = colocations(program(), config(resources={"learner": "CPU=1,GPU=8"}))
    with pytest.raises(UserError) as caught:
        refuse_what_never_fits(asked, nodes({"CPU": 2}, {"CPU": 4}))
    text = str(caught.value)
    assert "learner needs CPU 1, GPU 8 on one node" in text and "no node has that much GPU" in text
    assert "2 nodes with CPU 2, 4 and GPU 0" in text and "--cluster.resources" in text


def test_more_actors_than_cores_are_refused_with_the_sum_by_role() -> None:
    with pytest.raises(UserError, match=r"need 9 CPU \(actor 8, learner 1\), and the cluster has 6"):
        refuse_what_never_fits(colocations(program(8), config()), nodes({"CPU": 2}, {"CPU": 4}))


def test_what_fits_is_let_through() -> None:
    refuse_what_never_fits(colocations(program(4), config()), nodes({"CPU": 1}, {"CPU": 4}))


def test_what_others_hold_is_said_to_be_held() -> None:
    asked = [Colocation((f"actor-{i}",), {f"actor-{i}": {"CPU": 2.0}}, "PACK", {}) for i in range(3)]
    text = str(still_waiting(asked, nodes({"CPU": 3}, {"CPU": 3}), 25.0))
    assert "actor-2 found no node with CPU 2 free within 25 s" in text and "wait for other jobs" in text


def test_the_fewest_actors_of_one_node_give_way() -> None:
    free = [NodeRoom("a", {"CPU": 0}, "a"), NodeRoom("b", {"CPU": 1}, "b"), NodeRoom("c", {"CPU": 0}, "c")]
    holding = {"actor-1": ("a", {"CPU": 1.0}), "actor-2": ("a", {"CPU": 1.0}), "actor-3": ("b", {"CPU": 1.0})}
    assert who_gives_way({"CPU": 2.0}, free, holding) == ["actor-3"]
    assert who_gives_way({"CPU": 1.0}, free, holding) == [], "there is room already"
    assert who_gives_way({"CPU": 3.0}, free, holding) == [], "it would not help"
    assert who_gives_way({"CPU": 2.0, "GPU": 1.0}, free, holding) == []
    assert who_gives_way({"CPU": 2.0}, free[:1], holding) == ["actor-1", "actor-2"]
