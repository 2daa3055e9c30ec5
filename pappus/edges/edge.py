"""What an edge is: data in a program, memory where it runs, and a port for each role that holds an end.

    topology:  edge = program.connect(QueueEdge("unrolls", …))      data, nothing is opened
               program.add(ACTOR, build_actor, sink=edge.sink(0))   a PortRef
    runtime:   block = edge.new_block(SharedBlock.create)           once per edge (and per node of a cluster)
               transport = edge.open(block)                         once per edge and process
               sink = ref.connect(transport)                        the port that `build_actor` receives

An edge of your own is one file: a frozen dataclass derived from `Edge` with `memory`, `open` and a method for each end
that returns a `PortRef`, the class that `open` returns (the transport), and its ports.

    @dataclass(frozen=True)
    class SignalEdge(Edge):
        def memory(self) -> tuple[int, int]:
            return 8, 1                                             # a word, and a notifier

        def open(self, block: Block) -> Signal:
            return Signal(self.name, block)

        def sender(self) -> PortRef[Sender]:
            return PortRef(self.name, Signal.sender)

A port that can keep a role waiting derives from `Port`. What else it may offer: `core.Waitable`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pappus.errors import RunError
from pappus.transports.memory import Block, Notifier

if TYPE_CHECKING:
    from pappus.recording.shared import ServiceDirectory
    from pappus.transports.mirrors import Hold, Mirror

P = TypeVar("P", covariant=True)
B = TypeVar("B", bound=Block)


@dataclass(frozen=True)
class PortRef(Generic[P]):
    """One end of an edge, given to a role's builder in place of the port that it will become."""

    edge: str
    port: Callable[..., P]
    """Makes the port, from the edge's transport and `arguments`; a function, so that equal ends are equal refs."""
    arguments: tuple[int, ...] = ()

    def connect(self, transport: Any) -> P:
        return self.port(transport, *self.arguments)

    def __str__(self) -> str:
        """`unrolls.sink(0)`."""
        return f"{self.edge}.{self.port.__name__.lstrip('_')}({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True)
class Edge:
    """A kind of connection between roles. All but `memory` and `open` has a default that is right on one machine."""

    name: str

    saved: ClassVar[bool] = True
    """Whether an exact resume of the inline runtime needs its memory."""
    broadcast: ClassVar[bool] = False
    """Whether a cluster copies what the hub publishes to all other ends through the object store."""

    @property
    def label(self) -> str:
        """`unrolls` for `unrolls-1`: edges that differ in a number only share their metrics."""
        return re.sub(r"-\d+$", "", self.name)

    def outline(self) -> Edge:
        """What a node agent must know of it: its memory, and how it is carried to other nodes."""
        return self

    def memory(self) -> tuple[int, int]:
        """Bytes and notifiers of its block."""
        raise NotImplementedError

    def open(self, block: Block) -> Any:
        """The transport over its block, of which refs make ports."""
        raise NotImplementedError

    def open_on_cluster(self, block: Block, services: ServiceDirectory | None) -> Any:
        """The same where `services` finds what is served on other nodes."""
        return self.open(block)

    def new_block(self, create: Callable[[int, int], B]) -> B:
        """A block of its own; `create` takes bytes and notifiers."""
        block = create(*self.memory())
        self.poison(block)
        return block

    def notifiers(self, ref: PortRef[Any]) -> Sequence[int]:
        """Numbers of the notifiers that the holder of an end uses. Its process gets no others: with one per actor,
        a thousand actors would have a thousand descriptors each."""
        return range(self.memory()[1])

    def poison(self, block: Block) -> None:
        """Fill fresh memory with values that no env produces, so that a field which was never written is noticed."""

    def hub(self) -> PortRef[Any] | None:
        """The end that all others communicate with; None if it cannot be carried between nodes."""
        return None

    def spokes(self) -> Sequence[PortRef[Any]]:
        """The other ends, by their number, if node agents mirror the edge."""
        return ()

    def mirror(self, block: Block, hold: Callable[[str], Hold]) -> Mirror:
        """What a node agent mirrors to other nodes; `hold` delays releases until a weights edge is delivered."""
        raise RunError(f"edge {self.name!r} is a {type(self).__name__}, which node agents do not carry between nodes")

    def shares_node(self, ref: PortRef[Any]) -> bool:
        """Whether the holders of all such ends must be on one node."""
        return False

    def reserves(self, ref: PortRef[Any]) -> int:
        """Bytes that the holder of an end allocates beside the block."""
        return 0


class Port:
    """Base of ports that one notifier wakes (`core.Waitable`)."""

    def __init__(self, name: str, notifier: Notifier) -> None:
        self.name, self._notifier = name, notifier
        self.fileno = notifier.fileno

    def explain(self) -> str:
        raise NotImplementedError

    def clear(self) -> None:
        self._notifier.clear()
