"""Queues of slots that are written and read in place.

Each producer has a ring of its own, so that a slot is never shared between producers:

    committed ─ counts slots that the producer has filled; only the producer writes it
    released  ─ counts slots that the consumer has given back; only the consumer writes it
    next      ─ of the first ring: the ring whose turn it is; only the consumer writes it
    invariant   0 ≤ committed − released ≤ capacity

A producer that dies while it fills a slot has not committed it: its successor finds the same counters, fills the
same slot again, and nothing is lost or leaked. Beside `committed` are two sums of the steps in all committed slots.
Whether `committed` is even or odd says which one counts; the other is written before each commit. So a kill never finds
the sum and the slots at odds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pappus.core import Sink, Source
from pappus.edges.edge import Edge, Port, PortRef
from pappus.edges.mirrored_rings import RingsMirror
from pappus.telemetry.metrics import Meter
from pappus.transports.memory import Block, lay_out, layout_bytes
from pappus.transports.mirrors import Hold
from pappus.types import Array, Nest, Unroll, leaves_of

if TYPE_CHECKING:  # a device needs torch
    from pappus.edges.device import DeviceQueue

_COUNTERS = 128  # bytes: one cache line for each counter


@dataclass(frozen=True)
class QueueEdge(Edge):
    """A bounded queue of items from several producers to one consumer.

    With a `device`, the items are in its memory, and the one producer and the consumer share a process. With `after`
    (the name of a weights edge), a slot is returned to its producer only when the weights that were published before
    its release are there, too.
    """

    spec: Nest
    producers: int
    capacity: int
    device: str = ""
    after: str = ""

    def sink(self, producer: int) -> PortRef[Sink]:
        return PortRef(self.name, _sink, (producer,))

    def source(self) -> PortRef[Source]:
        return PortRef(self.name, _source)

    def memory(self) -> tuple[int, int]:
        return (0, 2) if self.device else RingQueue.footprint(self.spec, self.producers, self.capacity)

    def open(self, block: Block) -> RingQueue | DeviceQueue:
        if not self.device:
            return RingQueue(self.label, self.spec, self.producers, self.capacity, block)
        from pappus.accelerator import Accelerator
        from pappus.edges.device import DeviceQueue

        return DeviceQueue(self.name, self.spec, self.capacity, Accelerator(self.device), block.notifiers)

    def notifiers(self, ref: PortRef[Any]) -> Sequence[int]:
        return super().notifiers(ref) if ref == self.source() else (0, 1 + ref.arguments[0])

    def poison(self, block: Block) -> None:
        if not self.device:
            for ring in RingQueue("", self.spec, self.producers, self.capacity, block).rings():
                poison(ring)

    def hub(self) -> PortRef[Any] | None:
        return None if self.device else self.source()

    def spokes(self) -> Sequence[PortRef[Any]]:
        return [self.sink(producer) for producer in range(self.producers)]

    def mirror(self, block: Block, hold: Callable[[str], Hold]) -> RingsMirror:
        queue = RingQueue(self.label, self.spec, self.producers, self.capacity, block)
        return queue.mirror(hold(self.after) if self.after else None)


def _sink(queue: RingQueue | DeviceQueue, producer: int) -> Sink:
    return queue.sink(producer)


def _source(queue: RingQueue | DeviceQueue) -> Source:
    return queue.source()


class Ring:
    """One producer's slots, laid out over raw memory."""

    def __init__(self, memory: Array, spec: Nest, capacity: int) -> None:
        counters = memory[:_COUNTERS].view(np.int64)
        self.committed, self.released, self.next = counters[0:1], counters[8:9], counters[9:10]
        self.steps = counters[1:3]
        self.capacity = capacity
        size = layout_bytes(spec)
        self.slots: list[Unroll] = [
            lay_out(memory[_COUNTERS + i * size : _COUNTERS + (i + 1) * size], spec) for i in range(capacity)
        ]

    def ready(self) -> int:
        """Slots that are ready for the consumer."""
        return int(self.committed[0] - self.released[0])


