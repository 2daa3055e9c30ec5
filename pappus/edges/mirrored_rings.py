"""Rings over several nodes: those of a queue, and those of calls, whose releases carry replies.

    spoke's ring   committed and session are the producer's, released its node agent's
    hub's ring     committed and session are the hub's node agent's, released the consumer's

Slots are numbered by the spoke's `committed`. A slot is released at the spoke only when the consumer has released it,
so what a hub may lose when it dies is still at the spokes and is sent again to the next one. A hub applies each slot
once, however often it arrives. Per stream:

    spoke → hub   hello: of each ring its epoch and released
    hub → spoke   welcome: of each ring its epoch, R (released by the consumer), C (the slot to continue with), reply
    spoke → hub   slots: ring, epoch, number, session, bytes; only numbers below R + capacity, so that the hub has room
    hub → spoke   of each ring that changed the same
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pappus.errors import WireError
from pappus.transports.memory import Notifier
from pappus.transports.mirrors import Half, Hold, Peer, PortLocations, check_ends, lives_at, rows_of
from pappus.types import Array

BATCH_BYTES = 1 << 20
"""Largest message of several slots: what is ready is sent together, since a message costs more than its bytes."""
_HELLO = struct.Struct("<3q")
_STATE = struct.Struct("<4q")
_SLOT = struct.Struct("<4q")


@dataclass(eq=False)
class RingsMirror:
    """The R rings of an edge on one node, as raw bytes; each end has the same number of them, one after the other."""

    ends: int
    committed: Array
    """`[R]` int64, as are `released` and `sessions`."""
    released: Array
    sessions: Array
    """Another session of the same ring is another producer."""
    slots: Array
    """`[R, capacity, bytes]`."""
    replies: Array
    """`[R, bytes]`: what the last release of each ring hands back; no bytes for a queue."""
    filled: Notifier
    freed: list[Notifier]
    """One of each end."""
    hold: Hold | None = None

    def __post_init__(self) -> None:
        self.per_end, self.capacity = len(self.committed) // self.ends, int(self.slots.shape[1])

    def notifiers(self) -> tuple[Sequence[Notifier], Sequence[Notifier]]:
        return [self.filled], self.freed

    def hub(self, placement: PortLocations) -> RingsHub:
        return RingsHub(self, placement)

    def spoke(self, epochs: Mapping[int, int]) -> RingsSpoke:
        return RingsSpoke(self, epochs)

    def settle_as_hub(self, far: Collection[int]) -> None:
        rings = self.rings_of(far)
        self.released[rings] = self.committed[rings]

    def settle_as_spoke(self, stale: Collection[int], other_hub: bool) -> None:
        rings = self.rings_of(stale)
        self.committed[rings] = self.released[rings]

    def rings_of(self, ends: Collection[int]) -> Array:
        return np.array([end * self.per_end + i for end in ends for i in range(self.per_end)], np.int64)


class RingsSpoke:
    """Sends what producers of this node commit."""

    seconds = 0.0

    def __init__(self, mirror: RingsMirror, epochs: Mapping[int, int]) -> None:
        self._mirror = mirror
        self._epochs = {ring: epochs[ring // mirror.per_end] for ring in mirror.rings_of(epochs).tolist()}
        self._batch = max(1, BATCH_BYTES // max(1, mirror.slots.shape[2]))
        self._next, self._limit = np.zeros((2, len(mirror.committed)), np.int64)

    def hello(self) -> bytes:
        self._next[:] = self._limit[:] = 0  # nothing is sent before the welcome
        return b"".join(_HELLO.pack(ring, epoch, self._mirror.released[ring]) for ring, epoch in self._epochs.items())

    def welcomed(self, message: bytes) -> None:
        for (ring, epoch, _, going_on), _ in _records(_STATE, self._mirror.replies, message):
            if self._epochs.get(ring) == epoch:
                self._next[ring] = going_on
        self.apply(message)

    def changes(self) -> Iterator[bytes]:
        while ready := (self._next < np.minimum(self._mirror.committed, self._limit)).nonzero()[0].tolist():
            for start in range(0, len(ready), self._batch):  # one slot of each, so that none is starved
                yield b"".join(part for ring in ready[start : start + self._batch] for part in self._slot(ring))

    def _slot(self, ring: int) -> tuple[bytes, memoryview]:
        mirror, number = self._mirror, int(self._next[ring])
        self._next[ring] += 1
        head = _SLOT.pack(ring, self._epochs[ring], number, mirror.sessions[ring])
        return head, mirror.slots[ring, number % mirror.capacity].data

    def apply(self, message: bytes) -> None:
        mirror, freed = self._mirror, set[int]()
        for (ring, epoch, released, _), reply in _records(_STATE, mirror.replies, message):
            if self._epochs.get(ring) != epoch:
                continue
            committed, arrived = mirror.committed[ring], self._next[ring]
            if released > arrived or arrived > committed:
                raise WireError(
                    f"ring {ring} has committed {committed} slots, and by the hub's word {released} are released and "
                    f"{arrived} have arrived; neither can be more than the one before"
                )
            self._limit[ring] = released + mirror.capacity
            if released > mirror.released[ring]:
                mirror.replies[ring] = reply
                mirror.released[ring] = released
                freed.add(ring // mirror.per_end)
        for end in freed:
            mirror.freed[end].notify()


class RingState(NamedTuple):
    """What a hub knows of a far ring, for as long as its epoch and the life of its node agent are the same."""

    epoch: int
    offset: int
    """What to add to the spoke's numbers to get the hub's."""
    notes: deque[tuple[int, int]]
    """The steps of `released`, with the weights that each has to wait for. The first step was made."""


class RingsHub:
    """Takes the slots of far producers; what it knows of them outlasts their streams."""

    def __init__(self, mirror: RingsMirror, placement: PortLocations) -> None:
        self.placement, self.mirror = placement, mirror
        self.producers: dict[int, tuple[int, int, int]] = {}
        """Of each ring's last slot: the epoch, the life of the node agent, and the session."""
        self._states: dict[tuple[int, int, int], RingState] = {}
        """By ring, epoch and life."""

    def greet(self, peer: Peer, hello: bytes) -> tuple[Half, bytes]:
        rows = rows_of(_HELLO, hello)
        check_ends(self.placement, peer.node, ((ring // self.mirror.per_end, epoch) for ring, epoch, _ in rows))
        states = {ring: self._state(ring, epoch, released, peer.life) for ring, epoch, released in rows}
        half = RingsStream(self, peer, states)
        return half, half.welcome()

    def _state(self, ring: int, epoch: int, spoke_released: int, life: int) -> RingState:
        """What is known, or, for a ring that is new to this hub, such that its oldest slot is expected next."""
        committed, released = int(self.mirror.committed[ring]), int(self.mirror.released[ring])
        new = RingState(epoch, committed - spoke_released, deque([(released, -1)]))
        return self._states.setdefault((ring, epoch, life), new)


class RingsStream:
    """The hub's half of one spoke's stream."""

    seconds = 0.0

    def __init__(self, hub: RingsHub, peer: Peer, states: Mapping[int, RingState]) -> None:
        self._hub, self._mirror, self._peer, self._states = hub, hub.mirror, peer, states
        self._told = self._returned()

    def welcome(self) -> bytes:
        return b"".join(part for ring in self._states for part in self._state(ring))

    def changes(self) -> Iterator[bytes]:
        returned = self._returned()
        changed = (returned > self._told).nonzero()[0].tolist()
        self._told = returned
        living = [ring for ring in changed if ring in self._states and self._lives(ring, self._states[ring].epoch)]
        if living:
            yield b"".join(part for ring in living for part in self._state(ring))

    def apply(self, message: bytes) -> None:
        mirror = self._mirror
        for (ring, epoch, number, session), slot in _records(_SLOT, mirror.slots[:, 0], message):
            if ring not in self._states or not self._lives(ring, epoch):
                continue  # it was in flight when the producer moved
            committed, ready = int(mirror.committed[ring]), int(mirror.committed[ring] - mirror.released[ring])
            number += self._states[ring].offset
            if number < committed:
                continue  # a former stream has brought it already
            if number > committed or ready >= mirror.capacity:
                raise WireError(
                    f"slot {number} of ring {ring} came; slot {committed} is expected, and {mirror.capacity - ready} "
                    "are free"
                )
            self._commit(ring, (epoch, self._peer.life, session), slot)

    def _commit(self, ring: int, producer: tuple[int, int, int], slot: Array) -> None:
        mirror = self._mirror
        mirror.slots[ring, int(mirror.committed[ring]) % mirror.capacity] = slot
        if self._hub.producers.get(ring) != producer:
            self._hub.producers[ring] = producer
            mirror.sessions[ring] += 1
        mirror.committed[ring] += 1
        mirror.filled.notify()

    def _state(self, ring: int) -> tuple[bytes, memoryview]:
        epoch, offset, _ = self._states[ring]
        head = _STATE.pack(ring, epoch, self._told[ring] - offset, self._mirror.committed[ring] - offset)
        return head, self._mirror.replies[ring].data

    def _lives(self, ring: int, epoch: int) -> bool:
        return lives_at(self._hub.placement, ring // self._mirror.per_end, self._peer.node, epoch)

    def _returned(self) -> Array:
        """How many slots of each ring the consumer has released, as far as this spoke may know."""
        returned = self._mirror.released.copy()
        if self._mirror.hold is not None:
            for ring, state in self._states.items():
                returned[ring] = self._held(state.notes, self._mirror.hold, int(returned[ring]))
        return returned

    def _held(self, notes: deque[tuple[int, int]], hold: Hold, released: int) -> int:
        if released > notes[-1][0]:
            version = hold.version()  # read after `released`, so that it is not older than the release
            if len(notes) > 1 and notes[-1][1] == version:
                notes.pop()
            notes.append((released, version))
        delivered = hold.delivered(self._peer.node) if len(notes) > 1 else -1
        while len(notes) > 1 and notes[1][1] <= delivered:
            notes.popleft()
        return notes[0][0]


def _records(layout: struct.Struct, rows: Array, message: bytes) -> Iterator[tuple[tuple[int, ...], Array]]:
    """The heads of a message, each with the bytes for its ring's row."""
    rings, size = rows.shape
    stride = layout.size + size
    if len(message) % stride:
        raise WireError(f"a message of {len(message)} bytes is not made of records of {stride}")
    for at in range(0, len(message), stride):
        head = layout.unpack_from(message, at)
        if not 0 <= head[0] < rings:
            raise WireError(f"ring {head[0]} is none of the {rings} rings")
        yield head, np.frombuffer(message, np.uint8, size, at + layout.size)
