"""Edges become ports: every edge gets a block of memory, every end an object over that block.

What needs torch is imported where such an edge is met: a node's node agent carries queues and calls without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from pappus.core import RequestServer
from pappus.roles.role import Role
from pappus.telemetry.meter import Meter
from pappus.telemetry.run_stats import BYTES
from pappus.topologies.program import (
    AllReduceEdge,
    CallsEdge,
    CounterEdge,
    Edge,
    LoanEdge,
    PortRef,
    QueueEdge,
    ReplayEdge,
    RoleSpec,
    SharedParametersEdge,
    WeightsEdge,
)
from pappus.transports.calls import SharedCalls
from pappus.transports.counters import SharedCounters
from pappus.transports.memory import Block, SharedBlock
from pappus.transports.rings import RingQueue, poison
from pappus.transports.shared_parameters import ParameterMemory
from pappus.transports.weights import FlatWeights

if TYPE_CHECKING:
    from pappus.recording.direct import DirectReplay
    from pappus.recording.shared import ServiceDirectory, SharedReplay
    from pappus.transports.device import BufferLoan, DeviceQueue, DeviceWeights
    from pappus.transports.memory_all_reduce import MemoryAllReduce
    from pappus.transports.torch_all_reduce import TorchAllReduce

    Transport: TypeAlias = (
        RingQueue | FlatWeights | SharedCalls | DeviceQueue | DeviceWeights | BufferLoan | DirectReplay | SharedReplay
        | SharedCounters | MemoryAllReduce | TorchAllReduce | ParameterMemory
    )


def footprint(edge: Edge) -> tuple[int, int]:
    """Bytes and notifiers of an edge's block."""
    match edge:
        case QueueEdge(device=""):
            return RingQueue.footprint(edge.spec, edge.producers, edge.capacity)
        case WeightsEdge(device=""):
            return FlatWeights.footprint(edge.size)
        case CallsEdge():
            return SharedCalls.footprint(edge.group_request, edge.group_reply, edge.clients, edge.env_groups)
        case CounterEdge():
            return SharedCounters.footprint(edge.writers)
        case AllReduceEdge(backend="memory"):
            from pappus.transports.memory_all_reduce import MemoryAllReduce

            return MemoryAllReduce.footprint(edge.members, edge.size)
        case AllReduceEdge():
            from pappus.transports.torch_all_reduce import TorchAllReduce

            return TorchAllReduce.footprint(edge.members)
        case SharedParametersEdge():
            return ParameterMemory.footprint(edge.size, edge.rows)
        case ReplayEdge():
            return 8, 0  # how many items came; the rest is with its replay server
    return 0, 2  # it lies on a device, or in one process


def transport(edge: Edge, block: Block, cluster: ServiceDirectory | None = None) -> Transport:
    """An edge over the block that holds it; in a cluster, what has no block is looked up."""
    match edge:
        case QueueEdge(device=""):
            return RingQueue(label_of(edge.name), edge.spec, edge.producers, edge.capacity, block)
        case CallsEdge():
            return SharedCalls(edge.name, edge.group_request, edge.group_reply, edge.clients, edge.env_groups, block)
        case WeightsEdge(device=""):
            return FlatWeights(edge.name, edge.size, block)
        case CounterEdge():
            return SharedCounters(edge.name, edge.writers, block)
        case SharedParametersEdge():
            return ParameterMemory(edge.name, edge.size, edge.rows, block)
        case AllReduceEdge():
            return _all_reduce(edge, block)
        case ReplayEdge():
            return _replay(edge, block, cluster)
        case QueueEdge() | WeightsEdge() | LoanEdge():
            return _within_a_process(edge, block)


def _all_reduce(edge: AllReduceEdge, block: Block) -> MemoryAllReduce | TorchAllReduce:
    from pappus.transports.memory_all_reduce import MemoryAllReduce
    from pappus.transports.torch_all_reduce import TorchAllReduce

    if edge.backend == "memory":
        one_thread = not isinstance(block, SharedBlock)
        return MemoryAllReduce(edge.name, edge.members, edge.size, block, in_turn=one_thread)
    return TorchAllReduce(edge.name, edge.members, edge.backend, block)


def _replay(edge: ReplayEdge, block: Block, cluster: ServiceDirectory | None) -> DirectReplay | SharedReplay:
    from pappus.recording.direct import DirectReplay
    from pappus.recording.shared import SharedReplay

    if isinstance(block, SharedBlock):
        return SharedReplay(edge.spec, block.memory.view(np.int64), edge.name, cluster)
    return DirectReplay(edge.spec)


