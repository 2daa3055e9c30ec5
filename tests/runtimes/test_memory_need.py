"""What a run is said to need before it begins, and what is refused."""

import json
from dataclasses import replace

import pytest

from pappus import cli
from pappus.api import configure, describe
from pappus.errors import UserError
from pappus.machine import Machine, fit
from pappus.runtimes.memory_need import MemoryPlan, Need, memory_plan
from pappus.systems import find_system
from pappus.topologies.program import Program, Run

GIB = 1 << 30


def described(name: str, **settings: object) -> tuple[Run, Program]:
    system = find_system(name)
    config = fit(configure(system, "CartPole-v1", {"actors": 2, **settings}), "CartPole-v1", system, Machine(2))[0]
    run = describe(config, "CartPole-v1", system)
    return run, system.topology.build(run)


def need(plan: MemoryPlan, purpose: str) -> Need:
    return next(one for one in plan.needs if one.purpose == purpose)


def test_shared_memory_is_that_of_the_edges():
    run, program = described("impala")
    plan = memory_plan(run, program)
    assert need(plan, "shared memory").size == sum(edge.memory()[0] for edge in program.edges.values())
    assert need(plan, "processes").least > 0 and plan.total > need(plan, "processes").size


def test_tables_count_when_they_are_full_but_are_refused_only_as_full_as_the_run_makes_them():
    run, program = described("apex-dqn", steps=5000)
    found = need(memory_plan(run, program), "replay tables")
    assert found.least < found.size / 10
    longer = need(memory_plan(*described("apex-dqn", steps=10_000_000)), "replay tables")
    assert longer.size == found.size and 0.9 * longer.size < longer.least <= longer.size
    limited = need(memory_plan(*described("apex-dqn", steps=10_000_000, seconds=5.0)), "replay tables")
    assert limited.least == 0, "it may end before the table is full"


def test_every_bundle_of_gorila_has_a_table_of_its_own():
    one, two = (memory_plan(*described("gorila-dqn", actors=actors)) for actors in (1, 2))
    assert need(two, "replay tables").size == 2 * need(one, "replay tables").size


def test_envs_are_made_to_see_what_one_takes():
    run, program = described("impala", envs_per_actor=8)
    plan = memory_plan(run, program, envs=True)
    assert not [one for one in plan.needs if one.purpose == "envs" and one.least]


def test_for_programs_a_plan_is_one_object(capfd: pytest.CaptureFixture[str]):
    assert cli.main(["train", "impala", "--env", "CartPole-v1", "--actors", "2", "--plan", "--json"]) == 0
    plan = json.loads(capfd.readouterr().out)
    assert plan["type"] == "plan" and plan["total"] == sum(need["size"] for need in plan["needs"])


def test_what_surely_does_not_fit_is_refused_with_the_parts_and_a_remedy():
    plan = MemoryPlan([Need("replay tables", 9 * GIB, 4 * GIB), Need("processes", GIB, GIB)], free=5 * GIB)
    plan.check()
    assert plan.large, "it is said, but not refused"
    with pytest.raises(UserError, match=r"5.0 GiB of memory \(replay tables 4.0 GiB, processes 1.0 GiB\) and 4.9 GiB"):
        replace(plan, free=int(4.9 * GIB)).check()
    with pytest.raises(UserError, match=r"smaller --topology.replay.capacity"):
        replace(plan, free=GIB).check()
    replace(plan, free=None).check()


def test_a_gpu_that_is_too_small_is_refused():
    plan = MemoryPlan([], 5 * GIB, [Need("weights and optimizer", 2 * GIB, 2 * GIB)], GIB)
    with pytest.raises(UserError, match=r"1.0 GiB are free on the GPU; use smaller --network"):
        plan.check()
    assert "memory of each GPU: about 2.0 GiB of 1.0 GiB that are free" in plan.lines()
