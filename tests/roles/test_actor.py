from __future__ import annotations

import numpy as np
import pytest

from pappus.algorithms.vtrace import VTrace, VTraceConfig
from pappus.config import EnvOptions, NetworkConfig
from pappus.edges.queue import RingQueue
from pappus.edges.weights import FlatWeights
from pappus.envs.vector import make_env
from pappus.networks.flat import FlatParameters
from pappus.roles.acting import Actor, LocalPolicy
from pappus.roles.evaluator import Evaluator
from pappus.roles.role import IDLE
from pappus.transports.memory import HeapBlock
from pappus.types import unroll_spec

T, N = 7, 4


class Setup:
    """An actor on CartPole whose weights and queue the test holds."""

    def __init__(self, core: str = "lstm") -> None:
        env = make_env("CartPole-v1", N, 3, EnvOptions())
        self.algorithm = VTrace(VTraceConfig(), env.spec, NetworkConfig(hidden_sizes=(8,), core=core))  # type: ignore[arg-type]
        self.network = self.algorithm.build_network()
        spec = unroll_spec(env.spec, self.algorithm.behaviour, self.network.state_spec, T, N)
        self.queue = RingQueue("unrolls", spec, 1, 2, HeapBlock(*RingQueue.footprint(spec, 1, 2)))
        self.flat = FlatParameters(self.network)
        self.weights = FlatWeights("weights", self.flat.size, HeapBlock(*FlatWeights.footprint(self.flat.size)))
        self.policy = LocalPolicy(self.algorithm, self.weights, N, seed=5)
        self.actor = Actor("actor-0", env, self.policy, self.queue.sink(0), T)

    def publish(self, version: int) -> None:
        self.weights.publish(self.flat.values.detach().numpy(), version)


def test_it_waits_for_weights_and_then_for_a_free_slot() -> None:
    setup = Setup()
    assert setup.actor.step() is setup.policy
    setup.publish(0)
    steps = 0
    while (port := setup.actor.step()) is None:
        steps += 1
    assert steps == 2 * T and port is setup.actor._sink


def test_weights_are_refreshed_once_per_unroll_and_recorded() -> None:
    setup = Setup()
    setup.publish(0)
    setup.actor.step()
    setup.publish(1)
    while setup.actor.step() is None:
        pass
    first, second = setup.queue.ring(0).slots
    assert (first.version == 0).all() and (second.version == 1).all()


def test_an_unroll_holds_what_the_learners_network_computes_again() -> None:
    import torch

    setup = Setup()
    setup.publish(0)
    while setup.actor.step() is None:
        pass
    source = setup.queue.source()
    for slot in source.take(2) or []:
        state = tuple(tuple(torch.from_numpy(leaf) for leaf in part) for part in slot.state)
        output = setup.network(torch.from_numpy(slot.observation), torch.from_numpy(slot.first), state)
        log_prob = setup.algorithm.distribution.log_prob(output.policy[:-1], torch.from_numpy(slot.action))
        assert np.allclose(log_prob.detach().numpy(), slot.behaviour["log_prob"], atol=1e-5)


def test_episodes_are_reported_with_their_returns() -> None:
    setup = Setup("none")
    setup.publish(0)
    source = setup.queue.source()
    for _ in range(400):
        if setup.actor.step() is not None:
            source.take(1)
            source.release()
    episodes = setup.actor.metrics.drain()["episodes"]
    assert episodes and all(total == length for total, length in episodes), "CartPole pays 1 a step"


def test_the_evaluator_plays_as_many_whole_episodes_as_asked_shared_out_over_its_envs() -> None:
    setup = Setup("none")
    setup.publish(0)
    env = make_env("CartPole-v1", 4, 1, EnvOptions())
    evaluator = Evaluator("evaluator", env, LocalPolicy(setup.algorithm, setup.weights, 4, None))
    assert evaluator.step() is IDLE
    evaluator.receive("evaluate", 6)
    while evaluator.step() is None:
        pass
    report = evaluator.metrics.drain()
    assert len(report["episodes"]) == 6
    assert report["gauges"]["eval/episodic_return"] == np.mean([total for total, _ in report["episodes"]])


def test_who_makes_no_updates_knows_no_finish_and_an_evaluation_that_runs_goes_on() -> None:
    setup = Setup("none")
    setup.publish(0)
    env = make_env("CartPole-v1", 2, 1, EnvOptions())
    evaluator = Evaluator("evaluator", env, LocalPolicy(setup.algorithm, setup.weights, 2, None))
    evaluator.receive("evaluate", 3)
    evaluator.step()
    for role in (evaluator, setup.actor):
        with pytest.raises(NotImplementedError, match=f"{role.name} knows no command 'finish'"):
            role.receive("finish", 0)
    assert not evaluator.finished
    while evaluator.step() is None:
        pass
    assert len(evaluator.metrics.drain()["episodes"]) == 3


def test_an_evaluation_waits_for_weights_that_are_new_enough() -> None:
    setup = Setup("none")
    env = make_env("CartPole-v1", 2, 0, EnvOptions())
    evaluator = Evaluator("evaluator", env, LocalPolicy(setup.algorithm, setup.weights, 2, None))
    setup.publish(3)
    evaluator.receive("from_version", 5)
    evaluator.receive("evaluate", 2)
    assert evaluator.step() is IDLE and evaluator.wake_at is not None, "it looks again by itself"
    setup.publish(5)
    while evaluator.step() is None:
        pass
    assert evaluator.metrics.drain()["gauges"]["eval/version"] == 5 and evaluator.wake_at is None
