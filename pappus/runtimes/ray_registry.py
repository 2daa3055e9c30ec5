"""Where the parts of a run on a cluster find each other: a named Ray actor on the driver's node.

A group of roles that starts on a node says so (`settle`) before it builds anything. The registry then starts a node
agent there if there is none, and tells the node agents concerned where the ends of edges are now. A service announces
its address here, and clients look it up; after a restart they find the new one.
"""

from __future__ import annotations

import shutil
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pappus.edges.edge import Edge
from pappus.errors import RunError
from pappus.runtimes.ray_node_agent import node_agent_class
from pappus.topologies.program import Program
from pappus.transports.mirrors import PortLocations
from pappus.transports.tls import Tls

NODE_AGENT_SECONDS = 90.0
"""Time limit for the start of a node agent; Ray replaces a process that fails to start after 60 s."""
CALL_SECONDS = 25.0
"""Time limit for a node agent's answer, including the time in which Ray notices that a node is lost."""
CALLS_AT_ONCE = 1024


class Ends(NamedTuple):
    """Which groups hold the ends of an edge that is carried between nodes."""

    hub: str
    ends: Mapping[int, str]
    readers: frozenset[str]
    """Groups that receive what the hub publishes, if the edge is a broadcast."""


class Location(NamedTuple):
    """Where a group is, or nowhere; the epoch counts its moves from node to node."""

    node: str = ""
    epoch: int = 0


class AgentHandle(NamedTuple):
    """A node's node agent."""

    handle: Any
    started: Future[tuple[str, str]]
    """Its address and its socket."""