class RingSink(Port):
    """The producer's end of its ring."""

    def __init__(self, queue: RingQueue, producer: int) -> None:
        super().__init__(f"{queue.name} slots", queue.freed[producer])
        self._ring, self._filled, self._meter = queue.ring(producer), queue.filled, queue.meter
        self._slot_bytes = sum(leaf.nbytes for leaf in leaves_of(self._ring.slots[0]))
        self.notifier = queue.freed[producer]

    def acquire(self) -> Unroll | None:
        ring = self._ring
        if ring.ready() >= ring.capacity:
            return None
        return ring.slots[int(ring.committed[0]) % ring.capacity]

    def commit(self, steps: int = 0) -> None:
        ring, number = self._ring, int(self._ring.committed[0])
        ring.steps[(number + 1) % 2] = ring.steps[number % 2] + steps
        ring.committed[0] = number + 1
        self._meter.total += self._slot_bytes
        self._filled.notify()

    def handed_on(self) -> int:
        return int(self._ring.steps[int(self._ring.committed[0]) % 2])

    def explain(self) -> str:
        return f"all {self._ring.capacity} slots are full"


class RingSource(Port):
    """The consumer's end of all rings; producers are served round-robin, so none is starved."""

    def __init__(self, queue: RingQueue) -> None:
        super().__init__(queue.name, queue.filled)
        self._rings, self._freed, self.notifier = queue.rings(), queue.freed, queue.filled
        self._committed, self._released = queue.committed, queue.released
        self._turn, self._wanted = self._rings[0].next, 1
        self._after = 0
        """The ring whose turn it will be when what was taken is released."""
        self._taken: list[int] = []

    def take(self, count: int, most: list[int] | None = None) -> list[Unroll] | None:
        """`most` limits how many come from each ring."""
        self._wanted = count
        available: list[int] = (self._committed - self._released).tolist()
        if most is not None:
            available = [min(pair) for pair in zip(available, most, strict=True)]
        if sum(available) < count:
            return None
        used, turn = [0] * len(self._rings), int(self._turn[0])
        batch: list[Unroll] = []
        while len(batch) < count:
            i, turn = turn, (turn + 1) % len(self._rings)
            if used[i] < available[i]:
                ring = self._rings[i]
                batch.append(ring.slots[int(ring.released[0] + used[i]) % ring.capacity])
                used[i] += 1
        self._taken, self._after = used, turn
        return batch

    def release(self) -> None:
        for i, count in enumerate(self._taken):
            if count:
                self._rings[i].released[0] += count
                self._freed[i].notify()
        if self._taken:
            self._turn[0] = self._after
        self._taken = []

    def depth(self) -> int:
        return int((self._committed - self._released).sum())

    def explain(self) -> str:
        return f"{self.depth()} of {self._wanted} unrolls are ready"


class RingQueue:
    """A queue edge in memory."""

    def __init__(self, name: str, spec: Nest, producers: int, capacity: int, block: Block) -> None:
        self.name, self.meter = name, Meter()
        self._memory, self._spec, self._capacity = block.memory.reshape(producers, -1), spec, capacity
        counters = self._memory[:, :_COUNTERS].view(np.int64)
        self.committed, self.released = counters[:, 0], counters[:, 8]
        self.filled, *self.freed = block.notifiers

    def ring(self, producer: int) -> Ring:
        return Ring(self._memory[producer], self._spec, self._capacity)

    def rings(self) -> list[Ring]:
        """Those of all producers. A producer needs only its own: views of a thousand take megabytes."""
        return [self.ring(producer) for producer in range(len(self._memory))]

    @staticmethod
    def footprint(spec: Nest, producers: int, capacity: int) -> tuple[int, int]:
        return producers * (_COUNTERS + capacity * layout_bytes(spec)), 1 + producers

    def sink(self, producer: int) -> RingSink:
        return RingSink(self, producer)

    def source(self) -> RingSource:
        return RingSource(self)

    def mirror(self, hold: Hold | None) -> RingsMirror:
        rings = len(self._memory)
        return RingsMirror(
            ends=rings, committed=self.committed, released=self.released, sessions=np.zeros(rings, np.int64),
            slots=self._memory[:, _COUNTERS:].reshape(rings, self._capacity, -1),
            replies=np.zeros((rings, 0), np.uint8), filled=self.filled, freed=self.freed, hold=hold,
        )


def poison(ring: Ring) -> None:
    """Fill slots with values that no env produces."""
    for leaf in leaves_of(ring.slots):
        leaf.fill(np.nan if leaf.dtype.kind == "f" else True if leaf.dtype.kind == "b" else np.iinfo(leaf.dtype).max)
