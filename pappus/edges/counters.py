"""Counters that several roles add to and all can read: how many steps the actors of a run have made.

Each counter owns a word of memory. On a cluster, the hub's node agent adds up the counters of other nodes; that of a
spoke writes what its own node lacks into its last word, so that all nodes read the same total, up to messages in
flight. On a spoke the words of counters on other nodes are 0. Per stream:

    spoke → hub   hello: of each counter its epoch, its word, and what that was when this hub was placed
    spoke → hub   whenever some have changed: of each its epoch and its word
    hub → spoke   welcome, and whenever it has changed: what the spoke lacks
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pappus.core import StepCounter, StepTotal
from pappus.edges.edge import Edge, PortRef
from pappus.errors import WireError
from pappus.transports.memory import ALIGNMENT, Block, Notifier
from pappus.transports.mirrors import Half, Hold, Peer, PortLocations, check_ends, lives_at, rows_of
from pappus.types import Array

PER_LINE = ALIGNMENT // 8
SECONDS = 0.05
"""How old a total on another node may be, plus the network's latency."""
_HELLO = struct.Struct("<4q")
_COUNTED = struct.Struct("<3q")
_LACK = struct.Struct("<q")


@dataclass(frozen=True)
class CounterEdge(Edge):
    """A sum that several roles add to, and all can read."""

    writers: int

    def counter(self, writer: int) -> PortRef[StepCounter]:
        return PortRef(self.name, _counter, (writer,))

    def reader(self) -> PortRef[StepTotal]:
        return PortRef(self.name, _reader)

    def memory(self) -> tuple[int, int]:
        return SharedCounters.footprint(self.writers)

    def open(self, block: Block) -> SharedCounters:
        return SharedCounters(self.name, self.writers, block)

    def hub(self) -> PortRef[Any] | None:
        return self.reader()

    def spokes(self) -> Sequence[PortRef[Any]]:
        return [self.counter(writer) for writer in range(self.writers)]

    def mirror(self, block: Block, hold: Callable[[str], Hold]) -> CountersMirror:
        return CountersMirror(self.writers, block)

    def shares_node(self, ref: PortRef[Any]) -> bool:
        """All readers read the hub's total."""
        return ref == self.reader()


def _counter(counters: SharedCounters, writer: int) -> StepCounter:
    return counters.counter(writer)


def _reader(counters: SharedCounters) -> StepTotal:
    return counters.reader()


class SharedCounters:
    """A number for each of several writers, each on a cache line of its own, and one for what was counted before."""

    def __init__(self, name: str, writers: int, block: Block) -> None:
        self.name = name
        self._counts = block.memory.view(np.int64)[::PER_LINE]
        assert len(self._counts) == writers + 1

    @staticmethod
    def footprint(writers: int) -> tuple[int, int]:
        return ALIGNMENT * (writers + 1), 0

    def counter(self, writer: int) -> Counter:
        """The end of the writer of that number; its successor continues its count."""
        return Counter(self, self._counts[writer : writer + 1])

    def reader(self) -> SharedCounters:
        return self

    def total(self) -> int:
        return int(self._counts.sum())

    def set_total(self, total: int) -> None:
        self._counts[-1] += total - self.total()


class Counter:
    """One writer's end of a set of counters."""

    def __init__(self, counters: SharedCounters, count: Array) -> None:
        self._count = count
        self.total, self.set_total = counters.total, counters.set_total

    def add(self, count: int) -> None:
        self._count[0] += count


