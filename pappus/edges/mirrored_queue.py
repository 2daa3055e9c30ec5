"""A queue over several nodes.

    spoke's ring   committed is the producer's, released its node agent's
    hub's ring     committed is the hub's node agent's, released the consumer's

Slots are numbered by the spoke's `committed`. A slot is released at the spoke only when the consumer has released it,
so what a hub may lose when it dies is still at the spokes and is sent again to the next one. Per stream:

    spoke → hub   hello: of each end its epoch, released, committed
    hub → spoke   welcome: of each end its epoch, R (released by the consumer), C (the slot to continue with)
    spoke → hub   end, epoch, number, the slot's bytes; only numbers below R + capacity, so that the hub has room
    hub → spoke   of each end that changed its epoch and R
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Collection, Iterator, Mapping

import numpy as np

from pappus.edges.queue import RingQueue, ring_bytes
from pappus.errors import WireError
from pappus.transports.memory import Block
from pappus.transports.mirrors import Half, Hold, Peer, PortLocations, check_ends, lives_at, rows_of
from pappus.types import Nest

_STATE = struct.Struct("<4q")
_SLOT = struct.Struct("<3q")
_RELEASED = struct.Struct("<3q")


class QueueMirror:
    """The rings of one queue on one node, with their slots as raw bytes."""

    def __init__(self, spec: Nest, producers: int, capacity: int, block: Block, hold: Hold | None = None) -> None:
        self.ends, self.capacity, self.hold = producers, capacity, hold
        self.rings = RingQueue("", spec, producers, capacity, block).rings
        slots = block.memory.reshape(producers, -1)[:, ring_bytes(spec, 0) :]
        self.slots = [memory.reshape(capacity, -1) for memory in slots]
        self.filled, *self.freed = block.notifiers

    def hub(self, placement: PortLocations) -> QueueHub:
        return QueueHub(self, placement)

    def spoke(self, epochs: Mapping[int, int]) -> QueueSpoke:
        return QueueSpoke(self, epochs)

    def settle_as_hub(self, far: Collection[int]) -> None:
        for end in far:
            self.rings[end].released[0] = self.rings[end].committed[0]

    def settle_as_spoke(self, stale: Collection[int], other_hub: bool) -> None:
        for end in stale:
            self.rings[end].committed[0] = self.rings[end].released[0]


class QueueSpoke:
    """Sends what producers of this node commit."""

    seconds = 0.0

    def __init__(self, mirror: QueueMirror, epochs: Mapping[int, int]) -> None:
        self.notifiers = [mirror.filled]
        self._mirror, self._epochs = mirror, epochs
        self._next: dict[int, int] = {}
        self._limit: dict[int, int] = {}

    def hello(self) -> bytes:
        self._next, self._limit = {}, {}
        words = ((end, epoch, self._mirror.rings[end]) for end, epoch in self._epochs.items())
        return b"".join(_STATE.pack(end, epoch, ring.released[0], ring.committed[0]) for end, epoch, ring in words)

    def welcomed(self, message: bytes) -> None:
        for end, epoch, released, going_on in rows_of(_STATE, message):
            if self._epochs.get(end) == epoch:
                self._next[end] = going_on
                self._release(end, released)

    def changes(self) -> Iterator[bytes]:
        rings = self._mirror.rings
        while ready := [i for i, n in self._next.items() if n < min(int(rings[i].committed[0]), self._limit[i])]:
            for end in ready:  # in turn, so that none is starved
                number = self._next[end]
                self._next[end] += 1
                slot = self._mirror.slots[end][number % self._mirror.capacity]
                yield b"".join((_SLOT.pack(end, self._epochs[end], number), slot.data))

    def apply(self, message: bytes) -> None:
        for end, epoch, released in rows_of(_RELEASED, message):
            if self._epochs.get(end) == epoch:
                self._release(end, released)

    def _release(self, end: int, released: int) -> None:
        ring = self._mirror.rings[end]
        if released > self._next[end] or self._next[end] > ring.committed[0]:
            raise WireError(
                f"producer {end} has committed {ring.committed[0]} slots, and by the hub's word {released} are "
                f"released and {self._next[end]} have arrived; neither can be more than the one before"
            )
        self._limit[end] = released + ring.capacity
        if released > ring.released[0]:
            ring.released[0] = released
            self._mirror.freed[end].notify()


class QueueHub:
    """Takes the slots of far producers; what it knows of them outlasts their streams."""

    def __init__(self, mirror: QueueMirror, placement: PortLocations) -> None:
        self.placement, self.notifiers = placement, mirror.freed
        self.mirror = mirror
        self._offsets: dict[int, tuple[int, int, int]] = {}
        """Of each end its epoch, its node agent's life, and what to add to the spoke's numbers to get the hub's."""
        self._notes: dict[int, deque[tuple[int, int]]] = {}
        """Of each end the steps of `released`, with the weights that each has to wait for. The first step was made."""

    def greet(self, peer: Peer, hello: bytes) -> tuple[Half, bytes]:
        rows = rows_of(_STATE, hello)
        check_ends(self.placement, peer.node, ((row[0], row[1]) for row in rows))
        half = QueueStream(self, peer.node)
        offsets = [self._offset(end, epoch, peer.life, released) for end, epoch, released, _ in rows]
        return half, b"".join(half.begin(row[0], row[1], offset) for row, offset in zip(rows, offsets, strict=True))

    def returned(self, end: int, node: str) -> int:
        """How many slots the consumer has released, as far as that node may know."""
        released, hold, notes = int(self.mirror.rings[end].released[0]), self.mirror.hold, self._notes[end]
        if hold is None:
            return released
        if released > notes[-1][0]:
            version = hold.version()  # read after `released`, so that it is not older than the release
            if len(notes) > 1 and notes[-1][1] == version:
                notes.pop()
            notes.append((released, version))
        delivered = hold.delivered(node) if len(notes) > 1 else -1
        while len(notes) > 1 and notes[1][1] <= delivered:
            notes.popleft()
        return notes[0][0]

    def _offset(self, end: int, epoch: int, life: int, spoke_released: int) -> int:
        """What is known, or, for an end that is new to this hub, such that its oldest slot is expected next."""
        known = self._offsets.get(end)
        if known is not None and known[:2] == (epoch, life):
            return known[2]
        ring = self.mirror.rings[end]
        offset = int(ring.committed[0]) - spoke_released
        self._offsets[end] = epoch, life, offset
        self._notes[end] = deque([(int(ring.released[0]), -1)])
        return offset


