"""A learner whose gradients go to shards, and the bundle in which it takes turns with an actor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pappus.algorithms.dqn import DQN, DQNConfig
from pappus.config import NetworkConfig, OptimizerConfig
from pappus.edges.counters import SharedCounters
from pappus.edges.queue import RingQueue
from pappus.edges.weights import FlatWeights
from pappus.experience import ItemBatch, TargetUpdates, Transition
from pappus.networks.flat import FlatParameters
from pappus.roles.actor_learner import Bundle
from pappus.roles.gradient_step import GradientStep, LearnerSettings
from pappus.roles.learner import Learner
from pappus.roles.parameter_server import Gradient, ShardedChannel, gradient_spec, shard_sizes
from pappus.roles.replay_training import ReplayTraining
from pappus.telemetry.metrics import Metrics
from pappus.transports.memory import HeapBlock
from pappus.types import map_leaves
from tests.roles.replay_tools import ENV, FakeSource, random_batch

SHARDS = 2


class Setup:
    """A learner between two shards that the test plays."""

    def __init__(self, every: int = 3, clip_norm: float = 1e6, share: float = 1.0) -> None:
        self.algorithm = DQN(DQNConfig(), ENV, NetworkConfig(hidden_sizes=(4,)))
        self.algorithm.target_updates = TargetUpdates(every, share)
        self.size = FlatParameters(self.algorithm.build_network()).size
        self.sizes = shard_sizes(self.size, SHARDS)
        self.weights = [
            FlatWeights(f"weights-{i}", size, HeapBlock(*FlatWeights.footprint(size)))
            for i, size in enumerate(self.sizes)
        ]
        specs = [gradient_spec(size) for size in self.sizes]
        queues = [RingQueue("gradients", spec, 1, 2, HeapBlock(*RingQueue.footprint(spec, 1, 2))) for spec in specs]
        self.sources = [queue.source() for queue in queues]
        self.counters = SharedCounters("steps", 1, HeapBlock(*SharedCounters.footprint(1)))
        self.source: Any = FakeSource()
        settings = LearnerSettings(OptimizerConfig(clip_norm=clip_norm), 10**6, seed=1)
        self.channel = ShardedChannel(self.weights, [queue.sink(0) for queue in queues], self.sizes)
        self.gradient = GradientStep(Metrics("bundle-0"), self.algorithm, settings, channel=self.channel)
        self.training = ReplayTraining(self.algorithm, self.source, self.counters, self.gradient, 100)
        self.learner = Learner("bundle-0", self.gradient, self.training)
        self._random = np.random.default_rng(0)

    def publish(self, *versions: int) -> torch.Tensor:
        """New weights, at these versions of the shards."""
        whole = self._random.normal(size=self.size).astype(np.float32)
        for weights, part, version in zip(self.weights, np.split(whole, [self.sizes[0]]), versions, strict=True):
            weights.publish(part, version)
        return torch.from_numpy(whole)

    def learn(self) -> ItemBatch:
        batch = random_batch(self._random)
        self.source.batches.append(batch)
        assert self.learner.step() is None
        return batch

    def sent(self) -> list[Gradient]:
        """What each shard was sent."""
        parts = []
        for source in self.sources:
            taken: Any = source.take(1)
            parts.append(Gradient(*(np.array(leaf) for leaf in taken[0])))
            source.release()
        return parts

    def literal(self, weights: torch.Tensor, target: torch.Tensor, batch: ItemBatch) -> tuple[torch.Tensor, float]:
        """The gradient and the loss of networks with these weights."""
        networks: list[Any] = [self.algorithm.build_network() for _ in range(2)]
        for network, values in zip(networks, (weights, target), strict=True):
            torch.nn.utils.vector_to_parameters(values, network.parameters())
        items: Transition = map_leaves(torch.from_numpy, batch.items)
        loss = self.algorithm.loss(*networks, items, torch.from_numpy(batch.weight)).loss
        loss.backward()  # type: ignore[no-untyped-call]
        return torch.cat([weight.grad.flatten() for weight in networks[0].parameters()]), loss.item()

    @property
    def target(self) -> torch.Tensor:
        return self.training.target.flat.values.clone()


def test_it_waits_until_every_shard_has_published() -> None:
    setup = Setup()
    setup.source.batches.append(random_batch(np.random.default_rng(0)))
    setup.weights[0].publish(np.zeros(setup.sizes[0], np.float32), 0)
    port: Any = setup.learner.step()
    assert port is setup.channel and len(setup.source.batches) == 1


def test_without_a_batch_it_waits_for_its_source() -> None:
    setup = Setup()
    setup.publish(0, 0)
    assert setup.learner.step() is setup.source and setup.learner.updates == 0


def test_a_batch_is_not_taken_while_a_shard_has_no_room_for_its_gradient() -> None:
    setup = Setup()
    setup.publish(0, 0)
    setup.learn()
    setup.learn()
    setup.source.batches.append(random_batch(np.random.default_rng(0)))
    port = setup.learner.step()
    assert port is not None and port.name == "gradients slots" and len(setup.source.batches) == 1
    setup.sent()
    assert setup.learner.step() is None and not setup.source.batches


def test_every_shard_is_sent_its_part_of_the_literal_gradient_and_the_loss() -> None:
    setup = Setup(every=1000)
    target = setup.publish(0, 0)
    setup.learn()
    setup.sent()
    weights = setup.publish(1, 1)
    gradient, loss = setup.literal(weights, target, setup.learn())
    parts = setup.sent()
    assert [len(part.values) for part in parts] == setup.sizes
    torch.testing.assert_close(torch.from_numpy(np.concatenate([part.values for part in parts])), gradient)
    assert [float(part.loss) for part in parts] == pytest.approx([loss, loss])


def test_a_gradient_carries_the_versions_that_it_was_computed_with() -> None:
    setup = Setup(every=1000)
    target = setup.publish(0, 0)
    setup.learn()
    setup.sent()
    weights = setup.publish(7, 4)
    setup.source.before_take = lambda: setup.publish(8, 6)  # too late for this batch
    gradient, _ = setup.literal(weights, target, setup.learn())
    parts = setup.sent()
    assert [int(part.version) for part in parts] == [7, 4]
    torch.testing.assert_close(torch.from_numpy(np.concatenate([part.values for part in parts])), gradient)
    setup.source.before_take = lambda: None
    setup.learn()
    assert [int(part.version) for part in setup.sent()] == [8, 6]


def test_a_gradient_is_clipped_to_its_norm_before_it_is_cut_into_parts() -> None:
    setup = Setup(clip_norm=0.01)
    setup.publish(0, 0)
    setup.learn()
    whole = np.concatenate([part.values for part in setup.sent()])
    assert np.linalg.norm(whole) == pytest.approx(0.01, rel=1e-3)


def test_its_own_weights_change_only_by_what_shards_publish() -> None:
    setup = Setup()
    for version in range(3):
        weights = setup.publish(version, version)
        setup.learn()
        setup.sent()
        assert torch.equal(setup.gradient.flat.values, weights)


def test_the_target_network_becomes_the_newest_weights_when_versions_pass_a_multiple() -> None:
    setup = Setup(every=3)
    expected = torch.zeros(0)
    for version, follows in ((1, True), (2, False), (3, True), (5, False), (13, True), (14, False), (15, True)):
        weights = setup.publish(version, 7 * version)
        setup.learn()
        setup.sent()
        expected = weights if follows else expected
        assert torch.equal(setup.target, expected), version


def test_the_target_network_may_follow_by_a_share_as_often_as_multiples_were_passed() -> None:
    setup = Setup(every=3, share=0.25)
    expected = torch.zeros(0)
    for version, times in ((1, 0), (2, 0), (3, 1), (13, 3), (14, 0)):
        weights = setup.publish(version, 7 * version)
        setup.learn()
        setup.sent()
        expected = weights if version == 1 else expected
        for _ in range(times):
            expected = 0.75 * expected + 0.25 * weights
        torch.testing.assert_close(setup.target, expected)


def test_what_it_counts_are_gradients_and_no_updates() -> None:
    setup = Setup()
    setup.publish(0, 0)
    setup.counters.counter(0).add(50)
    batch = setup.learn()
    counts = setup.learner.metrics.drain()["counts"]
    assert counts == {"gradients": 1}, "steps and updates are counted by the shard that leads"
    (keys, priorities), = setup.source.updates
    assert keys is batch.keys and len(priorities) == len(keys)


class Part:
    """An actor or a learner that goes on as often as the test says."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log, self.turns, self.closed = name, log, 0, False
        self.metrics = Metrics(name)

    def step(self) -> Any:
        if not self.turns:
            return self
        self.turns -= 1
        self.log.append(self.name)
        return None

    def explain(self) -> str:
        return f"no turn for the {self.name}"

    def fileno(self) -> int:
        return -1

    def clear(self) -> None: ...

    def close(self) -> None:
        self.closed = True