class Registry:
    """Placements, node agents and addresses of one run."""

    def __init__(
        self, edges: Mapping[str, Edge], ends: Mapping[str, Ends], token: str, tls: Tls | None = None
    ) -> None:
        self._edges, self._ends, self._token, self._tls = edges, ends, token, tls
        self._locations: dict[str, Location] = defaultdict(Location)
        self._agents: dict[str, AgentHandle] = {}
        self._addresses: dict[str, tuple[str, str]] = {}
        self._lock = threading.Lock()
        """Held while placements are sent: two at once could leave node agents with the older one."""

    def prepare(self, node: str, ip: str) -> None:
        self._agent(node, ip)

    def settle(self, group: str, node: str, ip: str) -> str:
        """A group is about to start on a node; returns the socket of its node agent when all node agents know."""
        agent = self._agent(node, ip)
        with self._lock:
            before = self._locations[group]
            if before.node != node:
                self._locations[group] = Location(node, before.epoch + 1)
                self._tell(group, before.node)
        return agent.started.result()[1]

    def gone(self, group: str, node: str) -> None:
        """A group has left a node that is lost, or whose node agent is."""
        with self._lock:
            location = self._locations[group]
            if location.node == node:
                self._locations[group] = Location(epoch=location.epoch)
                self._tell(group, node)
                self._forget(node)

    def announce(self, name: str, node: str, address: str) -> None:
        self._addresses[name] = (node, address)

    def find(self, name: str) -> tuple[str, str] | None:
        return self._addresses.get(name)

    def nodes(self) -> dict[str, str]:
        return {group: location.node for group, location in list(self._locations.items()) if location.node}

    def carried(self) -> dict[str, tuple[int, int]]:
        """Messages and bytes that went between nodes, by edge; those of streams are counted at both ends."""
        totals: dict[str, tuple[int, int]] = {}
        for agent in list(self._agents.values()):
            for edge, (messages, size) in ray.get(agent.handle.carried.remote(), timeout=CALL_SECONDS).items():
                before = totals.get(edge, (0, 0))
                totals[edge] = (before[0] + messages, before[1] + size)
        return totals

    def live(self) -> None:
        """Never returns: the driver waits for it to notice the registry's death."""
        threading.Event().wait()

    def keep_only(self, folder: str, names: Sequence[str]) -> None:
        """Remove from a folder here what was removed from it on the node of its role."""
        for path in Path(folder).glob("*"):
            if path.is_dir() and path.name not in names:
                shutil.rmtree(path, ignore_errors=True)

    def write(self, path: str, data: bytes, first: bool) -> None:
        """A piece of a file from a node that does not see the run's directory."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb" if first else "ab") as file:
            file.write(data)

    def listing(self, folder: str) -> list[str]:
        return [str(path) for path in sorted(Path(folder).rglob("*")) if path.is_file()]

    def read(self, path: str, offset: int, size: int) -> bytes:
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(size)

    def _agent(self, node: str, ip: str) -> AgentHandle:
        """The node agent of a node, started if there is none; concurrent calls wait for the first."""
        with self._lock:
            agent, mine = self._agents.get(node), False
            if agent is not None and agent.started.done() and not self._answers(agent):
                self._forget(node)
                agent = None
            if agent is None:
                where = NodeAffinitySchedulingStrategy(node, soft=False)
                handle = node_agent_class().options(scheduling_strategy=where).remote(
                    node, ip, self._edges, self._token, self._tls
                )
                agent, mine = AgentHandle(handle, Future()), True
                self._agents[node] = agent
        if mine:
            try:
                agent.started.set_result(ray.get(agent.handle.where.remote(), timeout=NODE_AGENT_SECONDS))
            except Exception as error:
                agent.started.set_exception(RunError(f"the node agent of node {ip} did not start: {error}"))
        try:
            agent.started.result(NODE_AGENT_SECONDS)
        except TimeoutError:
            raise RunError(f"the node agent of node {ip} did not start within {NODE_AGENT_SECONDS:.0f} s") from None
        return agent

    def _answers(self, agent: AgentHandle) -> bool:
        if agent.started.exception() is not None:
            return False
        try:
            ray.get(agent.handle.where.remote(), timeout=CALL_SECONDS)
        except (ray.exceptions.RayError, TimeoutError):
            return False
        return True

    def _forget(self, node: str) -> None:
        """A node agent is lost, and the memory that its groups share. It must not continue beside its successor."""
        agent = self._agents.pop(node, None)
        if agent is not None:
            ray.kill(agent.handle)
        for group, location in list(self._locations.items()):
            if location.node == node:
                self._locations[group] = Location(epoch=location.epoch)

    def _tell(self, group: str, before: str) -> None:
        """Tell the node agents concerned where the ends are that a group holds."""
        messages: dict[str, dict[str, PortLocations]] = {}
        for name, ends in self._ends.items():
            if self._edges[name].broadcast:
                continue
            if group == ends.hub or group in ends.ends.values():
                placement = self._placement(ends)
                concerned = {self._locations[one].node for one in (ends.hub, *ends.ends.values())}
                if group != ends.hub:  # for the ends on other nodes nothing has changed
                    concerned &= {placement.hub, self._locations[group].node}
                for node in concerned | {before}:
                    messages.setdefault(node, {})[name] = placement
        calls = {
            node: self._agents[node].handle.place.remote(placements)
            for node, placements in messages.items() if node in self._agents
        }
        self._await(calls)
        for name, ends in self._ends.items():
            if self._edges[name].broadcast and (group == ends.hub or group in ends.readers):
                self._follow(name, ends, group)

    def _follow(self, name: str, ends: Ends, group: str) -> None:
        """Have the hub's node agent send what it publishes to the nodes of all readers."""
        writer = self._locations[ends.hub].node
        agents = {self._locations[one].node for one in ends.readers} - {writer}
        followers = {node: self._agents[node].handle for node in agents if node in self._agents}
        if writer in self._agents:
            if group == ends.hub:
                self._bring_newest(name, writer, followers)
            if writer in self._agents:
                self._await({writer: self._agents[writer].handle.carry.remote(name, followers)})

    def _bring_newest(self, name: str, writer: str, followers: Mapping[str, Any]) -> None:
        """A writer that moved finds what its predecessor published, as it would on the same node."""
        found = self._await({node: handle.newest.remote(name) for node, handle in followers.items()})
        newest = max((one for one in found if one is not None), key=lambda one: one[1], default=None)
        if newest is not None and writer in self._agents:
            self._await({writer: self._agents[writer].handle.deliver.remote(name, *newest)})

    def _await(self, calls: Mapping[str, Any]) -> list[Any]:
        """The answers of node agents; one that does not answer is lost."""
        answers = []
        for node, call in calls.items():
            try:
                answers.append(ray.get(call, timeout=CALL_SECONDS))
            except (ray.exceptions.RayError, TimeoutError):
                self._forget(node)
        return answers

    def _placement(self, ends: Ends) -> PortLocations:
        hub = self._locations[ends.hub]
        agent = self._agents.get(hub.node)
        if agent is not None and (not agent.started.done() or agent.started.exception() is not None):
            agent = None  # it is being replaced: the group that waits for it will say where it is
        locations = {index: self._locations[group] for index, group in ends.ends.items()}
        return PortLocations(
            hub="" if agent is None else hub.node, hub_epoch=hub.epoch,
            hub_address="" if agent is None else agent.started.result()[0],
            ends={index: (location.node, location.epoch) for index, location in locations.items() if location.node},
        )


def mirrored_ends(program: Program) -> dict[str, Ends]:
    found = {}
    for name, edge in program.edges.items():
        hub, numbers = edge.hub(), {ref: number for number, ref in enumerate(edge.spokes())}
        held = [(spec.group, ref) for spec in program.roles for ref in spec.ends() if ref.edge == name]
        hubs = [group for group, ref in held if ref == hub] or [group for group, _ in held]
        if hub is not None and hubs:
            readers = frozenset(group for group, ref in held if ref != hub) if edge.broadcast else frozenset()
            found[name] = Ends(hubs[0], {numbers[ref]: group for group, ref in held if ref in numbers}, readers)
    return found
