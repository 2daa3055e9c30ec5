"""Edges whose ports give a role exactly what its trace says, as soon as that is possible, and nothing before.

Until then they give what they give a role that waits. So it does not matter in which order roles are stepped: each gets
the same in any order, and does the same. The entries are those of `recorded`.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter as Counts
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from pappus.edges.all_reduce import AllReduceEdge
from pappus.edges.counters import Counter, CounterEdge, SharedCounters
from pappus.edges.edge import Edge
from pappus.edges.queue import QueueEdge, RingQueue, RingSink, RingSource
from pappus.edges.replay import ReplayEdge
from pappus.edges.weights import FlatWeights, WeightsEdge
from pappus.kinds import LEARNER, REPLAY, RoleKind
from pappus.trace import log as entries
from pappus.trace.log import Life, TraceError
from pappus.trace.recorded import checksum
from pappus.trace.replayed_table import ReplayedReplay, ReplayedTable
from pappus.transports.memory import Block
from pappus.types import Array, Unroll


class Versions:
    """Published weights, as long as the trace of some reader still asks for them."""

    def __init__(self, lives: list[Life]) -> None:
        self._asked = Counts(int(version) for life in lives for (version,) in life.all(entries.READ))
        self._kept: dict[int, Array] = {}

    def publish(self, flat: Array, version: int) -> None:
        if self._asked[version]:
            self._kept[version] = np.array(flat)

    def take(self, version: int) -> Array | None:
        """That version, for one entry of one reader; None if it is not published yet."""
        flat = self._kept.get(version)
        if flat is not None:
            self._asked[version] -= 1
            if not self._asked[version]:
                del self._kept[version]
        return flat


class Listener(Protocol):
    """Hears how a replay goes on."""

    def about_to_update(self) -> None:
        """The learner takes the batch of its next update."""

    def compared(self, flat: Array, update: int, hashed: bool) -> None:
        """An update led to the same weights as in the run; `hashed`: of which the trace has a sha256."""


class ReplayedTrace:
    """Opens the edges of roles such that they meet what they met in the run."""

    def __init__(self, lives: dict[str, list[Life]], listener: Listener) -> None:
        if not any(life.all(entries.PUBLISH) for life in lives.get(LEARNER.name, ())):
            raise TraceError("the trace has no weights: the run ended before there were any")
        self.lives, (learner,) = _seen(lives), lives[LEARNER.name]
        self.hashes = {int(version): sha for version, sha in learner.all(entries.HASH)}
        learner.leave_out(entries.HASH)
        learner.cut_after(entries.PUBLISH)  # what was left in queues when the run ended was taken, and counted
        self.published = [int(version) for version, _ in learner.all(entries.PUBLISH)]
        if len(lives.get(REPLAY.name, ())) > 1:
            raise TraceError("replay died in the run, and the trace does not hold the tables that it came back with")
        self.versions = Versions([life for one in self.lives.values() for life in one])
        self.listener = listener
        self._tables: dict[str, ReplayedTable] = {}

    @property
    def last(self) -> int:
        """The last update."""
        return self.published[-1]

    def opener(self, role: str, kind: RoleKind, incarnation: int) -> ReplayedEdges:
        return ReplayedEdges(self, next(life for life in self.lives[role] if life.incarnation == incarnation), kind)

    def successor(self, life: Life) -> Life | None:
        """The next life of the same role."""
        later = [one for one in self.lives[life.role] if one.incarnation > life.incarnation]
        return later[0] if later else None

    def table(self, edge: ReplayEdge) -> ReplayedTable:
        """The table of a replay edge, which all its ends share."""
        if edge.name not in self._tables:
            if REPLAY.name not in self.lives:
                raise TraceError("the trace has nothing of replay: the run ended before there was any")
            (service,) = self.lives[REPLAY.name]
            everyone = [life for lives in self.lives.values() for life in lives]
            self._tables[edge.name] = ReplayedTable(edge.spec, service, {life.key: life for life in everyone})
        return self._tables[edge.name]


def _seen(lives: dict[str, list[Life]]) -> dict[str, list[Life]]:
    """Without the lives of which others saw nothing: such a one may have died of its env as soon as it began."""
    effects = (entries.COMMIT, entries.TAKE, entries.PUBLISH, entries.INSERT)
    writers = {who for one in lives.get(REPLAY.name, ()) for who, *_ in one.all(entries.INSERT)}
    seen = {
        role: [life for life in one if life.key in writers or any(life.all(effect) for effect in effects)]
        for role, one in lives.items()
    }
    return {role: one for role, one in seen.items() if one}


class ReplayedEdges:
    """The edges of one life of a role."""

    def __init__(self, trace: ReplayedTrace, life: Life, kind: RoleKind) -> None:
        self._trace, self._life, self._kind = trace, life, kind

    def open(self, edge: Edge, block: Block) -> Any:
        match edge:
            case QueueEdge():
                return ReplayedQueue(edge, block, self._life, self._trace)
            case WeightsEdge() if self._kind == LEARNER:
                return ReplayedPublication(edge, block, self._life, self._trace)
            case WeightsEdge():
                return ReplayedReader(edge, block, self._life, self._trace.versions)
            case CounterEdge():
                return ReplayedCounters(edge, block, self._life)
            case ReplayEdge():
                return ReplayedReplay(self._trace.table(edge), self._life, self._trace.listener.about_to_update)
            case AllReduceEdge():
                return edge.open(block)
        raise NotImplementedError(f"{type(edge).__name__} is not traced")


class ReplayedQueue(RingQueue):
    """A queue, as one life of a role meets it."""

    def __init__(self, edge: QueueEdge, block: Block, life: Life, trace: ReplayedTrace) -> None:
        super().__init__(edge.label, edge.spec, edge.producers, edge.capacity, block)
        self._life, self._trace = life, trace

    def sink(self, producer: int) -> RingSink:
        return ReplayedSink(self, producer, self._life, self._trace.successor(self._life))

    def source(self) -> RingSource:
        leads = self._life.role == LEARNER.name
        return ReplayedSource(self, self._life, self._trace.listener.about_to_update if leads else lambda: None)


class ReplayedSink(RingSink):
    """A life that ended in the run hands over as many slots as its successor has found, whatever its own trace says: it
    may have been killed between an entry and the slot that belongs to it."""

    def __init__(self, queue: RingQueue, producer: int, life: Life, successor: Life | None) -> None:
        super().__init__(queue, producer)
        self._life = life
        (begin,), found = life.next(entries.BEGIN), int(self._ring.committed[0])
        if begin != found:
            raise TraceError(f"{life.name} began after {begin} slots of its predecessors, and here it is {found}")
        if successor is not None:
            ends = int(successor.all(entries.BEGIN)[0][0])
            life.spent.append(lambda: int(self._ring.committed[0]) >= ends)

    def commit(self, steps: int = 0) -> None:
        number, (recorded,) = int(self._ring.committed[0]), self._life.next(entries.COMMIT)
        if checksum(self._ring.slots[number % self._ring.capacity]) != recorded:
            raise TraceError(
                f"{self._life.name} made another unroll {number} than in the run (its actions or rewards differ): its "
                "env is not deterministic, or not the one of the run; pappus check-env tells whether it repeats itself"
            )
        super().commit(steps)


class ReplayedSource(RingSource):
    """Batches are made of the slots that they were made of."""

    def __init__(self, queue: RingQueue, life: Life, about_to_update: Callable[[], None]) -> None:
        super().__init__(queue)
        self._life, self._about_to_update = life, about_to_update

    def take(self, count: int, most: list[int] | None = None) -> list[Unroll] | None:
        recorded = [int(number) for number in self._life.peek(entries.TAKE)[1]]
        if sum(recorded) != count or len(recorded) != len(self._rings):
            raise TraceError(f"{self._life.name} takes {count} slots, and its trace says {self._life.upcoming()!r}")
        batch = super().take(count, recorded)
        if batch is not None:
            self._life.skip()
            self._about_to_update()
        return batch


class ReplayedPublication(FlatWeights):
    """The weights as learners see them: each version is compared with that of the run."""

    def __init__(self, edge: WeightsEdge, block: Block, life: Life, trace: ReplayedTrace) -> None:
        super().__init__(edge.name, edge.size, block)
        self._life, self._trace = life, trace

    def publish(self, flat: Array, version: int) -> None:
        recorded, crc = self._life.next(entries.PUBLISH)
        if recorded != version:
            raise TraceError(f"{self._life.name} made update {version} where the run made update {recorded}")
        sha = hashlib.sha256(flat.data).hexdigest() if version in self._trace.hashes else ""
        if zlib.crc32(flat.data) != crc or sha != self._trace.hashes.get(version, ""):
            raise TraceError(
                f"update {version}: other weights than in the run; all before it were the same. Stop there with "
                f"--break-at {version}"
            )
        self._trace.versions.publish(flat, version)
        super().publish(flat, version)
        self._trace.listener.compared(flat, version, bool(sha))


class ReplayedReader(FlatWeights):
    """The weights as actors see them."""

    def __init__(self, edge: WeightsEdge, block: Block, life: Life, versions: Versions) -> None:
        super().__init__(edge.name, edge.size, block)
        self._life, self._history = life, versions
        self._flat: Array = np.zeros(0, np.float32)
        self._number = -1

    def reader(self) -> ReplayedReader:
        return self

    def version(self) -> int:
        """The version that the trace says, or -1 until it is published."""
        number = int(self._life.peek(entries.READ)[1][0])
        flat = self._history.take(number)
        if flat is None:
            return -1
        self._life.skip()
        self._flat, self._number = flat, number
        return number

    def read(self, into: Array) -> int:
        np.copyto(into, self._flat)
        return self._number

    def explain(self) -> str:
        return "the version that it read is not published yet"


class ReplayedCounters(SharedCounters):
    """A sum of what was counted; who counts here does so at other times."""

    def __init__(self, edge: CounterEdge, block: Block, life: Life) -> None:
        super().__init__(edge.name, edge.writers, block)
        self._life = life

    def counter(self, writer: int) -> Counter:
        counter = super().counter(writer)
        counter.total = self.total
        return counter

    def total(self) -> int:
        return self._life.next(entries.TOTAL)[0]
