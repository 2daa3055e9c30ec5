"""A program is data: nodes (roles to be), edges between them, and which nodes live together.

A topology is a function from a run to a `Program`. It starts nothing: a runtime builds the nodes where they
shall live and connects their `End`s by whatever transport joins those places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import optree

from pappus.config import WireConfig
from pappus.errors import UserError
from pappus.replay.spec import ReplaySpec
from pappus.roles.role import Role
from pappus.types import ArraySpec, Nest


@dataclass(frozen=True)
class End:
    """One end of an edge, handed to a role's constructor in place of the port that it will become."""

    edge: str
    side: Literal[
        "sink", "source", "writer", "reader", "caller", "desk", "giver", "taker", "keeper", "counter",
        "recorder", "sinks", "member",
    ]
    index: int = 0


@dataclass(frozen=True)
class QueueEdge:
    """A bounded queue of items from several producers to one consumer.

    With a `device`, the items lie there, and the one producer and the consumer share a process. With `after` (the name
    of a weights edge), a slot comes back to its producer no sooner than the weights that were published before it was
    released.
    """

    name: str
    spec: Nest
    producers: int
    capacity: int
    device: str = ""
    after: str = ""

    def sink(self, producer: int) -> End:
        """For the producer of that number."""
        return End(self.name, "sink", producer)

    def source(self) -> End:
        """For the consumer."""
        return End(self.name, "source")


@dataclass(frozen=True)
class WeightsEdge:
    """Versions of one flat buffer of `size` float32, from one writer to any number of readers.

    With a `device`, the buffer lies there, and there is one reader, in the writer's process.
    """

    name: str
    size: int
    device: str = ""

    def writer(self) -> End:
        """For the one who publishes."""
        return End(self.name, "writer")

    def reader(self) -> End:
        """For those who follow."""
        return End(self.name, "reader")


@dataclass(frozen=True)
class CallsEdge:
    """Requests from the lanes of several callers to one desk, each answered in its turn.

    `request` and `reply` are of one env; a lane holds `envs` of them. With `wire.listen`, others may join from
    elsewhere.
    """

    name: str
    request: Nest
    reply: ArraySpec
    callers: int
    lanes: int
    envs: int
    wire: WireConfig
    choices: tuple[int, ...] = ()
    run: str = ""

    @property
    def lane_request(self) -> Nest:
        """A request of all envs of a lane."""
        return optree.tree_map(lambda leaf: leaf.prefixed(self.envs), self.request)

    @property
    def lane_reply(self) -> ArraySpec:
        """A reply for all envs of a lane."""
        return self.reply.prefixed(self.envs)

    def caller(self, index: int) -> End:
        """For the caller of that number."""
        return End(self.name, "caller", index)

    def desk(self) -> End:
        """For the one who answers."""
        return End(self.name, "desk")


@dataclass(frozen=True)
class HatchEdge:
    """Objects that go from one role to another of the same process, and come back."""

    name: str

    def giver(self) -> End:
        """For the one whose objects they are."""
        return End(self.name, "giver")

    def taker(self) -> End:
        """For the one who uses them."""
        return End(self.name, "taker")


@dataclass(frozen=True)
class ReplayEdge:
    """A table of experience: actors record into it, learners draw from it, and one role keeps it."""

    name: str
    spec: ReplaySpec

    def sink(self, envs: int) -> End:
        """For one who records the steps of so many envs."""
        return End(self.name, "recorder", envs)

    def sinks(self) -> End:
        """For one who records for many: a function that makes a sink for so many envs."""
        return End(self.name, "sinks")

    def source(self) -> End:
        """For one who draws."""
        return End(self.name, "source")

    def keeper(self) -> End:
        """For the one in whose process it lies."""
        return End(self.name, "keeper")


@dataclass(frozen=True)
class TallyEdge:
    """A sum that several roles add to, and all can read."""

    name: str
    writers: int

    def counter(self, writer: int) -> End:
        """For the writer of that number."""
        return End(self.name, "counter", writer)

    def reader(self) -> End:
        """For those who only read."""
        return End(self.name, "reader")


@dataclass(frozen=True)
class MeetingEdge:
    """Sums of what several learners bring: tensors of `size` float32, `backend` says through what."""

    name: str
    members: int
    size: int
    backend: Literal["memory", "gloo", "nccl"]

    def member(self, index: int) -> End:
        """For the learner of that number."""
        return End(self.name, "member", index)


