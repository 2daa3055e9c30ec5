"""Edges become ports: every edge gets a block of memory, every end an object over that block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from pappus.core import Desk
from pappus.roles.role import Role
from pappus.topologies.program import CallsEdge, Edge, End, Node, QueueEdge
from pappus.transports.calls import SharedCalls
from pappus.transports.memory import Block
from pappus.transports.rings import RingQueue
from pappus.transports.weights import FlatWeights

Transport: TypeAlias = RingQueue | FlatWeights | SharedCalls


def footprint(edge: Edge) -> tuple[int, int]:
    """Bytes and bells of an edge's block."""
    if isinstance(edge, QueueEdge):
        return RingQueue.footprint(edge.spec, edge.producers, edge.capacity)
    if isinstance(edge, CallsEdge):
        return SharedCalls.footprint(edge.lane_request, edge.lane_reply, edge.callers, edge.lanes)
    return FlatWeights.footprint(edge.size)


def transport(edge: Edge, block: Block) -> Transport:
    """An edge over the block that holds it."""
    if isinstance(edge, QueueEdge):
        return RingQueue(edge.name, edge.spec, edge.producers, edge.capacity, block)
    if isinstance(edge, CallsEdge):
        return SharedCalls(edge.name, edge.lane_request, edge.lane_reply, edge.callers, edge.lanes, block)
    return FlatWeights(edge.name, edge.size, block)


class Wiring:
    """Connects the ends of edges over the blocks that hold them."""

    def __init__(self, edges: Iterable[Edge], blocks: Mapping[str, Block]) -> None:
        self._edges = {edge.name: edge for edge in edges}
        self._transports = {name: transport(edge, blocks[name]) for name, edge in self._edges.items()}

    def connect(self, end: End) -> Any:
        """The port that an end stands for."""
        transport = self._transports[end.edge]
        if isinstance(transport, RingQueue):
            return transport.sink(end.index) if end.side == "sink" else transport.source()
        if isinstance(transport, SharedCalls):
            return transport.caller(end.index) if end.side == "caller" else self._desk(end.edge, transport)
        return transport

    def _desk(self, name: str, calls: SharedCalls) -> Desk:
        """The answering end of a calls edge, open to others where the edge says so."""
        edge = self._edges[name]
        assert isinstance(edge, CallsEdge)
        if not edge.wire.listen:
            return calls.desk()
        from pappus.transports.grpc_desk import GrpcDesk, JointDesk

        wire = GrpcDesk(name, edge.wire, edge.request, edge.reply, edge.choices, edge.run, calls.asked)
        return JointDesk(calls.desk(), wire)

    def build(self, node: Node, incarnation: int) -> Role:
        """The role that a node describes, its ends connected."""
        arguments = {
            key: self.connect(value) if isinstance(value, End) else value for key, value in node.arguments.items()
        }
        return node.build(node.name, incarnation, **arguments)

    def transports(self) -> list[Transport]:
        """All transports, one per edge."""
        return list(self._transports.values())
