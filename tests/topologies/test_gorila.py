from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import nn

from pappus.api import configure, describe
from pappus.config import ReplayConfig
from pappus.edges.replay import ReplayEdge
from pappus.errors import UserError
from pappus.recording.transitions import SEND_ITEMS, TABLE
from pappus.roles.actor_learner import Bundle
from pappus.roles.parameter_server import ParameterServer
from pappus.roles.replay_server import ReplayServer
from pappus.runtimes.inline import InlineRuntime
from pappus.systems import find_system
from pappus.topologies.gorila import GorilaConfig, gorila
from pappus.topologies.program import Program
from tests.contracts.runtime_contract import FakeController

BUNDLES = [0, 1, 2]
SMALL: dict[str, Any] = {
    "runtime": "inline", "actors": len(BUNDLES), "envs_per_actor": 2, "batch_size": 8, "network.hidden_sizes": [8],
    "topology.replay.capacity": 5000, "topology.replay.warm_up": 50, "topology.replay.tolerance": 2.0,
    "topology.shards": 2,
}
CENTRAL: dict[str, Any] = {**SMALL, "topology.replay_memory": "central"}


class UntilLearnt(FakeController):
    """Ends the run with the shard that counts."""

    def role_finished(self, role: str) -> None:
        self.is_over = True


def program(settings: dict[str, Any]) -> Program:
    run = describe(configure("gorila-dqn", "CartPole-v1", settings), "CartPole-v1")
    return find_system("gorila-dqn").topology.build(run)


def learnt(settings: dict[str, Any]) -> InlineRuntime:
    """An inline run that has come to its end."""
    runtime = InlineRuntime(program(settings), UntilLearnt())  # type: ignore[arg-type]
    runtime.run()
    return runtime


def bundles(runtime: InlineRuntime) -> list[Bundle]:
    return [role for role in runtime.roles.values() if isinstance(role, Bundle)]


def lead(runtime: InlineRuntime) -> ParameterServer:
    role = runtime.roles["parameter-server-0"]
    assert isinstance(role, ParameterServer)
    return role


def test_with_local_memories_no_experience_leaves_a_bundle() -> None:
    made = program(SMALL)
    assert [node.name for node in made.roles] == [
        "bundle-0", "bundle-1", "bundle-2", "parameter-server-0", "parameter-server-1", "evaluator"
    ]
    assert not any(isinstance(edge, ReplayEdge) for edge in made.edges.values())


def test_a_central_memory_is_one_durable_role_that_every_bundle_writes_and_draws_from() -> None:
    made = program(CENTRAL)
    assert [node.name for node in made.roles] == [
        "bundle-0", "bundle-1", "bundle-2", "replay", "parameter-server-0", "parameter-server-1", "evaluator"
    ]
    assert [node.name for node in made.roles if node.durable] == ["replay", "parameter-server-0", "parameter-server-1"]
    ends = {spec.name: set(map(str, spec.ends())) for spec in made.roles}
    assert ends["replay"] == {"replay.host()"}
    for i in BUNDLES:
        assert ends[f"bundle-{i}"] == {
            "replay.sink(2)", "replay.source()", f"steps.counter({i})", f"gradients-0.sink({i})",
            f"gradients-1.sink({i})", "weights-0.reader()", "weights-1.reader()",
        }


def continuous(policy_delay: int) -> Program:
    """Gorila with a policy and critics, whose target networks follow by a share."""
    settings = {
        "algorithm.policy_delay": policy_delay, "steps": 400, "batch_size": 8, "network.hidden_sizes": [8],
        "envs_per_actor": 2,
    }
    run = describe(configure("ddpg", "Pendulum-v1", settings), "Pendulum-v1")
    memory = ReplayConfig(capacity=1000, warm_up=50, samples_per_insert=4.0)
    return gorila(replace(run, config=replace(run.config, topology=GorilaConfig(replay=memory, shards=2))))


def test_an_algorithm_that_lets_parts_of_its_network_rest_is_refused() -> None:
    with pytest.raises(UserError, match="DDPG trains parts of its network only every 2 updates"):
        continuous(policy_delay=2)


def test_a_network_with_running_statistics_is_refused() -> None:
    run = describe(configure("gorila-dqn", "CartPole-v1", SMALL), "CartPole-v1")
    build = run.algorithm.build_network

    def with_statistics() -> nn.Module:
        network = build()
        network.add_module("norm", nn.BatchNorm1d(4))
        return network

    run.algorithm.build_network = with_statistics  # type: ignore[method-assign]
    with pytest.raises(UserError, match=r"gradients do not train \(norm\.running_mean"):
        gorila(run)


def test_a_policy_and_its_critics_learn_from_shards_whose_target_follows_by_a_share() -> None:
    runtime = InlineRuntime(continuous(policy_delay=1), UntilLearnt())  # type: ignore[arg-type]
    runtime.run()
    (bundle,) = bundles(runtime)
    learner = bundle._learner
    assert learner.updates > 50 and lead(runtime).updates > 50
    distance = (learner._training.target.flat.values - learner._gradient.flat.values).abs().max()
    assert 0 < distance < 1, "it follows, and from behind"


@pytest.mark.parametrize("samples_per_insert", [1.5, 4.0])
def test_items_of_a_central_memory_are_used_as_often_as_the_config_says(samples_per_insert: float) -> None:
    runtime = learnt({**CENTRAL, "topology.replay.samples_per_insert": samples_per_insert, "steps": 1600})
    replay_server, gradients = runtime.roles["replay"], [bundle._learner.updates for bundle in bundles(runtime)]
    assert isinstance(replay_server, ReplayServer)
    counts = replay_server._host.service.info(TABLE)
    assert min(gradients) > 0 and counts["samples"] == 8 * sum(gradients)
    assert counts["samples"] / (counts["inserts"] - 50) == pytest.approx(samples_per_insert, rel=0.01)
    under_way = lead(runtime).steps - counts["inserts"]
    assert 0 <= under_way <= len(BUNDLES) * 2 * SEND_ITEMS, "no bundle keeps its share of the steps to itself"
    assert lead(runtime).updates > 0.9 * sum(gradients)


@pytest.mark.parametrize("settings", [SMALL, CENTRAL], ids=["local", "central"])
def test_a_bundle_that_is_alone_never_waits_for_itself(settings: dict[str, Any]) -> None:
    runtime = learnt({**settings, "actors": 1, "topology.replay.samples_per_insert": 4.0, "steps": 400})
    assert lead(runtime).updates > 100


@pytest.mark.parametrize("settings", [SMALL, CENTRAL], ids=["local", "central"])
def test_runs_with_one_seed_are_one_run_and_with_another_seed_another(settings: dict[str, Any]) -> None:
    one, same, other = (
        lead(learnt({**settings, "steps": 400, "seed": seed})).save()["weights"].tolist() for seed in (1, 1, 2)
    )
    assert one == same and one != other
