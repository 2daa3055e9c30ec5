"""Synchronous rollouts: everybody acts with the newest weights, and a batch is one unroll of each."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from pappus.algorithms.ppo import PPO
from pappus.api import configure, describe
from pappus.edges.queue import QueueEdge
from pappus.errors import UserError
from pappus.roles.learner import Learner
from pappus.runtimes.wiring import Wiring
from pappus.topologies.program import Run
from pappus.topologies.sync import sync
from pappus.transports.memory import HeapBlock
from pappus.validation import validate
from tests.config_tools import fitted

SMALL = {"envs_per_actor": 4, "unroll_length": 8, "algorithm.minibatches": 2, "algorithm.epochs": 3}


def build(settings: dict[str, Any], system: str = "ppo", env: Any = "CartPole-v1") -> dict[str, Any]:
    """The roles of a program, to be stepped by hand."""
    sizes = {name: value for name, value in SMALL.items() if system == "ppo" or not name.startswith("algorithm.")}
    program = sync(describe(configure(system, env, {**sizes, **settings}), env))
    wiring = Wiring(program.edges.values(), {e.name: e.new_block(HeapBlock) for e in program.edges.values()})
    return {node.name: wiring.build(node, 0) for node in program.roles}


def act(roles: dict[str, Any], index: int) -> int:
    """Let an actor go on for as long as it can; how many steps it made."""
    steps = 0
    while roles[f"actor-{index}"].step() is None:
        steps += 1
    return steps


def test_the_program_is_the_papers_figure() -> None:
    program = sync(describe(configure("ppo", "CartPole-v1", {**SMALL, "actors": 3}), "CartPole-v1"))
    assert [node.name for node in program.roles] == ["actor-0", "actor-1", "actor-2", "learner", "evaluator"]
    assert [node.name for node in program.roles if node.essential] == ["learner"]
    unrolls = program.edges["unrolls"]
    assert isinstance(unrolls, QueueEdge) and (unrolls.producers, unrolls.capacity) == (3, 1)


def test_many_learners_have_some_of_the_actors_each() -> None:
    settings = {**SMALL, "actors": 5, "learners": 2, "topology.stragglers": 1}
    program = sync(describe(configure("ppo", "CartPole-v1", settings), "CartPole-v1"))
    learners = {node.name: node for node in program.roles if node.name.startswith("learner")}
    assert list(learners) == ["learner", "learner-1"] and all(node.essential for node in learners.values())
    assert [node.begins_with for node in learners.values()] == ["learner", "learner"]
    assert [node.arguments["slots"] for node in learners.values()] == [2, 2], "the straggler is the first one's"
    ends = {spec.name: set(map(str, spec.ends())) for spec in program.roles}
    assert ends["learner"] == {"unrolls.source()", "weights.writer()", "other learners.member(0)"}
    assert ends["learner-1"] == {
        "unrolls-1.source()", "other learners.member(1)", "weights.reader()",
    }
    sinks = [next(end for end in ends[f"actor-{i}"] if "sink" in end) for i in range(5)]
    assert sinks == ["unrolls.sink(0)", "unrolls-1.sink(0)", "unrolls.sink(1)", "unrolls-1.sink(1)", "unrolls.sink(2)"]


def test_who_asks_for_learners_gets_actors_for_them() -> None:
    assert fitted("a2c", "CartPole-v1", {"learners": 3}).actors == 3


class Expects:
    """Listens to what PPO expects of batches: whether they were fresh, and how far that is from computing it anew."""

    def __init__(self, learner: Learner) -> None:
        algorithm: Any = learner._training._algorithm
        self._expected = algorithm.expected
        self.fresh: list[bool] = []
        self.apart = 0.0
        algorithm.expected = self

    def __call__(self, network: Any, batch: Any, fresh: bool) -> Any:
        self.fresh.append(fresh)
        found, anew = self._expected(network, batch, fresh), self._expected(network, batch, False)
        for one, other in zip(found, anew, strict=True):
            self.apart = max(self.apart, float((one - other).abs().max()))
        return found


@pytest.mark.parametrize(("settings", "env"), [
    ({"network.normalize": True}, "CartPole-v1"),
    ({"algorithm.normalize_returns": False}, "CartPole-v1"),
    ({"learners": 2}, "CartPole-v1"),
    ({"network.normalize": True}, "Pendulum-v1"),
    ({}, "tests.envs.toy_envs:Masked"),
    ({}, "tests.envs.toy_envs:Nested"),
], ids=["all normalised", "returns as they are", "two learners", "continuous", "masks", "a nest"])
def test_values_that_were_recorded_while_acting_are_those_that_the_learner_would_compute(
    settings: dict[str, Any], env: str
) -> None:
    roles = build({"actors": 2, **settings}, env=env)
    learners = [role for name, role in roles.items() if name.startswith("learner")]
    listener = Expects(learners[0])  # all have the same algorithm
    while len(listener.fresh) < 4 * len(learners):
        act(roles, 0), act(roles, 1)
        for learner in learners:
            learner.step()
    assert all(listener.fresh) and listener.apart < 1e-4


def test_values_that_were_recorded_with_rounded_weights_are_computed_anew() -> None:
    roles = build({"actors": 2, "precision": "bfloat16"})
    learner = roles["learner"]
    listener = Expects(learner)
    while len(listener.fresh) < 3:
        act(roles, 0), act(roles, 1)
        learner.step()
    assert listener.fresh == [False] * 3


def test_values_of_old_weights_are_computed_anew() -> None:
    roles = build({"actors": 2, "topology.stragglers": 1})
    learner = roles["learner"]
    listener = Expects(learner)
    learner.step()
    act(roles, 0), act(roles, 1)
    assert learner.step() is None and learner.step() is None, "that of the second was carried over"
    assert listener.fresh == [True, False] and listener.apart < 1e-4


def test_nobody_acts_with_old_weights() -> None:
    roles = build({"actors": 2})
    learner = roles["learner"]
    assert isinstance(learner, Learner)
    learner.step()  # publishes the first
    for batch in range(1, 4):
        assert [act(roles, i) for i in (0, 1)] == [8, 8], "one unroll each, and no further"
        assert learner.step() is None
        assert learner.updates == 6 * batch
    for i in (0, 1):
        act(roles, i)
        assert roles[f"actor-{i}"]._policy.version == learner.updates
    learner.step()
    assert learner.metrics.drain()["means"]["learner/policy_lag"][0] == 0.0


@pytest.mark.parametrize("system", ["a2c", "ppo"])
def test_slots_of_a_learner_that_is_ahead_come_back_with_the_weights_of_the_first(system: str) -> None:
    roles = build({"actors": 2, "learners": 2}, system)
    first, second = roles["learner"], roles["learner-1"]
    for learner in (first, second):
        learner.step()  # the first publishes
    for i in (0, 1):
        act(roles, i)
    publish, first._publish = first._publish, lambda: None
    while first.updates == 0 or second.updates == 0:
        for learner in (first, second):
            learner.step()
    port = second.step()
    assert port is not None and port.name == "publication" and act(roles, 1) == 0, "its actor has no slot yet"
    publish()
    assert second.step() is None and act(roles, 1) == 8
    assert roles["actor-1"]._policy.version == first.updates


def test_the_learner_waits_for_all_actors() -> None:
    roles = build({"actors": 2})
    roles["learner"].step()
    act(roles, 0)
    assert roles["learner"].step() is roles["learner"]._training._source and roles["learner"].updates == 0
    act(roles, 1)
    assert roles["learner"].step() is None and roles["learner"].updates == 6


def test_a_straggler_is_carried_over_to_the_next_batch() -> None:
    roles = build({"actors": 3, "topology.stragglers": 1})
    learner = roles["learner"]
    learner.step()
    for i in (0, 1):
        act(roles, i)
    for _ in range(5):
        roles["actor-2"].step()
    assert learner.step() is None, "the first two make a batch"
    assert act(roles, 2) == 3 and learner.step() is learner._training._source, "the third goes on where it was"
    act(roles, 0)
    assert learner.step() is None, "and is part of the next one"
    lags = learner.metrics.drain()["means"]["learner/policy_lag"]
    assert lags[0] == pytest.approx(3.0) and lags[1] == 2, "half of the second batch lags by the 6 updates of the first"


def test_a_batch_is_left_early_when_the_policy_has_moved_too_far() -> None:
    roles = build({"actors": 1, "algorithm.target_kl": 1e-12})
    roles["learner"].step()
    act(roles, 0)
    roles["learner"].step()
    assert roles["learner"].updates == 2, "one epoch of two minibatches, instead of three"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"actors": 0}, "actors=0 must be at least 1"),
        ({"actors": 2, "topology.stragglers": 2}, "stragglers=2 must lie in 0 … 1"),
        ({"actors": 2, "batch_size": 4}, "batch_size=4: a batch is one unroll of each of the 8 envs"),
        ({"algorithm.minibatches": 5}, "minibatches=5 does not divide"),
        ({"actors": 1, "learners": 2}, "actors=1 must be at least 1 for every learner; give --actors 2 or more"),
        ({"actors": 4, "learners": 2, "topology.stragglers": 3}, "stragglers=3 must lie in 0 … 2.*by every learner"),
        ({"actors": 4, "learners": 2, "batch_size": 16}, "each of the 8 envs that a learner waits for"),
        ({"actors": 3, "learners": 2, "algorithm.minibatches": 64}, "minibatches=64 does not divide a batch of 8 .* 4"),
        ({"algorithm.minibatches": 8, "network.core": "lstm"}, "minibatches=8 does not divide"),
    ],
)
def test_what_cannot_work_is_refused(settings: dict[str, Any], message: str) -> None:
    config = fitted("ppo", "CartPole-v1", {**SMALL, **settings})
    with pytest.raises(UserError, match=message):
        validate(config)
        sync(describe(config, "CartPole-v1"))


def test_normalised_observations_reach_the_actors_with_the_weights() -> None:
    roles = build({"actors": 1, "network.normalize": True})
    roles["learner"].step()
    act(roles, 0)
    roles["learner"].step()
    act(roles, 0)
    network = roles["actor-0"]._policy._network
    moments = network.torso.torsos[0].moments
    assert moments.count == 8 * 4 and not np.allclose(moments.mean, 0)


class OwnMinibatches(PPO):
    """Draws minibatches in its own way, which learners that share them know nothing of."""

    def minibatches(self, steps: Any) -> Any:
        return super().minibatches(steps)


class NotSynced(PPO):
    """Cannot be shared."""

    synced: Any = None


def other(kind: type[PPO], settings: dict[str, Any]) -> Run:
    """A run of ppo whose algorithm is another."""
    run = describe(configure("ppo", "CartPole-v1", {**SMALL, **settings}), "CartPole-v1")
    config: Any = run.config.algorithm
    return dataclasses.replace(run, algorithm=kind(config, run.env_spec, run.config.network))


def test_minibatches_that_a_subclass_overrides_are_not_passed_over_by_several_learners() -> None:
    with pytest.raises(UserError, match="OwnMinibatches overrides prepare or minibatches, and learners=2"):
        sync(other(OwnMinibatches, {"actors": 2, "learners": 2}))
    assert sync(other(OwnMinibatches, {"actors": 2})).roles


def test_an_algorithm_that_does_not_say_how_minibatches_are_shared_has_one_learner() -> None:
    with pytest.raises(UserError, match=r"NotSynced has no synced\(\), which learners=2 need"):
        sync(other(NotSynced, {"actors": 2, "learners": 2}))
