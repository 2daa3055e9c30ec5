"""Edges whose ports write down what they give a role, as far as that depends on time.

    source of a queue    take N …       slots of each producer that make a batch
    sink of a queue      begin N        slots that predecessors have committed
                         commit CRC     actions and rewards of the slot, about to be handed over
    reader of weights    read V         the version that is used from now on
    writer of weights    publish V CRC  a version, about to be published
                         hash V SHA     sha256 of some of them, and of the last
    counter              total N        the sum that was read
    replay service       insert WHO N CRC, draw N LEFT, update N, evict N      in the order of its lock

Whoever waits writes nothing.
"""

from __future__ import annotations

import hashlib
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from pappus.edges.all_reduce import AllReduceEdge
from pappus.edges.counters import Counter, CounterEdge, SharedCounters
from pappus.edges.edge import Edge
from pappus.edges.queue import QueueEdge, RingQueue, RingSink, RingSource
from pappus.edges.replay import ReplayEdge
from pappus.edges.weights import FlatWeights, WeightsEdge
from pappus.kinds import EVALUATOR, LEARNER, RoleKind
from pappus.recording.shared import SharedReplay, SharedReplayHost
from pappus.trace import log as entries
from pappus.trace.log import TraceLog
from pappus.transports.memory import Block
from pappus.types import Array, Unroll

HASH_UPDATES = 100
"""Updates between two versions of which the trace has a sha256; of all others it has a crc32."""


class RecordedTrace:
    """Opens the edges of roles such that what they meet is written into `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._logs: list[TraceLog] = []

    def opener(self, role: str, kind: RoleKind, incarnation: int) -> RecordedEdges | None:
        """How the edges of a role are opened; None for one that nobody depends on."""
        if kind == EVALUATOR:
            return None
        self._logs.append(TraceLog(self._folder, role, incarnation))
        return RecordedEdges(self._logs[-1], kind)

    def close(self) -> None:
        for log in self._logs:
            log.close()


class RecordedEdges:
    """The edges of one life of a role."""

    def __init__(self, log: TraceLog, kind: RoleKind) -> None:
        self._log, self._kind = log, kind

    def open(self, edge: Edge, block: Block) -> Any:
        match edge:
            case QueueEdge():
                return RecordedQueue(edge, block, self._log)
            case WeightsEdge() if self._kind == LEARNER:
                return PublishedWeights(edge, block, self._log)
            case WeightsEdge():
                return ReadWeights(edge, block, self._log)
            case CounterEdge():
                return RecordedCounters(edge, block, self._log)
            case ReplayEdge():
                return RecordedReplay(edge, block, self._log)
            case AllReduceEdge():  # whatever the order of the members, they get the same sum
                return edge.open(block)
        raise NotImplementedError(f"{type(edge).__name__} is not traced")


class RecordedQueue(RingQueue):
    """A queue."""

    def __init__(self, edge: QueueEdge, block: Block, log: TraceLog) -> None:
        super().__init__(edge.label, edge.spec, edge.producers, edge.capacity, block)
        self._log = log

    def sink(self, producer: int) -> RingSink:
        return RecordedSink(self, producer, self._log)

    def source(self) -> RingSource:
        return RecordedSource(self, self._log)


class RecordedSink(RingSink):
    """The slot is what others see: its entry is written before it is handed over."""

    def __init__(self, queue: RingQueue, producer: int, log: TraceLog) -> None:
        super().__init__(queue, producer)
        self._log = log
        log.write(entries.BEGIN, int(self._ring.committed[0]))

    def commit(self, steps: int = 0) -> None:
        self._log.write(entries.COMMIT, checksum(self._ring.slots[int(self._ring.committed[0]) % self._ring.capacity]))
        super().commit(steps)


class RecordedSource(RingSource):
    """What a batch is made of."""

    def __init__(self, queue: RingQueue, log: TraceLog) -> None:
        super().__init__(queue)
        self._log = log

    def take(self, count: int, most: list[int] | None = None) -> list[Unroll] | None:
        batch = super().take(count, most)
        if batch is not None:
            self._log.write(entries.TAKE, *self._taken)
        return batch


class PublishedWeights(FlatWeights):
    """The weights as learners see them. Those that read only wait for a version, which needs no entry."""

    def __init__(self, edge: WeightsEdge, block: Block, log: TraceLog) -> None:
        super().__init__(edge.name, edge.size, block)
        self._log, self._last, self._hashed = log, -1, -1

    def publish(self, flat: Array, version: int) -> None:
        if self._last < 0:
            self._log.at_end(self._hash_last)
        if version != self._last:  # a run that ends may publish once more what it has published
            self._last = version
            self._log.write(entries.PUBLISH, version, zlib.crc32(flat.data))
            if version % HASH_UPDATES == 0:
                self._hash(flat, version)
        super().publish(flat, version)

    def _hash_last(self) -> None:
        if self._hashed != self._last:
            flat = np.empty(self.size, np.float32)
            self._hash(flat, self.read(flat))

    def _hash(self, flat: Array, version: int) -> None:
        self._hashed = version
        self._log.write(entries.HASH, version, hashlib.sha256(flat.data).hexdigest())


class ReadWeights(FlatWeights):
    """The weights as actors see them: `version` fetches what `read` then gives, so that both are one entry."""

    def __init__(self, edge: WeightsEdge, block: Block, log: TraceLog) -> None:
        super().__init__(edge.name, edge.size, block)
        self._log, self._fetched = log, -1
        self._copy = np.empty(edge.size, np.float32)

    def reader(self) -> ReadWeights:
        return self

    def version(self) -> int:
        newest = super().version()
        if newest < 0:
            return -1
        if newest != self._fetched:
            self._fetched = super().read(self._copy)
        self._log.write(entries.READ, self._fetched)
        return self._fetched

    def read(self, into: Array) -> int:
        np.copyto(into, self._copy)
        return self._fetched


class RecordedCounters(SharedCounters):
    """A sum that changes while others count."""

    def __init__(self, edge: CounterEdge, block: Block, log: TraceLog) -> None:
        super().__init__(edge.name, edge.writers, block)
        self._log = log

    def counter(self, writer: int) -> Counter:
        counter = super().counter(writer)
        counter.total = self.total
        return counter

    def total(self) -> int:
        total = super().total()
        self._log.write(entries.TOTAL, total)
        return total


class RecordedReplay(SharedReplay):
    """A replay edge: the order of its service says it all."""

    def __init__(self, edge: ReplayEdge, block: Block, log: TraceLog) -> None:
        super().__init__(edge.spec, block.memory.view(np.int64), edge.name)
        self._log, self._client = log, log.life

    def host(self) -> SharedReplayHost:
        host = super().host()
        host.service.witness = RecordedService(self._log)
        return host


class RecordedService:
    """Writes down what a replay service does. It is called under the lock of the service."""

    def __init__(self, log: TraceLog) -> None:
        self._log = log

    def inserted(self, who: str, priorities: Array) -> None:
        self._log.write(entries.INSERT, who, len(priorities), zlib.crc32(priorities.data))

    def drawn(self, count: int, missing: int) -> None:
        self._log.write(entries.DRAW, count, missing)

    def updated(self, count: int) -> None:
        self._log.write(entries.UPDATE, count)

    def evicted(self, count: int) -> None:
        self._log.write(entries.EVICT, count)


def checksum(unroll: Unroll) -> int:
    """A number that differs where actions or rewards do."""
    return zlib.crc32(unroll.reward.data, zlib.crc32(unroll.action.data))