def _within_a_process(
    edge: QueueEdge | WeightsEdge | LoanEdge, block: Block
) -> DeviceQueue | DeviceWeights | BufferLoan:
    from pappus.accelerator import Accelerator
    from pappus.transports.device import BufferLoan, DeviceQueue, DeviceWeights

    match edge:
        case QueueEdge():
            return DeviceQueue(edge.name, edge.spec, edge.capacity, Accelerator(edge.device), block.notifiers)
        case WeightsEdge():
            return DeviceWeights(edge.name, edge.size, Accelerator(edge.device), block.notifiers[0])
        case LoanEdge():
            return BufferLoan(edge.name, block.notifiers)


class Wiring:
    """Connects the ends of edges over the blocks that hold them."""

    def __init__(
        self, edges: Iterable[Edge], blocks: Mapping[str, Block], cluster: ServiceDirectory | None = None
    ) -> None:
        self._edges = {edge.name: edge for edge in edges}
        self._blocks, self._cluster = blocks, cluster
        self._transports: dict[str, Transport] = {}
        self._watched: set[Meter] = set()

    def transport(self, name: str) -> Transport:
        """The transport of an edge, made when it is first asked for: a device is for those who use it."""
        if name not in self._transports:
            self._transports[name] = transport(self._edges[name], self._blocks[name], self._cluster)
        return self._transports[name]

    def connect(self, end: PortRef) -> Any:
        """The port that an end stands for."""
        transport: Any = self.transport(end.edge)
        match end.side:
            case "sink" if isinstance(transport, RingQueue):
                return transport.sink(end.index)
            case "client":
                return transport.client(end.index)
            case "recorder":
                return transport.sink(end.index)
            case "counter":
                return transport.counter(end.index)
            case "member":
                return transport.member(end.index)
            case "server":
                return self._request_server(end.edge, transport)
            case "reader" if isinstance(transport, FlatWeights):
                return transport.reader()
            case "writer" | "reader":
                return transport
            case side:
                return getattr(transport, side)()

    def _request_server(self, name: str, calls: SharedCalls) -> RequestServer:
        """The answering end of a calls edge, open to others where the edge says so."""
        edge = self._edges[name]
        assert isinstance(edge, CallsEdge)
        if not edge.wire.listen:
            return calls.server()
        from pappus.transports.combined_request_server import CombinedRequestServer
        from pappus.transports.grpc_request_server import GrpcRequestServer

        wire = GrpcRequestServer(name, edge.wire, edge.request, edge.reply, edge.choices, edge.run, calls.asked)
        return CombinedRequestServer(calls.server(), wire)

    def build(self, spec: RoleSpec, incarnation: int) -> Role:
        """The role that a node describes, its ends connected."""
        ports = {end: self.connect(end) for end in spec.ends()}
        arguments = {key: _connected(value, ports) for key, value in spec.arguments.items()}
        role = spec.build(spec.name, incarnation, **arguments)
        for end, port in ports.items():
            self._watch(end.edge, port, role)
        return role

    def _watch(self, name: str, port: Any, role: Role) -> None:
        """A role reports what goes through a port with a meter of its own; what goes through all others of an edge is
        reported by the first role of this process that holds one of them."""
        of_all = getattr(self.transport(name), "meter", None)  # what stays within a process or a device has none
        meter = getattr(port, "meter", of_all)
        if meter is not None and meter not in self._watched:
            self._watched.add(meter)
            role.metrics.watch(f"{label_of(name)}{BYTES}", meter)

    def poison(self) -> None:
        """Fill fresh queues with what no env produces, so that a field nobody wrote shows up at once."""
        for name, edge in self._edges.items():
            if isinstance(edge, QueueEdge) and not edge.device:
                queue = self.transport(name)
                assert isinstance(queue, RingQueue)
                for ring in queue.rings:
                    poison(ring)


def label_of(edge: str) -> str:
    """`unrolls` for `unrolls-1`: edges that differ in a number only share their metrics."""
    return re.sub(r"-\d+$", "", edge)


def _connected(value: Any, ports: Mapping[PortRef, Any]) -> Any:
    if isinstance(value, list):
        return [_connected(one, ports) for one in value]
    return ports[value] if isinstance(value, PortRef) else value
