"""Turns the ends of edges into ports, over the blocks of memory that hold the edges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from pappus.edges.edge import Edge, PortRef
from pappus.kinds import RoleKind
from pappus.roles.role import Role
from pappus.telemetry.accounts import Ledger
from pappus.telemetry.metrics import Meter
from pappus.telemetry.run_stats import BYTES
from pappus.topologies.program import RoleSpec
from pappus.transports.memory import Block

if TYPE_CHECKING:
    from pappus.recording.shared import ServiceDirectory


class TracedEdges(Protocol):
    """The edges of one life of a role, opened such that their ports keep or follow a trace."""

    def open(self, edge: Edge, block: Block) -> Any: ...


class Trace(Protocol):
    """What roles meet at their ports is written down, or is what was written down."""

    def opener(self, role: str, kind: RoleKind, incarnation: int) -> TracedEdges | None:
        """How the edges of a role are opened; None for one that is not traced."""


class Wiring:
    """The edges that the roles of one process use. `services` finds what is served on other nodes of a cluster."""

    def __init__(
        self, edges: Iterable[Edge], blocks: Mapping[str, Block], services: ServiceDirectory | None = None,
        trace: Trace | None = None, ledger: Ledger | None = None,
    ) -> None:
        """`ledger` has a row for every role of the program."""
        self._edges = {edge.name: edge for edge in edges}
        self._blocks, self._services, self._trace, self._ledger = blocks, services, trace, ledger
        self._transports: dict[str, Any] = {}
        self._watched: set[Meter] = set()

    def transport(self, name: str) -> Any:
        """The transport of an edge, opened on first use: only a process that uses a device may touch it."""
        if name not in self._transports:
            self._transports[name] = self._edges[name].open_on_cluster(self._blocks[name], self._services)
        return self._transports[name]

    def build(self, spec: RoleSpec, incarnation: int) -> Role:
        transports = self._transports_of(spec, incarnation)
        ports = {ref: ref.connect(transports[ref.edge]) for ref in spec.ends()}
        arguments = {key: _connected(value, ports) for key, value in spec.arguments.items()}
        role = spec.build(spec.name, incarnation, **arguments)
        for ref, port in ports.items():
            self._watch(ref.edge, port, transports[ref.edge], role)
        if self._ledger is not None:
            role.keep_account(self._ledger.account(spec.name))
        return role

    def _transports_of(self, spec: RoleSpec, incarnation: int) -> dict[str, Any]:
        names = dict.fromkeys(ref.edge for ref in spec.ends())
        traced = None if self._trace is None else self._trace.opener(spec.name, spec.kind, incarnation)
        if traced is None:
            return {name: self.transport(name) for name in names}
        return {name: traced.open(self._edges[name], self._blocks[name]) for name in names}

    def _watch(self, name: str, port: Any, transport: Any, role: Role) -> None:
        """A role reports the traffic of a port that has its own meter; traffic through the other ports of an edge is
        reported by the first role of this process that holds one of them."""
        shared = getattr(transport, "meter", None)  # an edge within a process or a device has none
        meter = getattr(port, "meter", shared)
        if meter is not None and meter not in self._watched:
            self._watched.add(meter)
            role.metrics.watch(f"{self._edges[name].label}{BYTES}", meter)


def _connected(value: Any, ports: Mapping[PortRef[Any], Any]) -> Any:
    if isinstance(value, list):
        return [_connected(one, ports) for one in value]
    return ports[value] if isinstance(value, PortRef) else value
