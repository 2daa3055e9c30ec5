"""A node agent as a Ray actor: it owns the node's shared memory, and carries edges to other nodes.

Experience and inference go from node agent to node agent over gRPC. Weights go through Ray's object store: every node
fetches one copy of a version, and its node agent publishes that in the node's memory. Slow followers skip versions.

    learner ──▶ memory ──▶ node agent ──put──▶ object store ──▶ node agent ──▶ memory ──▶ actors
                                                       └───▶ node agent ──▶ memory ──▶ actors
"""

from __future__ import annotations

import os
import select
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import ray

from pappus.edges.edge import Edge
from pappus.edges.weights import FlatWeights
from pappus.runtimes.node_agent import NodeAgent
from pappus.transports.memory import EventNotifier
from pappus.transports.mirrors import PortLocations
from pappus.transports.tls import Tls
from pappus.types import Array

LEAST_SECONDS = 0.005
"""Between two versions that are sent: each costs about a millisecond of a core."""
SHARE_PER_SECOND = 0.2
"""Of a node's object store that weights may fill in a second: Ray frees unreferenced objects about once a second."""
RETRY_SECONDS = 0.5
CALLS_AT_ONCE = 8


class NodeAgentActor:
    """What the registry and other node agents call."""

    def __init__(self, node: str, ip: str, edges: Mapping[str, Edge], token: str, tls: Tls | None) -> None:
        self._node_agent = NodeAgent(node, ip, edges, token, self._delivered, tls)
        self._edges = edges
        self._broadcasters: dict[str, WeightsBroadcaster] = {}

    def where(self) -> tuple[str, str]:
        """The address that other node agents reach, and the unix socket for processes of this node."""
        return self._node_agent.address, self._node_agent.socket

    def place(self, placements: Mapping[str, PortLocations]) -> None:
        for name, placement in placements.items():
            self._node_agent.place(name, placement)

    def carry(self, edge: str, followers: Mapping[str, Any]) -> None:
        """Send weights that are published here to the node agents of these nodes from now on."""
        if edge not in self._broadcasters and followers:
            weights, room = self._weights(edge), SHARE_PER_SECOND * store_bytes(self._node_agent.node)
            pause = max(LEAST_SECONDS, 4 * weights.size / room)
            self._broadcasters[edge] = WeightsBroadcaster(weights, self._node_agent.look_again, pause)
        if edge in self._broadcasters:
            self._broadcasters[edge].set_followers(followers)

    def deliver(self, edge: str, flat: Array, version: int) -> None:
        """Publish weights from another node; the array is in the object store of this node."""
        weights = self._weights(edge)
        if weights.version() != version:
            weights.publish(flat, version)

    def newest(self, edge: str) -> tuple[Array, int] | None:
        weights = self._weights(edge)
        if weights.version() < 0:
            return None
        flat = np.empty(weights.size, np.float32)
        return flat, weights.read(flat)

    def carried(self) -> dict[str, tuple[int, int]]:
        """Messages and bytes that went between node agents, by edge."""
        weights = {name: (broadcaster.versions, broadcaster.bytes) for name, broadcaster in self._broadcasters.items()}
        return {**self._node_agent.meter(), **weights}

    def _weights(self, name: str) -> FlatWeights:
        made = self._edges[name].open(self._node_agent.block(name))
        assert isinstance(made, FlatWeights)
        return made

    def _delivered(self, edge: str, node: str) -> int:
        broadcaster = self._broadcasters.get(edge)
        return -1 if broadcaster is None else broadcaster.delivered(node)


class WeightsBroadcaster:
    """Sends the newest version of some weights to all nodes that follow, one at a time to each."""

    def __init__(self, weights: FlatWeights, tell: Callable[[], None], pause: float = LEAST_SECONDS) -> None:
        self._weights, self._tell, self._pause = weights, tell, pause
        self._flat = np.empty(weights.size, np.float32)
        self._followers: Mapping[str, Any] = {}
        self._has: dict[str, int] = {}
        self._under_way: dict[str, int] = {}
        self._lock = threading.Lock()
        self._woken = EventNotifier(*EventNotifier.descriptors())
        self.versions = self.bytes = 0
        weights.follow()
        threading.Thread(target=self._run, name="weights", daemon=True).start()

    def set_followers(self, followers: Mapping[str, Any]) -> None:
        """Node agents by node."""
        with self._lock:
            for node, node_agent in self._followers.items():
                if followers.get(node) != node_agent:  # another node agent has other memory
                    self._has.pop(node, None)
                    self._under_way.pop(node, None)
            self._followers = followers
        self._woken.notify()

    def delivered(self, node: str) -> int:
        return self._has.get(node, -1)

    def _run(self) -> None:
        try:
            self._carry()
        except BaseException:
            traceback.print_exc()
            os._exit(1)  # roles notice a missing node agent, but not one that sends nothing

    def _carry(self) -> None:
        poll = select.poll()
        for notifier in (self._weights.changed, self._woken):
            poll.register(notifier.fileno(), select.POLLIN)
        while True:
            poll.poll()
            self._weights.changed.clear()
            self._woken.clear()
            newest = self._weights.version()
            with self._lock:
                due = {
                    node: node_agent for node, node_agent in self._followers.items()
                    if node not in self._under_way and self._has.get(node, -1) != newest
                }
            if newest >= 0 and due:
                began = time.monotonic()
                self._send(due)
                time.sleep(max(0.0, began + self._pause - time.monotonic()))

    def _send(self, due: Mapping[str, Any]) -> None:
        version = self._weights.read(self._flat)
        held = ray.put(self._flat)
        self.versions += 1
        for node, node_agent in due.items():
            with self._lock:
                self._under_way[node] = version
            self.bytes += self._flat.nbytes
            future = node_agent.deliver.remote(self._weights.name, held, version).future()
            future.add_done_callback(
                lambda done, node=node, node_agent=node_agent, held=held: self._arrived(node, node_agent, version, done)
            )

    def _arrived(self, node: str, node_agent: Any, version: int, done: Any) -> None:
        """A node agent that died is left out until the registry names its successor; all else is tried again."""
        error, pause = done.exception(), 0.0
        with self._lock:
            if self._followers.get(node) != node_agent:
                return
            self._under_way.pop(node, None)
            if error is None:
                self._has[node] = version
            elif isinstance(error, ray.exceptions.ActorDiedError):
                self._followers = {other: it for other, it in self._followers.items() if other != node}
            else:
                pause = RETRY_SECONDS
        self._tell()
        threading.Timer(pause, self._woken.notify).start() if pause else self._woken.notify()


def store_bytes(node: str) -> float:
    return float(next(one["Resources"].get("object_store_memory", 1e9) for one in ray.nodes() if one["NodeID"] == node))


def node_agent_class() -> Any:
    """The Ray actor class: it reserves nothing, and answers several calls at once."""
    return ray.remote(num_cpus=0, max_concurrency=CALLS_AT_ONCE, max_restarts=0)(NodeAgentActor)
