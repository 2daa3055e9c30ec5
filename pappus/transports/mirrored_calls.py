"""Calls over several nodes.

    spoke's lane   sent and session are the caller's, answered its station's
    hub's lane     sent and session are the hub's station's, answered the desk's

A request is known by its end's epoch, the life of the spoke's station, and the spoke's `sent`. A hub applies each only
once, however often it comes; a spoke takes only the answer to what it asked last. Per stream:

    spoke → hub   hello: of each end its epoch
    hub → spoke   welcome: nothing
    spoke → hub   requests, each with lane, epoch, sent, session; all that are not answered come again in a new stream
    hub → spoke   replies, each with lane, epoch, sent
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from pappus.errors import WireError
from pappus.transports.calls import SharedCalls
from pappus.transports.memory import Block, layout_bytes
from pappus.transports.mirrors import Half, Peer, Placement, check_ends, lives_at, rows_of
from pappus.types import Array, Nest

BATCH_BYTES = 1 << 20
"""What is ready at once travels in one message, which costs more than its bytes; beyond this size no more."""
_HELLO = struct.Struct("<2q")
_REQUEST = struct.Struct("<4q")
_REPLY = struct.Struct("<3q")


class CallsMirror:
    """The lanes of one calls edge on one node, with their arrays as raw bytes."""

    def __init__(self, request: Nest, reply: Nest, callers: int, lanes: int, block: Block) -> None:
        self.ends, self.lanes = callers, lanes
        self.words = SharedCalls("", request, reply, callers, lanes, block)
        arrays = block.memory[-callers * lanes * layout_bytes((request, reply)) :].reshape(callers * lanes, -1)
        self.requests, self.replies = np.split(arrays, [layout_bytes(request)], axis=1)

    def hub(self, placement: Placement) -> CallsHub:
        return CallsHub(self, placement)

    def spoke(self, epochs: Mapping[int, int]) -> CallsSpoke:
        return CallsSpoke(self, epochs)

    def settle_as_hub(self, far: Collection[int]) -> None:
        lanes = self.lanes_of(far)
        self.words.answered[lanes] = self.words.sent[lanes]

    def settle_as_spoke(self, stale: Collection[int], other_hub: bool) -> None:
        lanes = self.lanes_of(stale)
        self.words.sent[lanes] = self.words.answered[lanes]

    def lanes_of(self, ends: Collection[int]) -> Array:
        """The numbers of these callers' lanes."""
        return np.array([end * self.lanes + i for end in ends for i in range(self.lanes)], np.int64)


