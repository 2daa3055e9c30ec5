"""A program is data: roles (roles to be), edges between them, and which roles live together.

A topology is a function from a run to a `Program`. It starts nothing: a runtime builds the roles where they
shall live and connects their `End`s by whatever transport joins those places.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import optree

from pappus.config import WireConfig
from pappus.errors import UserError
from pappus.kinds import RoleKind
from pappus.recording.spec import ReplaySpec
from pappus.roles.role import Role
from pappus.types import ArraySpec, Nest


@dataclass(frozen=True)
class PortRef:
    """One end of an edge, handed to a role's constructor in place of the port that it will become."""

    edge: str
    side: Literal[
        "sink", "source", "writer", "reader", "client", "server", "lender", "borrower", "host", "counter",
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

    def sink(self, producer: int) -> PortRef:
        """For the producer of that number."""
        return PortRef(self.name, "sink", producer)

    def source(self) -> PortRef:
        """For the consumer."""
        return PortRef(self.name, "source")


@dataclass(frozen=True)
class WeightsEdge:
    """Versions of one flat buffer of `size` float32, from one writer to any number of readers.

    With a `device`, the buffer lies there, and there is one reader, in the writer's process.
    """

    name: str
    size: int
    device: str = ""

    def writer(self) -> PortRef:
        """For the one who publishes."""
        return PortRef(self.name, "writer")

    def reader(self) -> PortRef:
        """For those who follow."""
        return PortRef(self.name, "reader")


@dataclass(frozen=True)
class CallsEdge:
    """Requests from the env groups of several clients to one request server, each answered in its turn.

    `request` and `reply` are of one env; an env group holds `envs` of them. With `wire.listen`, others may join from
    elsewhere.
    """

    name: str
    request: Nest
    reply: ArraySpec
    clients: int
    env_groups: int
    envs: int
    wire: WireConfig
    choices: tuple[int, ...] = ()
    run: str = ""

    @property
    def group_request(self) -> Nest:
        """A request of all envs of an env group."""
        return optree.tree_map(lambda leaf: leaf.prefixed(self.envs), self.request)

    @property
    def group_reply(self) -> ArraySpec:
        """A reply for all envs of an env group."""
        return self.reply.prefixed(self.envs)

    def client(self, index: int) -> PortRef:
        """For the client of that number."""
        return PortRef(self.name, "client", index)

    def server(self) -> PortRef:
        """For the one who answers."""
        return PortRef(self.name, "server")


@dataclass(frozen=True)
class LoanEdge:
    """Objects that go from one role to another of the same process, and come back."""

    name: str

    def lender(self) -> PortRef:
        """For the one whose objects they are."""
        return PortRef(self.name, "lender")

    def borrower(self) -> PortRef:
        """For the one who uses them."""
        return PortRef(self.name, "borrower")


@dataclass(frozen=True)
class ReplayEdge:
    """A table of experience: actors record into it, learners draw from it, and one role keeps it."""

    name: str
    spec: ReplaySpec

    def sink(self, envs: int) -> PortRef:
        """For one who records the steps of so many envs."""
        return PortRef(self.name, "recorder", envs)

    def sinks(self) -> PortRef:
        """For one who records for many: a function that makes a sink for so many envs."""
        return PortRef(self.name, "sinks")

    def source(self) -> PortRef:
        """For one who draws."""
        return PortRef(self.name, "source")

    def host(self) -> PortRef:
        """For the one in whose process it lies."""
        return PortRef(self.name, "host")


@dataclass(frozen=True)
class CounterEdge:
    """A sum that several roles add to, and all can read."""

    name: str
    writers: int

    def counter(self, writer: int) -> PortRef:
        """For the writer of that number."""
        return PortRef(self.name, "counter", writer)

    def reader(self) -> PortRef:
        """For those who only read."""
        return PortRef(self.name, "reader")


@dataclass(frozen=True)
class AllReduceEdge:
    """Sums of what several learners bring: tensors of `size` float32, `backend` says through what."""

    name: str
    members: int
    size: int
    backend: Literal["memory", "gloo", "nccl"]

    def member(self, index: int) -> PortRef:
        """For the learner of that number."""
        return PortRef(self.name, "member", index)


@dataclass(frozen=True)
class SharedParametersEdge:
    """Rows of `size` float32 each, weights and their statistics, that all who hold an end change in place."""

    name: str
    size: int
    rows: int

    def port(self) -> PortRef:
        """For all alike."""
        return PortRef(self.name, "writer")


Edge: TypeAlias = (
    QueueEdge | WeightsEdge | CallsEdge | LoanEdge | ReplayEdge | CounterEdge | AllReduceEdge | SharedParametersEdge
)


@dataclass(frozen=True)
class RoleSpec:
    """A role to be: `build(name, incarnation, **arguments)` makes it where it shall live.

    Ends, and lists of ends, among the arguments become ports.

    `incarnation` counts restarts, so that a role that came back does not repeat what its predecessor saw.
    """

    name: str
    kind: RoleKind
    index: int | None
    build: Callable[..., Role]
    arguments: Mapping[str, Any]
    group: str
    essential: bool
    durable: bool = False
    replica_of: str = ""

    @property
    def saved(self) -> bool:
        """Whether checkpoints hold its state."""
        return (self.essential or self.durable) and not self.replica_of

    @property
    def begins_with(self) -> str:
        """Whose saved state it begins with, if there is a checkpoint: its own, its replica's, or nobody's."""
        return self.replica_of or (self.name if self.saved else "")

    def ends(self) -> list[PortRef]:
        """The ends of edges that this spec holds."""
        listed = [value if isinstance(value, list) else [value] for value in self.arguments.values()]
        return [value for values in listed for value in values if isinstance(value, PortRef)]


@dataclass
class Program:
    """Roles, the ports between them, and who is colocated with whom."""

    name: str
    seed: int = 0
    """What random states of libraries derive from, beside those that roles hold themselves."""
    roles: list[RoleSpec] = field(default_factory=list)
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
        """New lines from clients to a request server."""
        self._add_edge(edge)
        return edge

    def loan(self, name: str) -> LoanEdge:
        """A new loan between two roles of one process."""
        edge = LoanEdge(name)
        self._add_edge(edge)
        return edge

    def replay(self, name: str, spec: ReplaySpec) -> ReplayEdge:
        """A new table of experience."""
        edge = ReplayEdge(name, spec)
        self._add_edge(edge)
        return edge

    def counters(self, name: str, writers: int) -> CounterEdge:
        """A new sum."""
        edge = CounterEdge(name, writers)
        self._add_edge(edge)
        return edge

    def all_reduce(self, edge: AllReduceEdge) -> AllReduceEdge:
        """A new all-reduce of gradients."""
        self._add_edge(edge)
        return edge

    def shared_parameters(self, name: str, size: int, rows: int) -> SharedParametersEdge:
        """New weights that all change in place."""
        edge = SharedParametersEdge(name, size, rows)
        self._add_edge(edge)
        return edge

    def add(
        self, kind: RoleKind, build: Callable[..., Role], *, index: int | None = None, essential: bool = False,
        durable: bool = False, group: str = "", replica_of: str = "", **arguments: Any,
    ) -> None:
        """A new role, called after its kind and index; `build` receives the index if there is one.

        The run ends when an essential role dies; others are restarted, a durable one from the newest checkpoint. Roles
        of one group share a process, each with a thread of its own. A replica always has the state of the role that it
        is a replica of: it is not saved, and begins with what that role saved.
        """
        name = kind.role_name(index)
        if index is not None:
            arguments["index"] = index
        if any(spec.name == name for spec in self.roles):
            raise UserError(f"role {name!r} is in program {self.name!r} twice; give each role a name of its own")
        spec = RoleSpec(name, kind, index, build, arguments, group or name, essential, durable, replica_of)
        self.roles.append(spec)

    @property
    def kinds(self) -> dict[str, RoleKind]:
        """The kind of each role."""
        return {spec.name: spec.kind for spec in self.roles}

    @property
    def weights_roles(self) -> list[str]:
        """The roles whose saved `weights`, one after the other, are those of the policy."""
        return [spec.name for spec in self.roles if spec.kind.trains and spec.saved]

    def groups(self) -> dict[str, list[RoleSpec]]:
        """Roles by process, in the order in which they were added."""
        groups: dict[str, list[RoleSpec]] = {}
        for spec in self.roles:
            groups.setdefault(spec.group, []).append(spec)
        return groups

    def _add_edge(self, edge: Edge) -> None:
        if edge.name in self.edges:
            raise UserError(f"edge {edge.name!r} is in program {self.name!r} twice; give each edge a name of its own")
        self.edges[edge.name] = edge