@dataclass(frozen=True)
class CommonsEdge:
    """Rows of `size` float32 each, weights and their statistics, that all who hold an end change in place."""

    name: str
    size: int
    rows: int

    def end(self) -> End:
        """For all alike."""
        return End(self.name, "writer")


Edge: TypeAlias = (
    QueueEdge | WeightsEdge | CallsEdge | HatchEdge | ReplayEdge | TallyEdge | MeetingEdge | CommonsEdge
)


@dataclass(frozen=True)
class Node:
    """A role to be: `build(name, incarnation, **arguments)` makes it where it shall live.

    Ends, and lists of ends, among the arguments become ports.

    `incarnation` counts restarts, so that a role that came back does not repeat what its predecessor saw.
    """

    name: str
    build: Callable[..., Role]
    arguments: Mapping[str, Any]
    group: str
    essential: bool
    durable: bool = False
    twin: str = ""

    @property
    def saved(self) -> bool:
        """Whether checkpoints hold its state."""
        return (self.essential or self.durable) and not self.twin

    @property
    def begins_with(self) -> str:
        """Whose saved state it begins with, if there is a checkpoint: its own, its twin's, or nobody's."""
        return self.twin or (self.name if self.saved else "")

    def ends(self) -> list[End]:
        """The ends of edges that this node holds."""
        listed = [value if isinstance(value, list) else [value] for value in self.arguments.values()]
        return [value for values in listed for value in values if isinstance(value, End)]


@dataclass
class Program:
    """Roles, the ports between them, and who is colocated with whom."""

    name: str
    seed: int = 0
    """What random states of libraries derive from, beside those that roles hold themselves."""
    nodes: list[Node] = field(default_factory=list)
    edges: dict[str, Edge] = field(default_factory=dict)

    def queue(
        self, name: str, spec: Nest, producers: int, capacity: int, device: str = "", after: str = ""
    ) -> QueueEdge:
        """A new bounded queue."""
        edge = QueueEdge(name, spec, producers, capacity, device, after)
        self._add_edge(edge)
        return edge

    def weights(self, name: str, size: int, device: str = "") -> WeightsEdge:
        """A new buffer of weights."""
        edge = WeightsEdge(name, size, device)
        self._add_edge(edge)
        return edge

    def calls(self, edge: CallsEdge) -> CallsEdge:
        """New lines from callers to a desk."""
        self._add_edge(edge)
        return edge

    def hatch(self, name: str) -> HatchEdge:
        """A new hatch between two roles of one process."""
        edge = HatchEdge(name)
        self._add_edge(edge)
        return edge

    def replay(self, name: str, spec: ReplaySpec) -> ReplayEdge:
        """A new table of experience."""
        edge = ReplayEdge(name, spec)
        self._add_edge(edge)
        return edge

    def tally(self, name: str, writers: int) -> TallyEdge:
        """A new sum."""
        edge = TallyEdge(name, writers)
        self._add_edge(edge)
        return edge

    def meeting(self, edge: MeetingEdge) -> MeetingEdge:
        """A new meeting of gradients."""
        self._add_edge(edge)
        return edge

    def commons(self, name: str, size: int, rows: int) -> CommonsEdge:
        """New weights that all change in place."""
        edge = CommonsEdge(name, size, rows)
        self._add_edge(edge)
        return edge

    def add(
        self, name: str, build: Callable[..., Role], *, essential: bool = False, durable: bool = False,
        group: str = "", twin: str = "", **arguments: Any,
    ) -> None:
        """A new role. The run ends when an essential one dies; others are restarted, a durable one from the newest
        checkpoint. Nodes of one group share a process, each with a thread of its own. One that has the same state as
        its `twin` at all times is not saved, and begins with what the twin saved."""
        if any(node.name == name for node in self.nodes):
            raise UserError(f"role {name!r} is in program {self.name!r} twice; give each role a name of its own")
        self.nodes.append(Node(name, build, arguments, group or name, essential, durable, twin))

    def groups(self) -> dict[str, list[Node]]:
        """Nodes by process, in the order in which they were added."""
        groups: dict[str, list[Node]] = {}
        for node in self.nodes:
            groups.setdefault(node.group, []).append(node)
        return groups

    def _add_edge(self, edge: Edge) -> None:
        if edge.name in self.edges:
            raise UserError(f"edge {edge.name!r} is in program {self.name!r} twice; give each edge a name of its own")
        self.edges[edge.name] = edge
