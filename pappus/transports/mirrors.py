"""Edges with ends on several nodes: each node has a block of its own, and node agents keep the blocks alike.

    node A (spoke)                                        node B (hub)
    producer 0 ─▶ ring 0 ─┐                          ┌─▶ ring 0 ─┐
    producer 1 ─▶ ring 1 ─┤ spoke ═══ a stream ═══ hub ─▶ ring 1 ─┼─▶ consumer
                                                        ring 2 ──┘
                                                          ▲ producer 2 (lives on B, and is not mirrored)

The hub is the node of the end that all others communicate with: the consumer of a queue, the request server of calls,
the reader of counters. Each other node that holds ends is a spoke. Roles know nothing of this.

Invariant: every word in memory has exactly one owner, a role or, if that role is on another node, the node agent. The
sides never copy counters: messages use the spoke's numbers, and the hub keeps the difference (the offset) for as long
as the end, its epoch and the life of the spoke's node agent are the same.

This is what node agents do, without network, threads or clocks. A *half* is one side of a stream.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from pappus.errors import WireError
from pappus.transports.memory import Notifier


class Misplaced(WireError):
    """The other side knows another placement. One of the two will get an update soon: try again."""


class PortLocations(NamedTuple):
    """Where the ends of an edge are.

    An epoch changes whenever its end moves to another node, not when a role restarts where it was. `hub` is a node,
    empty while no role holds that end.
    """

    hub: str
    hub_epoch: int
    hub_address: str
    """HOST:PORT of the hub's node agent."""
    ends: Mapping[int, tuple[str, int]]
    """Node and epoch of each producer, client or counter."""

    def at(self, node: str) -> dict[int, int]:
        """The epochs of the ends on a node."""
        return {end: epoch for end, (where, epoch) in sorted(self.ends.items()) if where == node}


class Hold(NamedTuple):
    """A slot is returned to its producer only when the weights that were published before its release are there."""

    version: Callable[[], int]
    """The newest version where the hub is."""
    delivered: Callable[[str], int]
    """The newest version that a node has."""


class Peer(NamedTuple):
    """A spoke as the hub knows it. A node agent that restarts with fresh memory has another life."""

    node: str
    life: int


class Half(Protocol):
    """One side of a stream. Neither method blocks, and both are called by one thread."""

    seconds: float
    """Check for changes this often, or, if 0, after each notification and each message."""

    def changes(self) -> Iterator[bytes]:
        """Messages for the other side, each made when it is asked for; the caller may stop early."""

    def apply(self, message: bytes) -> None:
        """Take what the other side sent. Raises `WireError` if it breaks the protocol: end the stream then."""


class Spoke(Half, Protocol):
    """The side that connects. All that must outlast a stream is in the block."""

    def hello(self) -> bytes:
        """The first message of each connection."""

    def welcomed(self, message: bytes) -> None:
        """Take the hub's answer; from now on there are changes."""


class Hub(Protocol):
    """The side that is connected to: it keeps what must outlast a stream, and makes a half for each stream."""

    placement: PortLocations
    """Ends may move while the hub stays."""

    def greet(self, peer: Peer, hello: bytes) -> tuple[Half, bytes]:
        """The half for a spoke's stream, and the answer to its hello. The peer's former half must not be used again.
        Raises `Misplaced` for ends that are not there."""


class Mirror(Protocol):
    """The memory of one edge on one node, from which a hub or a spoke is made."""

    @property
    def ends(self) -> int: ...

    def notifiers(self) -> tuple[Sequence[Notifier], Sequence[Notifier]]:
        """Those that ring where an end is, and, of each end, those that ring where the hub is."""

    def hub(self, placement: PortLocations) -> Hub: ...

    def spoke(self, epochs: Mapping[int, int]) -> Spoke: ...

    def settle_as_hub(self, far: Collection[int]) -> None:
        """A hub begins here: the state of ends on other nodes is stale, and of an earlier hub."""

    def settle_as_spoke(self, stale: Collection[int], other_hub: bool) -> None:
        """The hub is on another node: ends that are new here, or not here, begin with nothing in flight."""


class MirroredEdge:
    """One edge on one node: its half there, as placements change."""

    def __init__(self, node: str, mirror: Mirror) -> None:
        self.node, self._mirror = node, mirror
        self.placement = PortLocations("", 0, "", {})
        self.hub: Hub | None = None
        self.spoke: Spoke | None = None
        """A new object whenever a new stream is needed."""

    def place(self, placement: PortLocations) -> None:
        """Settle the counters. Roles that moved must not run meanwhile; those that stay may. A hub whose role restarts
        on its node must not be placed nowhere in between: it would begin afresh."""
        before, self.placement = self.placement, placement
        if placement.hub == self.node:
            self._become_hub(before)
        else:
            self._become_spoke(before)

    def _become_hub(self, before: PortLocations) -> None:
        self.spoke = None
        if self.hub is not None and before.hub_epoch == self.placement.hub_epoch:
            self.hub.placement = self.placement
            return
        near = self.placement.at(self.node)
        self._mirror.settle_as_hub([end for end in range(self._mirror.ends) if end not in near])
        self.hub = self._mirror.hub(self.placement)

    def _become_spoke(self, before: PortLocations) -> None:
        self.hub = None
        near, then = self.placement.at(self.node), before.at(self.node)
        stale = [end for end in range(self._mirror.ends) if end not in near or then.get(end) != near[end]]
        other_hub = before[:3] != self.placement[:3]  # another node, epoch or address
        self._mirror.settle_as_spoke(stale, other_hub)
        if not near or not self.placement.hub:
            self.spoke = None
        elif self.spoke is None or near != then or other_hub:
            self.spoke = self._mirror.spoke(near)

    def notifiers(self) -> dict[Notifier, str]:
        """The notifiers that the node agent listens to here, and the node that each concerns."""
        of_spoke, of_hub = self._mirror.notifiers()
        if self.hub is not None and of_hub:
            return {of_hub[end]: node for end, (node, _) in self.placement.ends.items() if node != self.node}
        return {notifier: self.placement.hub for notifier in of_spoke} if self.spoke is not None else {}


def lives_at(placement: PortLocations, end: int, node: str, epoch: int) -> bool:
    """Whether an end is still on that node, in that epoch."""
    return placement.ends.get(end) == (node, epoch)


def check_ends(placement: PortLocations, node: str, epochs: Iterable[tuple[int, int]]) -> None:
    """Raise `Misplaced` unless these ends are on that node in these epochs."""
    for end, epoch in epochs:
        if not lives_at(placement, end, node, epoch):
            where, known = placement.ends.get(end, ("nowhere", 0))
            raise Misplaced(
                f"end {end} is on {node} in epoch {epoch} by what the spoke says, and on {where} in epoch {known} by "
                "what the hub knows; one of them will get an update"
            )


def rows_of(layout: struct.Struct, message: bytes) -> list[tuple[int, ...]]:
    """A message that is a row of numbers for each of several ends."""
    if len(message) % layout.size:
        raise WireError(f"a message of {len(message)} bytes is not made of rows of {layout.size}")
    return list(layout.iter_unpack(message))
