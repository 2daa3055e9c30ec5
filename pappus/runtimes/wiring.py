"""Edges become ports: every edge gets a block of memory, every end an object over that block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pappus.roles.role import Role
from pappus.topologies.program import Edge, End, Node, QueueEdge
from pappus.transports.memory import Block
from pappus.transports.rings import RingQueue
from pappus.transports.weights import FlatWeights


def footprint(edge: Edge) -> tuple[int, int]:
    """Bytes and bells of an edge's block."""
    if isinstance(edge, QueueEdge):
        return RingQueue.footprint(edge.spec, edge.producers, edge.capacity)
    return FlatWeights.footprint(edge.size)


class Wiring:
    """Connects the ends of edges over the blocks that hold them."""

    def __init__(self, edges: Iterable[Edge], blocks: Mapping[str, Block]) -> None:
        self._transports: dict[str, RingQueue | FlatWeights] = {}
        for edge in edges:
            self._transports[edge.name] = (
                RingQueue(edge.name, edge.spec, edge.producers, edge.capacity, blocks[edge.name])
                if isinstance(edge, QueueEdge)
                else FlatWeights(edge.name, edge.size, blocks[edge.name])
            )

    def connect(self, end: End) -> Any:
        """The port that an end stands for."""
        transport = self._transports[end.edge]
        if isinstance(transport, RingQueue):
            return transport.sink(end.index) if end.side == "sink" else transport.source()
        return transport

    def build(self, node: Node, incarnation: int) -> Role:
        """The role that a node describes, its ends connected."""
        arguments = {
            key: self.connect(value) if isinstance(value, End) else value for key, value in node.arguments.items()
        }
        return node.build(node.name, incarnation, **arguments)

    def transports(self) -> list[RingQueue | FlatWeights]:
        """All transports, one per edge."""
        return list(self._transports.values())