class CountersMirror:
    """The words of a counters edge on one node; the last one belongs to no counter."""

    def __init__(self, writers: int, block: Block) -> None:
        self.ends = writers
        self.words = block.memory.view(np.int64)[::PER_LINE]
        self.before = np.zeros(writers, np.int64)
        """What was counted here before this hub was placed, which has it from its checkpoint."""

    def notifiers(self) -> tuple[Sequence[Notifier], Sequence[Notifier]]:
        return (), ()

    def hub(self, placement: PortLocations) -> CountersHub:
        return CountersHub(self, placement)

    def spoke(self, epochs: Mapping[int, int]) -> CountersSpoke:
        return CountersSpoke(self, epochs)

    def settle_as_hub(self, far: Collection[int]) -> None:
        """The role that reads the total sets it."""
        self.words[[*far, -1]] = 0

    def settle_as_spoke(self, stale: Collection[int], other_hub: bool) -> None:
        """What others counted, and what was counted before, remains in the total until the hub sends a new one."""
        ends = list(stale)
        counted = int(self.words[ends].sum())
        self.words[ends] = 0  # first: a total that is too small for a moment harms less than one that is too large
        self.words[-1] += counted
        self.before[ends] = 0
        if other_hub:
            self.before[:] = self.words[:-1]


class CountersSpoke:
    """Sends what is counted on this node, and receives what it lacks."""

    seconds = SECONDS

    def __init__(self, mirror: CountersMirror, epochs: Mapping[int, int]) -> None:
        self._words, self._before, self._epochs = mirror.words, mirror.before, epochs
        self._told: dict[int, int] = {}

    def hello(self) -> bytes:
        self._told = {end: int(self._words[end]) for end in self._epochs}
        return b"".join(
            _HELLO.pack(end, self._epochs[end], word, self._before[end]) for end, word in self._told.items()
        )

    def changes(self) -> Iterator[bytes]:
        changed = {end: word for end in self._epochs if (word := int(self._words[end])) != self._told[end]}
        if changed:
            self._told |= changed
            yield b"".join(_COUNTED.pack(end, self._epochs[end], word) for end, word in changed.items())

    def apply(self, message: bytes) -> None:
        if len(message) != _LACK.size:
            raise WireError(f"a message of {len(message)} bytes is no number of {_LACK.size}")
        self._words[-1] = _LACK.unpack(message)[0]

    welcomed = apply


class CountersHub:
    """Adds up; what it knows of far counters outlasts their streams."""

    def __init__(self, mirror: CountersMirror, placement: PortLocations) -> None:
        self.placement, self.words = placement, mirror.words
        self._offsets: dict[tuple[int, int, int], int] = {}
        """By end, epoch and life of its node agent: what to add to the spoke's word to get the hub's."""

    def greet(self, peer: Peer, hello: bytes) -> tuple[Half, bytes]:
        rows = rows_of(_HELLO, hello)
        check_ends(self.placement, peer.node, ((row[0], row[1]) for row in rows))
        offsets = {}
        for end, epoch, _, before in rows:  # an end that is new to this hub counts on from its predecessor
            new = int(self.words[end]) - before
            offsets[end] = self._offsets.setdefault((end, epoch, peer.life), new)
        half = CountersStream(self, peer.node, offsets)
        for end, epoch, word, _ in rows:
            half.note(end, epoch, word)
        return half, half.lack()


class CountersStream:
    """The hub's half of one spoke's stream."""

    seconds = SECONDS

    def __init__(self, hub: CountersHub, node: str, offsets: Mapping[int, int]) -> None:
        self._hub, self._node, self._offsets = hub, node, offsets
        self._counted: dict[int, int] = {}
        """The spoke's words, as far as they are known: also of a counter that moved, until the spoke knows of it."""
        self._told = b""

    def lack(self) -> bytes:
        """What is to be added to the spoke's own words to get the total."""
        self._told = _LACK.pack(int(self._hub.words.sum()) - sum(self._counted.values()))
        return self._told

    def changes(self) -> Iterator[bytes]:
        told = self._told
        if self.lack() != told:
            yield self._told

    def apply(self, message: bytes) -> None:
        for end, epoch, word in rows_of(_COUNTED, message):
            if end not in self._offsets:
                raise WireError(f"counter {end} was not announced")
            self.note(end, epoch, word)

    def note(self, end: int, epoch: int, word: int) -> None:
        self._counted[end] = word
        if lives_at(self._hub.placement, end, self._node, epoch):
            self._hub.words[end] = self._offsets[end] + word
