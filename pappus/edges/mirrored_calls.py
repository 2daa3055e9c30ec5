"""Calls over several nodes.

    spoke's env group   sent and session are the client's, answered its node agent's
    hub's env group     sent and session are the hub's node agent's, answered the request server's

A request is identified by its end's epoch, the life of the spoke's node agent, and the spoke's `sent`. A hub applies
each only once, however often it arrives; a spoke takes only the answer to its last request. Per stream:

    spoke → hub   hello: of each end its epoch
    hub → spoke   welcome: nothing
    spoke → hub   requests, each with env group, epoch, sent, session; a new stream repeats unanswered ones
    hub → spoke   replies, each with env group, epoch, sent
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from pappus.edges.calls import SharedCalls
from pappus.errors import WireError
from pappus.transports.memory import Block, layout_bytes
from pappus.transports.mirrors import Half, Peer, PortLocations, check_ends, lives_at, rows_of
from pappus.types import Array, Nest

BATCH_BYTES = 1 << 20
"""Largest message: what is ready at once is sent together, since a message costs more than its bytes."""
_HELLO = struct.Struct("<2q")
_REQUEST = struct.Struct("<4q")
_REPLY = struct.Struct("<3q")


class CallsMirror:
    """The env groups of one calls edge on one node, with their arrays as raw bytes."""

    def __init__(self, request: Nest, reply: Nest, clients: int, env_groups: int, block: Block) -> None:
        self.ends, self.env_groups = clients, env_groups
        self.words = SharedCalls("", request, reply, clients, env_groups, block)
        total = clients * env_groups
        arrays = block.memory[-total * layout_bytes((request, reply)) :].reshape(total, -1)
        self.requests, self.replies = np.split(arrays, [layout_bytes(request)], axis=1)

    def hub(self, placement: PortLocations) -> CallsHub:
        return CallsHub(self, placement)

    def spoke(self, epochs: Mapping[int, int]) -> CallsSpoke:
        return CallsSpoke(self, epochs)

    def settle_as_hub(self, far: Collection[int]) -> None:
        env_groups = self.env_groups_of(far)
        self.words.answered[env_groups] = self.words.sent[env_groups]

    def settle_as_spoke(self, stale: Collection[int], other_hub: bool) -> None:
        env_groups = self.env_groups_of(stale)
        self.words.sent[env_groups] = self.words.answered[env_groups]

    def env_groups_of(self, ends: Collection[int]) -> Array:
        """The numbers of these clients' env groups."""
        return np.array([end * self.env_groups + i for end in ends for i in range(self.env_groups)], np.int64)


