from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pappus.algorithms.dqn import DQN, DQNConfig
from pappus.algorithms.iql import IQL, IQLConfig
from pappus.config import NetworkConfig, OptimizerConfig
from pappus.edges.counters import SharedCounters
from pappus.edges.weights import FlatWeights
from pappus.experience import ItemBatch, TargetUpdates, Transition
from pappus.networks.flat import FlatParameters
from pappus.replay.sampling.kept_rows import NewRows, RowNumbers
from pappus.roles.gradient_step import GradientStep, LearnerSettings
from pappus.roles.learner import Learner, Publication
from pappus.roles.replay_training import SMALLEST_PRIORITY, ReplayTraining
from pappus.telemetry.metrics import Metrics
from pappus.transports.memory import HeapBlock
from tests.roles.replay_tools import ENV, FakeSource, random_batch


class Setup:
    """A learner whose batches the test makes by hand."""

    def __init__(
        self, every: int = 3, share: float = 1.0, total_steps: int = 10**6, algorithm: Any = None
    ) -> None:
        self.algorithm = algorithm or DQN(DQNConfig(), ENV, NetworkConfig(hidden_sizes=(4,)))
        self.algorithm.target_updates = TargetUpdates(every, share)
        size = FlatParameters(self.algorithm.build_network()).size
        self.weights = FlatWeights("weights", size, HeapBlock(*FlatWeights.footprint(size)))
        self.counters = SharedCounters("steps", 1, HeapBlock(*SharedCounters.footprint(1)))
        self.source: Any = FakeSource()
        settings = LearnerSettings(OptimizerConfig(learning_rate=0.05, anneal=False), total_steps, seed=1)
        self.gradient = GradientStep(Metrics("learner"), self.algorithm, settings)
        self.training = ReplayTraining(self.algorithm, self.source, self.counters, self.gradient, 100)
        self.learner = Learner("learner", self.gradient, self.training, Publication(self.weights))
        self._random = np.random.default_rng(0)
        assert self.learner.step() is None and self.weights.version() == 0

    def learn(self, steps: int = 0) -> ItemBatch:
        batch = random_batch(self._random)
        self.source.batches.append(batch)
        self.counters.counter(0).add(steps)
        assert self.learner.step() is None
        return batch

    @property
    def flat(self) -> torch.Tensor:
        return self.gradient.flat.values.detach().clone()

    @property
    def target(self) -> torch.Tensor:
        return self.training.target.flat.values.detach().clone()


def test_it_waits_for_its_source() -> None:
    setup = Setup()
    assert setup.learner.step() is setup.source and setup.learner.updates == 0


def test_the_target_network_begins_as_the_network_and_follows_every_so_many_updates() -> None:
    setup = Setup(every=3)
    assert torch.equal(setup.target, setup.flat)
    start = setup.target
    for update in range(1, 8):
        before = setup.target
        setup.learn()
        expected = setup.flat if update % 3 == 0 else before
        assert torch.equal(setup.target, expected)
    assert not torch.equal(setup.target, start)


def test_the_target_network_may_follow_by_a_share() -> None:
    setup = Setup(every=1, share=0.25)
    before = setup.target
    setup.learn()
    torch.testing.assert_close(setup.target, 0.75 * before + 0.25 * setup.flat)


def test_new_priorities_are_the_errors_before_the_update_and_never_zero() -> None:
    setup = Setup()
    network, target = setup.gradient.network, setup.training.target.network
    before = setup.flat
    batch = setup.learn()
    (keys, priorities), = setup.source.updates
    after = setup.flat
    setup.gradient.flat.values.data.copy_(before)
    items = Transition(*(torch.from_numpy(leaf) for leaf in batch.items[:5]))
    expected = setup.algorithm.loss(network, target, items, torch.from_numpy(batch.weight)).priority
    assert keys is batch.keys and not torch.equal(before, after)
    assert priorities.tolist() == pytest.approx((expected.double() + SMALLEST_PRIORITY).tolist())


def test_its_steps_are_those_of_the_actors() -> None:
    setup = Setup(total_steps=25)
    setup.learn(steps=10)
    assert setup.learner.steps == 10 and not setup.learner.finished
    setup.learn(steps=15)
    assert setup.learner.steps == 25 and setup.learner.finished
    assert setup.learner.metrics.drain()["counts"] == {"env_steps": 25, "updates": 2}


def test_a_successor_goes_on_with_target_network_and_steps() -> None:
    setup, successor = Setup(every=2), Setup(every=2)
    for _ in range(3):
        setup.learn(steps=10)
    successor.learner.load(setup.learner.save())
    assert torch.equal(successor.target, setup.target) and not torch.equal(successor.target, successor.flat)
    assert torch.equal(successor.flat, setup.flat)
    assert successor.counters.total() == 30 and successor.learner.steps == 30


def test_moments_of_observations_are_those_of_the_batches_for_both_networks() -> None:
    setup = Setup(1, 0.01, algorithm=IQL(IQLConfig(), ENV, NetworkConfig(hidden_sizes=(4,), normalize=True)))
    batches = [setup.learn().items.observation for _ in range(3)]
    networks: list[Any] = [setup.gradient.network, setup.training.target.network]
    for network in networks:
        (flat,) = network.encoder.torsos
        torch.testing.assert_close(flat.moments.mean, torch.from_numpy(np.concatenate(batches).mean(0)))
        torch.testing.assert_close(flat.moments.variance, torch.from_numpy(np.concatenate(batches).var(0)))


def test_it_learns_the_same_from_numbers_of_rows_that_it_keeps() -> None:
    values, numbers = (
        Setup(algorithm=IQL(IQLConfig(), ENV, NetworkConfig(hidden_sizes=(4,)))) for _ in range(2)
    )
    batch = values.learn()
    now, then = batch.items.observation, batch.items.next_observation
    rows = [NewRows("observation", np.arange(1, 1 + 2 * len(now)), np.concatenate([now, then]), 20)]
    places = np.arange(1, 1 + len(now))
    kept = batch.items._replace(
        observation=RowNumbers("observation", places, 12),
        next_observation=RowNumbers("observation", places + len(now), 12),
    )
    numbers.source.batches.append(batch._replace(items=kept, new_rows=tuple(rows)))
    assert numbers.learner.step() is None
    assert torch.equal(numbers.flat, values.flat)
    saved: Any = numbers.training.batch()
    np.testing.assert_array_equal(saved["next_observation"].numpy(), then, "where a loss is not finite, this is saved")