def bundle() -> tuple[Bundle, Any, Any, list[str]]:
    log: list[str] = []
    actor, learner = (Part(name, log) for name in ("actor", "learner"))
    made: Any = Bundle
    return made("bundle-0", actor, learner), actor, learner, log


def test_the_actor_acts_when_the_learner_has_nothing_to_learn_from() -> None:
    made, actor, learner, log = bundle()
    actor.turns, learner.turns = 3, 1
    assert made.step() is None and made.step() is None
    learner.turns = 2
    assert all(made.step() is None for _ in range(4))
    assert log == ["learner", "actor", "learner", "learner", "actor", "actor"]


def test_when_neither_can_go_on_it_waits_for_both() -> None:
    made, *_ = bundle()
    port: Any = made.step()
    assert (port._first.name, port._second.name) == ("learner", "actor")


def test_what_the_actor_hands_over_before_it_must_wait_lets_the_learner_go_on() -> None:
    made, actor, learner, log = bundle()

    def hand_over() -> Any:
        learner.turns = 1
        return actor

    actor.step = hand_over
    assert made.step() is None and log == ["learner"]


def test_both_report_under_the_bundles_name_and_end_together() -> None:
    made, actor, learner, _ = bundle()
    actor.metrics.count("env_steps", 3)
    learner.metrics.count("gradients")
    report = made.metrics.drain()
    assert report["role"] == "bundle-0" and report["counts"] == {"env_steps": 3, "gradients": 1}
    made.close()
    assert actor.closed and learner.closed
