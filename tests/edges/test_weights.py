from __future__ import annotations

import os
import select

import numpy as np

from pappus.edges.weights import FlatWeights
from pappus.transports.memory import HeapBlock, SharedBlock

SIZE = 100_000


def test_readers_see_the_newest_version() -> None:
    weights = FlatWeights("weights", 3, HeapBlock(*FlatWeights.footprint(3)))
    into = np.zeros(3, np.float32)
    assert weights.version() == -1
    for version in range(5):
        weights.publish(np.full(3, version, np.float32), version)
        assert weights.version() == version and weights.read(into) == version and (into == version).all()


def test_a_run_that_resumes_starts_with_any_version() -> None:
    weights = FlatWeights("weights", 3, HeapBlock(*FlatWeights.footprint(3)))
    weights.publish(np.full(3, 7, np.float32), 712)
    assert weights.read(np.zeros(3, np.float32)) == 712


def test_readers_that_wait_are_woken_by_the_first_version_and_never_wait_again() -> None:
    for first in (0, 41):
        block = SharedBlock.create(*FlatWeights.footprint(3))
        weights = FlatWeights("weights", 3, block)
        assert not select.select([weights.fileno()], [], [], 0)[0]
        weights.publish(np.zeros(3, np.float32), first)
        weights.clear()
        assert select.select([weights.fileno()], [], [], 0)[0]


def test_no_reader_ever_sees_a_mixture_of_versions() -> None:
    block = SharedBlock.create(*FlatWeights.footprint(SIZE))
    weights = FlatWeights("weights", SIZE, block)
    weights.publish(np.zeros(SIZE, np.float32), 0)
    writer = os.fork()
    if writer == 0:
        for version in range(1, 2000):
            weights.publish(np.full(SIZE, version, np.float32), version)
        os._exit(0)
    into, versions = np.empty(SIZE, np.float32), []
    while not versions or versions[-1] < 1999:
        versions.append(weights.read(into))
        assert (into == versions[-1]).all(), f"version {versions[-1]} is mixed"
    os.waitpid(writer, 0)
    assert versions == sorted(versions)


def test_a_writer_that_was_killed_while_it_wrote_leaves_nothing_that_a_reader_waits_for() -> None:
    weights = FlatWeights("weights", 3, HeapBlock(*FlatWeights.footprint(3)))
    into = np.empty(3, np.float32)
    for version in range(2):
        weights.publish(np.full(3, version, np.float32), version)
    weights._sequence[(2 + 1) % 2] += 1  # it was about to publish version 2
    for version in range(2, 5):
        weights.publish(np.full(3, version, np.float32), version)
        assert weights._sequence[(version + 1) % 2] % 2 == 0, "a reader would read for ever"
        assert weights.read(into) == version and (into == version).all()


def test_weights_are_counted_whenever_they_are_read() -> None:
    weights = FlatWeights("weights", 3, HeapBlock(*FlatWeights.footprint(3)))
    weights.publish(np.zeros(3, np.float32), 0)
    assert weights.meter.total == 0
    for _ in range(2):
        weights.read(np.zeros(3, np.float32))
    assert weights.meter.total == 24


def test_who_follows_is_woken_by_every_version_and_nobody_rings_without() -> None:
    weights = FlatWeights("weights", 3, SharedBlock.create(*FlatWeights.footprint(3)))
    weights.publish(np.zeros(3, np.float32), 0)
    assert not select.select([weights.changed.fileno()], [], [], 0)[0], "a system call for nobody"
    weights.follow()
    for version in (1, 2):
        weights.reader().publish(np.zeros(3, np.float32), version)
        assert select.select([weights.changed.fileno()], [], [], 0)[0]
        weights.changed.clear()