class QueueStream:
    """The hub's half of one spoke's stream."""

    seconds = 0.0

    def __init__(self, hub: QueueHub, node: str) -> None:
        self._hub, self._node = hub, node
        self._ends: dict[int, tuple[int, int]] = {}
        """Epochs and offsets."""
        self._told: dict[int, int] = {}

    def begin(self, end: int, epoch: int, offset: int) -> bytes:
        """The welcome for one end."""
        self._ends[end], self._told[end] = (epoch, offset), self._hub.returned(end, self._node)
        committed = int(self._hub.mirror.rings[end].committed[0])
        return _STATE.pack(end, epoch, self._told[end] - offset, committed - offset)

    def changes(self) -> Iterator[bytes]:
        rows = []
        for end, (epoch, offset) in self._ends.items():
            if not lives_at(self._hub.placement, end, self._node, epoch):
                continue
            returned = self._hub.returned(end, self._node)
            if returned > self._told[end]:
                self._told[end] = returned
                rows.append(_RELEASED.pack(end, epoch, returned - offset))
        if rows:
            yield b"".join(rows)

    def apply(self, message: bytes) -> None:
        if len(message) < _SLOT.size:
            raise WireError(f"a message of {len(message)} bytes is no slot")
        end, epoch, number = _SLOT.unpack_from(message)
        if end not in self._ends or not lives_at(self._hub.placement, end, self._node, epoch):
            return  # it was in flight when the producer moved
        mirror, ring = self._hub.mirror, self._hub.mirror.rings[end]
        committed = int(ring.committed[0])
        number += self._ends[end][1]
        if number < committed:
            return  # a former stream has brought it already
        slot = mirror.slots[end][number % mirror.capacity]
        if number > committed or ring.ready() >= mirror.capacity or len(message) - _SLOT.size != slot.nbytes:
            raise WireError(
                f"slot {number} of producer {end} came as {len(message) - _SLOT.size} bytes; slot {committed} of "
                f"{slot.nbytes} bytes is expected, and {mirror.capacity - ring.ready()} are free"
            )
        slot[:] = np.frombuffer(message, np.uint8, offset=_SLOT.size)
        ring.committed[0] = committed + 1
        mirror.filled.notify()