class CallsSpoke:
    """Asks for the clients of this node."""

    seconds = 0.0

    def __init__(self, mirror: CallsMirror, epochs: Mapping[int, int]) -> None:
        self.notifiers = [mirror.words.asked]
        self._mirror, self._epochs = mirror, epochs
        self._env_groups = mirror.env_groups_of(epochs)
        self._batch = max(1, BATCH_BYTES // mirror.requests.shape[1])
        self._forwarded = np.zeros(len(mirror.words.sent), np.int64)

    def hello(self) -> bytes:
        return b"".join(_HELLO.pack(end, epoch) for end, epoch in self._epochs.items())

    def welcomed(self, message: bytes) -> None:
        self._forwarded[:] = self._mirror.words.answered

    def changes(self) -> Iterator[bytes]:
        words, env_groups = self._mirror.words, self._env_groups
        while True:
            sent = words.sent[env_groups]
            waiting = (sent != words.answered[env_groups]) & (sent != self._forwarded[env_groups])
            asking = env_groups[waiting][: self._batch].tolist()
            if not asking:
                return
            self._forwarded[asking] = words.sent[asking]
            yield b"".join(part for env_group in asking for part in self._request(env_group))

    def _request(self, env_group: int) -> tuple[bytes, memoryview]:
        words, epoch = self._mirror.words, self._epochs[env_group // self._mirror.env_groups]
        head = _REQUEST.pack(env_group, epoch, words.sent[env_group], words.session[env_group])
        return head, self._mirror.requests[env_group].data

    def apply(self, message: bytes) -> None:
        words, replies, rung = self._mirror.words, self._mirror.replies, set[int]()
        for (env_group, epoch, number), reply in _records(_REPLY, replies, message):
            end, sent = env_group // self._mirror.env_groups, int(words.sent[env_group])
            if self._epochs.get(end) == epoch and number == sent != words.answered[env_group]:
                replies[env_group] = reply
                words.answered[env_group] = sent
                rung.add(end)
        for end in rung:
            words.replied[end].notify()


class CallsHub:
    """Passes the requests of far clients to the request server; what it has applied outlasts their streams."""

    def __init__(self, mirror: CallsMirror, placement: PortLocations) -> None:
        self.placement, self.notifiers = placement, mirror.words.replied
        self.mirror = mirror
        self.applied: dict[int, Asked] = {}
        """Of each env group the last request."""

    def greet(self, peer: Peer, hello: bytes) -> tuple[Half, bytes]:
        check_ends(self.placement, peer.node, ((row[0], row[1]) for row in rows_of(_HELLO, hello)))
        return CallsStream(self, peer), b""

    def apply(self, env_group: int, asked: Asked, request: Array) -> None:
        """Only for an env group without an unanswered request, whose arrays are the node agent's."""
        words, before = self.mirror.words, self.applied.get(env_group)
        self.mirror.requests[env_group] = request
        if before is None or before.asker != asked.asker:
            words.session[env_group] += 1
        words.sent[env_group] += 1
        self.applied[env_group] = asked
        words.asked.notify()


class Asked(NamedTuple):
    """Identifies a request of an env group."""

    asker: tuple[int, int, int]
    """The end's epoch, the life of its node agent, and the session: another asker has other envs."""
    number: int


class CallsStream:
    """The hub's half of one spoke's stream."""

    seconds = 0.0

    def __init__(self, hub: CallsHub, peer: Peer) -> None:
        self._hub, self._peer = hub, peer
        self._batch = max(1, BATCH_BYTES // hub.mirror.replies.shape[1])
        self._owed: dict[int, Asked] = {}
        """Requests that were applied, and whose reply this stream has not sent."""
        self._aside: dict[int, tuple[Asked, Array]] = {}
        """Requests of env groups in which a predecessor's is not answered yet. That answer is dropped."""

    def apply(self, message: bytes) -> None:
        words = self._hub.mirror.words
        for (env_group, epoch, number, session), request in _records(_REQUEST, self._hub.mirror.requests, message):
            asked = Asked((epoch, self._peer.life, session), number)
            if not self._lives(env_group, asked):
                continue
            if self._hub.applied.get(env_group) == asked:
                self._owed[env_group] = asked
            elif words.sent[env_group] != words.answered[env_group]:
                self._aside[env_group] = asked, request
            else:
                self._apply(env_group, asked, request)

    def changes(self) -> Iterator[bytes]:
        words = self._hub.mirror.words
        for env_group in [env_group for env_group in self._aside if words.sent[env_group] == words.answered[env_group]]:
            asked, request = self._aside.pop(env_group)
            if self._lives(env_group, asked):
                self._apply(env_group, asked, request)
        while answered := [group for group in self._owed if words.sent[group] == words.answered[group]][: self._batch]:
            yield b"".join(part for group in answered for part in self._reply(group, self._owed.pop(group)))

    def _apply(self, env_group: int, asked: Asked, request: Array) -> None:
        self._hub.apply(env_group, asked, request)
        self._owed[env_group] = asked

    def _reply(self, env_group: int, asked: Asked) -> tuple[bytes, memoryview] | tuple[()]:
        if self._hub.applied.get(env_group) != asked or not self._lives(env_group, asked):
            return ()  # the client moved
        return _REPLY.pack(env_group, asked.asker[0], asked.number), self._hub.mirror.replies[env_group].data

    def _lives(self, env_group: int, asked: Asked) -> bool:
        end = env_group // self._hub.mirror.env_groups
        return lives_at(self._hub.placement, end, self._peer.node, asked.asker[0])


def _records(layout: struct.Struct, arrays: Array, message: bytes) -> Iterator[tuple[tuple[int, ...], Array]]:
    """The headers of a message, each with the bytes that go into its env group's row of `arrays`."""
    env_groups, size = arrays.shape
    stride = layout.size + size
    if len(message) % stride:
        raise WireError(f"a message of {len(message)} bytes is not made of records of {stride}")
    for at in range(0, len(message), stride):
        header = layout.unpack_from(message, at)
        if not 0 <= header[0] < env_groups:
            raise WireError(f"env group {header[0]} is none of the {env_groups} env groups")
        yield header, np.frombuffer(message, np.uint8, size, at + layout.size)
