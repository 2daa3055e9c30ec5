"""Shards that apply what comes, drop what should not be applied, and come back."""

from __future__ import annotations

import numpy as np
import torch

from pappus.config import OptimizerConfig
from pappus.edges.counters import SharedCounters
from pappus.edges.queue import RingQueue
from pappus.edges.weights import FlatWeights
from pappus.roles.parameter_server import (
    TRUSTED,
    Gradient,
    ParameterServer,
    ServerSettings,
    ShardedChannel,
    ShardedWeights,
    UsualLoss,
    gradient_spec,
    shard_sizes,
)
from pappus.transports.memory import HeapBlock

SIZE = 5
RATE = OptimizerConfig("rmsprop", 0.1, anneal=True, decay=0.0, momentum=0.0, epsilon=0.0)
"""Steps of the rate itself, in the direction of the gradient's sign."""


class Shard:
    """A server with a line of its own, without a process."""

    def __init__(self, max_staleness: int | None = 3, deviations: float = 0.0, leads: bool = True) -> None:
        spec = gradient_spec(SIZE)
        self.queue = RingQueue("gradients", spec, 1, 2, HeapBlock(*RingQueue.footprint(spec, 1, 2)))
        self.weights = FlatWeights("weights", SIZE, HeapBlock(*FlatWeights.footprint(SIZE)))
        self.counters = SharedCounters("steps", 1, HeapBlock(*SharedCounters.footprint(1)))
        self.settings = ServerSettings(RATE, 100, max_staleness, deviations)
        self.leads = leads
        self.server = self.new()
        self.server.step()

    def new(self) -> ParameterServer:
        return ParameterServer(
            "parameter-server-0", torch.zeros(SIZE), self.queue.source(), self.weights, self.settings, self.counters,
            self.leads,
        )

    def send(self, sign: float, version: int, loss: float = 1.0) -> None:
        channel = ShardedChannel([self.weights], [self.queue.sink(0)], [SIZE])
        channel.versions = [version]
        channel.send(np.full(SIZE, sign, np.float32), loss)
        assert self.server.step() is None

    def published(self) -> tuple[int, float]:
        into = np.empty(SIZE, np.float32)
        version = self.weights.read(into)
        return version, float(into[0])


def test_gradients_are_applied_in_turn_and_every_one_is_a_version() -> None:
    shard = Shard()
    assert shard.published() == (0, 0.0)
    shard.send(1.0, 0)
    assert shard.published() == (1, np.float32(-0.1))
    shard.send(-1.0, 1)
    version, value = shard.published()
    assert version == 2 and abs(value) < 1e-6
    assert shard.server.metrics.drain()["counts"]["updates"] == 2


def test_gradients_that_are_too_old_are_dropped_and_counted() -> None:
    shard = Shard(max_staleness=1)
    for _ in range(3):
        shard.send(1.0, shard.weights.version())
    shard.send(1.0, 1)
    report = shard.server.metrics.drain()
    assert shard.weights.version() == 3 and report["counts"]["gradients_stale"] == 1
    assert report["maxima"]["staleness_max"] == 2


def test_without_a_bound_no_gradient_is_too_old() -> None:
    shard = Shard(max_staleness=None)
    for _ in range(1000):
        shard.send(1.0, 0)
    report = shard.server.metrics.drain()
    assert shard.weights.version() == 1000 and "gradients_stale" not in report["counts"]
    assert report["maxima"]["staleness_max"] == 999


def test_a_loss_far_above_the_usual_is_dropped_and_one_that_stays_becomes_usual() -> None:
    usual = UsualLoss(5.0)
    rng = np.random.default_rng(0)
    assert all([usual.admits(loss) for loss in 1 + 0.1 * rng.standard_normal(5 * TRUSTED).clip(-3, 3)])
    assert not usual.admits(3.0) and usual.admits(1.1)
    admitted = [usual.admits(loss) for loss in 3 + 0.1 * rng.standard_normal(1000)]
    assert not admitted[0] and all(admitted[-100:]), "from now on losses are so high"


def test_a_loss_that_is_no_number_is_dropped() -> None:
    shard = Shard(deviations=5.0)
    shard.send(1.0, 0, loss=float("nan"))
    assert shard.weights.version() == 0 and shard.server.metrics.drain()["counts"]["gradients_unusual"] == 1


def test_a_successor_goes_on_with_what_was_published_and_counts_no_step_twice() -> None:
    shard = Shard()
    saved = shard.server.save()
    shard.counters.counter(0).add(40)
    shard.send(1.0, 0)
    assert shard.server.metrics.drain()["counts"]["env_steps"] == 40
    shard.server = shard.new()
    shard.server.load(saved)
    shard.server.step()
    assert shard.published() == (1, np.float32(-0.1)) and shard.server.progress() == (40, 1)
    shard.counters.counter(0).add(10)
    shard.send(-1.0, 1)
    assert shard.server.metrics.drain()["counts"]["env_steps"] == 10


def test_all_shards_anneal_alike_and_one_leads() -> None:
    shards = [Shard(leads=True), Shard(leads=False)]
    for shard in shards:
        shard.counters.counter(0).add(50)
        shard.send(1.0, 0)
        assert shard.server.learning_rate() == 0.05
        shard.counters.counter(0).add(50)
        shard.send(1.0, 1)
    assert [shard.server.finished for shard in shards] == [True, False]
    assert [shard.server.progress() for shard in shards] == [(100, 2), None]


def test_the_parts_of_weights_and_gradients_make_a_whole() -> None:
    sizes = shard_sizes(7, 3)
    assert sizes == [3, 2, 2]
    blocks = [FlatWeights(f"w{i}", size, HeapBlock(*FlatWeights.footprint(size))) for i, size in enumerate(sizes)]
    whole = ShardedWeights(blocks, sizes)
    blocks[0].publish(np.array([0, 1, 2], np.float32), 4)
    assert whole.version() == -1, "some parts are still missing"
    blocks[1].publish(np.array([3, 4], np.float32), 2)
    blocks[2].publish(np.array([5, 6], np.float32), 3)
    into = np.empty(7, np.float32)
    assert whole.version() == 4 and whole.read(into) == 4
    assert into.tolist() == list(range(7)) and whole.versions == [4, 2, 3]


def test_every_shard_is_sent_its_part_with_its_version() -> None:
    sizes = [2, 1]
    queues = [
        RingQueue("g", spec, 1, 1, HeapBlock(*RingQueue.footprint(spec, 1, 1))) for spec in map(gradient_spec, sizes)
    ]
    weights = [FlatWeights(f"w{i}", size, HeapBlock(*FlatWeights.footprint(size))) for i, size in enumerate(sizes)]
    for shard, size, version in zip(weights, sizes, (7, 8), strict=True):
        shard.publish(np.zeros(size, np.float32), version)
    channel = ShardedChannel(weights, [queue.sink(0) for queue in queues], sizes)
    channel.read(np.empty(3, np.float32))
    assert channel.full() is None
    channel.send(np.array([1, 2, 3], np.float32), 0.5)
    assert channel.full() is not None, "nobody took them yet"
    for queue, values, version in zip(queues, ([1, 2], [3]), (7, 8), strict=True):
        taken = queue.source().take(1)
        assert taken is not None
        found: Gradient = taken[0]
        assert found.values.tolist() == values and int(found.version) == version and float(found.loss) == 0.5