class CallsSpoke:
    """Asks for the callers of this node."""

    seconds = 0.0

    def __init__(self, mirror: CallsMirror, epochs: Mapping[int, int]) -> None:
        self.bells = [mirror.words.asked]
        self._mirror, self._epochs = mirror, epochs
        self._lanes = mirror.lanes_of(epochs)
        self._batch = max(1, BATCH_BYTES // mirror.requests.shape[1])
        self._forwarded = np.zeros(len(mirror.words.sent), np.int64)

    def hello(self) -> bytes:
        return b"".join(_HELLO.pack(end, epoch) for end, epoch in self._epochs.items())

    def welcomed(self, message: bytes) -> None:
        self._forwarded[:] = self._mirror.words.answered

    def changes(self) -> Iterator[bytes]:
        words, lanes = self._mirror.words, self._lanes
        while True:
            sent = words.sent[lanes]
            waiting = (sent != words.answered[lanes]) & (sent != self._forwarded[lanes])
            asking = lanes[waiting][: self._batch].tolist()
            if not asking:
                return
            self._forwarded[asking] = words.sent[asking]
            yield b"".join(part for lane in asking for part in self._request(lane))

    def _request(self, lane: int) -> tuple[bytes, memoryview]:
        words, epoch = self._mirror.words, self._epochs[lane // self._mirror.lanes]
        head = _REQUEST.pack(lane, epoch, words.sent[lane], words.session[lane])
        return head, self._mirror.requests[lane].data

    def apply(self, message: bytes) -> None:
        words, replies, rung = self._mirror.words, self._mirror.replies, set[int]()
        for (lane, epoch, number), reply in _records(_REPLY, replies, message):
            end, sent = lane // self._mirror.lanes, int(words.sent[lane])
            if self._epochs.get(end) == epoch and number == sent != words.answered[lane]:
                replies[lane] = reply
                words.answered[lane] = sent
                rung.add(end)
        for end in rung:
            words.replied[end].ring()


class CallsHub:
    """Puts the requests of far callers before the desk; what it has applied outlasts their streams."""

    def __init__(self, mirror: CallsMirror, placement: Placement) -> None:
        self.placement, self.bells = placement, mirror.words.replied
        self.mirror = mirror
        self.applied: dict[int, Asked] = {}
        """Of each lane the last request."""

    def greet(self, peer: Peer, hello: bytes) -> tuple[Half, bytes]:
        check_ends(self.placement, peer.node, ((row[0], row[1]) for row in rows_of(_HELLO, hello)))
        return CallsStream(self, peer), b""

    def apply(self, lane: int, asked: Asked, request: Array) -> None:
        """Only for a lane without an unanswered request, whose arrays are the station's."""
        words, before = self.mirror.words, self.applied.get(lane)
        self.mirror.requests[lane] = request
        if before is None or before.asker != asked.asker:
            words.session[lane] += 1
        words.sent[lane] += 1
        self.applied[lane] = asked
        words.asked.ring()


class Asked(NamedTuple):
    """What tells requests of a lane apart."""

    asker: tuple[int, int, int]
    """The end's epoch, the life of its station, and the session: another asker has other envs."""
    number: int


class CallsStream:
    """The hub's half of one spoke's stream."""

    seconds = 0.0

    def __init__(self, hub: CallsHub, peer: Peer) -> None:
        self._hub, self._peer = hub, peer
        self._batch = max(1, BATCH_BYTES // hub.mirror.replies.shape[1])
        self._owed: dict[int, Asked] = {}
        """Requests that were applied, and whose reply this stream has not brought."""
        self._aside: dict[int, tuple[Asked, Array]] = {}
        """Requests of lanes in which a predecessor's is not answered yet. That answer goes to nobody."""

    def apply(self, message: bytes) -> None:
        words = self._hub.mirror.words
        for (lane, epoch, number, session), request in _records(_REQUEST, self._hub.mirror.requests, message):
            asked = Asked((epoch, self._peer.life, session), number)
            if not self._lives(lane, asked):
                continue
            if self._hub.applied.get(lane) == asked:
                self._owed[lane] = asked
            elif words.sent[lane] != words.answered[lane]:
                self._aside[lane] = asked, request
            else:
                self._apply(lane, asked, request)

    def changes(self) -> Iterator[bytes]:
        words = self._hub.mirror.words
        for lane in [lane for lane in self._aside if words.sent[lane] == words.answered[lane]]:
            asked, request = self._aside.pop(lane)
            if self._lives(lane, asked):
                self._apply(lane, asked, request)
        while answered := [lane for lane in self._owed if words.sent[lane] == words.answered[lane]][: self._batch]:
            yield b"".join(part for lane in answered for part in self._reply(lane, self._owed.pop(lane)))

    def _apply(self, lane: int, asked: Asked, request: Array) -> None:
        self._hub.apply(lane, asked, request)
        self._owed[lane] = asked

    def _reply(self, lane: int, asked: Asked) -> tuple[bytes, memoryview] | tuple[()]:
        if self._hub.applied.get(lane) != asked or not self._lives(lane, asked):
            return ()  # the caller moved
        return _REPLY.pack(lane, asked.asker[0], asked.number), self._hub.mirror.replies[lane].data

    def _lives(self, lane: int, asked: Asked) -> bool:
        end = lane // self._hub.mirror.lanes
        return lives_at(self._hub.placement, end, self._peer.node, asked.asker[0])


def _records(layout: struct.Struct, arrays: Array, message: bytes) -> Iterator[tuple[tuple[int, ...], Array]]:
    """The headers of a message, each with the bytes that go into its lane's row of `arrays`."""
    lanes, size = arrays.shape
    stride = layout.size + size
    if len(message) % stride:
        raise WireError(f"a message of {len(message)} bytes is not made of records of {stride}")
    for at in range(0, len(message), stride):
        header = layout.unpack_from(message, at)
        if not 0 <= header[0] < lanes:
            raise WireError(f"lane {header[0]} is none of the {lanes} lanes")
        yield header, np.frombuffer(message, np.uint8, size, at + layout.size)
