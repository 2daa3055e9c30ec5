"""A program as data for a drawing: kinds, roles, and edges with a direction.

Which way an edge goes is told by the ends that roles hold, by the names of their ports: whoever has a `sink` gives,
whoever has a `source` takes. A table of replay lies between both, so its edge is drawn as two.
"""

from __future__ import annotations

from collections.abc import Mapping

from pappus.edges.edge import Edge
from pappus.edges.queue import QueueEdge
from pappus.edges.replay import ReplayEdge
from pappus.page.document import EdgeDocument, KindDocument, ProgramDocument
from pappus.topologies.program import Program

GIVE = ("sink", "sinks", "writer", "sender", "client", "counter", "lender")
TAKE = ("source", "reader", "receiver", "server", "borrower")
BETWEEN = ("host",)
"""Ports of those who give, who take, and who stand between; holders of others do both."""
KINDS = {
    "QueueEdge": "queue", "WeightsEdge": "weights", "CallsEdge": "requests", "ReplayEdge": "replay",
    "SharedParametersEdge": "parameters", "AllReduceEdge": "all-reduce", "CounterEdge": "counter", "LoanEdge": "loan",
}


def drawing(program: Program) -> ProgramDocument:
    """Every role, and every edge that somebody holds an end of."""
    kinds = {spec.kind.name: spec.kind for spec in program.roles}
    return {
        "kinds": [
            KindDocument(
                name=kind.name, trains=kind.trains, steps_envs=kind.steps_envs, evaluates=kind.evaluates,
                background=kind.background,
            )
            for kind in kinds.values()
        ],
        "roles": [
            {"name": spec.name, "kind": spec.kind.name, "index": spec.index, "group": spec.group}
            for spec in program.roles
        ],
        "edges": [drawn for name, edge in program.edges.items() for drawn in _drawn(edge, _holders(program, name))],
    }


def capacities(program: Program) -> dict[str, float]:
    """How much an edge of each label can hold, where there is a limit: unrolls of a queue, items of a table."""
    found: dict[str, float] = {}
    for edge in program.edges.values():
        if isinstance(edge, QueueEdge):
            found.setdefault(edge.label, edge.producers * edge.capacity)
        elif isinstance(edge, ReplayEdge):
            found.setdefault(edge.label, edge.spec.table.max_size)
    return found


def _holders(program: Program, edge: str) -> dict[str, list[str]]:
    """The roles that hold an end of an edge, by the name of its port."""
    found: dict[str, list[str]] = {}
    for spec in program.roles:
        ports = [end.port.__name__.lstrip("_") for end in spec.ends() if end.edge == edge]
        for port in dict.fromkeys(ports):
            found.setdefault(port, []).append(spec.name)
    return found


def _drawn(edge: Edge, holders: Mapping[str, list[str]]) -> list[EdgeDocument]:
    """An edge, or the two of an edge in whose middle a role stands; none where nobody holds an end."""
    def of(ports: tuple[str, ...]) -> list[str]:
        return list(dict.fromkeys(role for port in ports for role in holders.get(port, [])))

    others = tuple(port for port in holders if port not in (*GIVE, *TAKE, *BETWEEN))
    give, take, middle = of((*GIVE, *others)), of((*TAKE, *others)), of(BETWEEN)
    if not give and not take:
        return []
    if middle:
        return [_edge(edge, edge.name, give, middle), _edge(edge, f"{edge.name} batches", middle, take)]
    return [_edge(edge, edge.name, give, take)]


def _edge(edge: Edge, name: str, give: list[str], take: list[str]) -> EdgeDocument:
    kind = type(edge).__name__
    return {
        "name": name, "label": edge.label, "kind": KINDS.get(kind, kind.removesuffix("Edge").lower()),
        "roles_from": give, "roles_to": take,
    }
