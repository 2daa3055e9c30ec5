"""Where the parts of a run on a cluster find each other: a named Ray actor on the driver's node.

A group of roles that starts somewhere says so (`settle`) before it builds anything. The registry then sees to it that
its node has a node agent, and tells all node agents concerned where the ends of edges live now. Whoever serves something at
an address announces it here, and others look it up; after a restart the address is another, and they find that.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pappus.edges.edge import Edge
from pappus.errors import RunError
from pappus.runtimes.ray_node_agent import node_agent_class
from pappus.topologies.program import Program, RoleSpec
from pappus.transports.mirrors import PortLocations

NODE_AGENT_SECONDS = 90.0
"""A node agent that has not started by then is given up; a process that fails to start is replaced by Ray after 60."""
CALL_SECONDS = 25.0
"""For a node agent's answer: Ray takes a part of it to notice that a node is lost."""
CALLS_AT_ONCE = 1024


class Ends(NamedTuple):
    """Which groups hold the ends of an edge that is carried between nodes."""

    hub: str
    ends: Mapping[int, str]
    readers: frozenset[str]
    """Groups that receive what the hub publishes, if the edge is a broadcast."""


class Home(NamedTuple):
    """Where a group lives; the epoch counts its moves from node to node."""

    node: str
    epoch: int


@dataclass
class Post:
    """A node's node agent."""

    handle: Any
    address: str = ""
    socket: str = ""
    ready: threading.Event = field(default_factory=threading.Event)
    failure: str = ""


class Registry:
    """Placements, node agents and addresses of one run."""

    def __init__(self, edges: Mapping[str, Edge], ends: Mapping[str, Ends], token: str) -> None:
        self._edges, self._ends, self._token = edges, ends, token
        self._homes: dict[str, Home] = {}
        self._epochs: dict[str, int] = {}
        self._posts: dict[str, Post] = {}
        self._addresses: dict[str, tuple[str, str]] = {}
        self._lock = threading.Lock()
        """Held while placements are told: two that cross would leave node agents with the older one."""

    def prepare(self, node: str, host: str) -> None:
        """Roles will come to a node: have its node agent start while they do."""
        self._post(node, host)

    def settle(self, group: str, node: str, host: str) -> str:
        """A group is about to live on a node; the socket of its node agent, when all know."""
        post = self._post(node, host)
        with self._lock:
            before = self._homes.get(group)
            if before is None or before.node != node:
                self._epochs[group] = self._epochs.get(group, 0) + 1
                self._homes[group] = Home(node, self._epochs[group])
                self._tell(group, before)
        return post.socket

    def gone(self, group: str, node: str) -> None:
        """A group has left a node that is lost, or of which the node agent is."""
        with self._lock:
            home = self._homes.get(group)
            if home is not None and home.node == node:
                del self._homes[group]
                self._tell(group, home)
                self._forget(node)

    def announce(self, name: str, node: str, address: str) -> None:
        """Something is served on a node, at an address."""
        self._addresses[name] = (node, address)

    def find(self, name: str) -> tuple[str, str] | None:
        """The node and the address where something is served."""
        return self._addresses.get(name)

    def nodes(self) -> dict[str, str]:
        """Where each group lives."""
        return {group: home.node for group, home in self._homes.items()}

    def carried(self) -> dict[str, tuple[int, int]]:
        """Messages and bytes that went between nodes, by edge; those of streams are counted at both ends."""
        totals: dict[str, tuple[int, int]] = {}
        for post in list(self._posts.values()):
            for edge, (messages, size) in ray.get(post.handle.carried.remote(), timeout=CALL_SECONDS).items():
                before = totals.get(edge, (0, 0))
                totals[edge] = (before[0] + messages, before[1] + size)
        return totals

    def live(self) -> None:
        """Never returns: whoever waits for it learns that the registry is gone."""
        threading.Event().wait()

    def keep_only(self, folder: str, names: Sequence[str]) -> None:
        """Remove what was dropped from a folder on the node where its owner is."""
        for path in Path(folder).glob("*"):
            if path.is_dir() and path.name not in names:
                shutil.rmtree(path, ignore_errors=True)

    def write(self, path: str, data: bytes, first: bool) -> None:
        """A piece of a file from a node that does not see the run's directory."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb" if first else "ab") as file:
            file.write(data)

    def listing(self, folder: str) -> list[str]:
        """Files below a folder here."""
        return [str(path) for path in sorted(Path(folder).rglob("*")) if path.is_file()]

    def read(self, path: str, offset: int, size: int) -> bytes:
        """A piece of a file here."""
        with open(path, "rb") as file:
            file.seek(offset)
            return file.read(size)

    def _post(self, node: str, host: str) -> Post:
        """The node agent of a node, started if it has none; whoever comes second waits for the first."""
        with self._lock:
            post, mine = self._posts.get(node), False
            if post is not None and post.ready.is_set() and not self._answers(post):
                self._forget(node)
                post = None
            if post is None or post.failure:
                where = NodeAffinitySchedulingStrategy(node, soft=False)
                handle = node_agent_class().options(scheduling_strategy=where).remote(
                    node, host, self._edges, self._token
                )
                post, mine = Post(handle), True
                self._posts[node] = post
        if mine:
            try:
                post.address, post.socket = ray.get(post.handle.where.remote(), timeout=NODE_AGENT_SECONDS)
            except Exception as error:
                post.failure = f"the node agent of node {host} did not start: {error}"
            post.ready.set()
        if not post.ready.wait(NODE_AGENT_SECONDS) or post.failure:
            raise RunError(post.failure or f"the node agent of node {host} did not start within {NODE_AGENT_SECONDS:.0f} s")
        return post

    def _answers(self, post: Post) -> bool:
        try:
            ray.get(post.handle.where.remote(), timeout=CALL_SECONDS)
        except (ray.exceptions.RayError, TimeoutError):
            return False
        return True

    def _forget(self, node: str) -> None:
        """A node agent is lost, and with it the memory that the groups of its node had in common. One that still lives
        somewhere must not go on beside its successor; its groups notice its end, and settle anew."""
        post = self._posts.pop(node, None)
        if post is not None:
            ray.kill(post.handle)
        for group in [group for group, home in self._homes.items() if home.node == node]:
            del self._homes[group]

    def _tell(self, group: str, before: Home | None) -> None:
        """Tell those concerned where the ends are now that a group holds."""
        messages: dict[str, dict[str, PortLocations]] = {}
        for name, ends in self._ends.items():
            if self._edges[name].broadcast:
                continue
            if group == ends.hub or group in ends.ends.values():
                placement = self._placement(ends)
                concerned = {self._homes[one].node for one in (ends.hub, *ends.ends.values()) if one in self._homes}
                if group != ends.hub:  # for the ends on other nodes nothing has changed
                    concerned &= {placement.hub, self._node_of(group)}
                for node in concerned | ({before.node} if before is not None else set()):
                    messages.setdefault(node, {})[name] = placement
        calls = {
            node: self._posts[node].handle.place.remote(placements)
            for node, placements in messages.items() if node in self._posts
        }
        self._await(calls)
        for name, ends in self._ends.items():
            if self._edges[name].broadcast and (group == ends.hub or group in ends.readers):
                self._follow(name, ends, group)

    def _follow(self, name: str, ends: Ends, group: str) -> None:
        """Have the writer's node agent carry weights to the nodes of all who read them."""
        writer = self._node_of(ends.hub)
        posts = {self._homes[one].node for one in ends.readers if one in self._homes} - {writer, ""}
        followers = {node: self._posts[node].handle for node in posts if node in self._posts}
        if writer in self._posts:
            if group == ends.hub:
                self._bring_newest(name, writer, followers)
            if writer in self._posts:
                self._await({writer: self._posts[writer].handle.carry.remote(name, followers)})

    def _bring_newest(self, name: str, writer: str, followers: Mapping[str, Any]) -> None:
        """A writer that moved finds what its predecessor published, as it would have found it where that was."""
        found = self._await({node: handle.newest.remote(name) for node, handle in followers.items()})
        newest = max((one for one in found if one is not None), key=lambda one: one[1], default=None)
        if newest is not None and writer in self._posts:
            self._await({writer: self._posts[writer].handle.deliver.remote(name, *newest)})

    def _await(self, calls: Mapping[str, Any]) -> list[Any]:
        """The answers of node agents; one that gives none is lost."""
        answers = []
        for node, call in calls.items():
            try:
                answers.append(ray.get(call, timeout=CALL_SECONDS))
            except (ray.exceptions.RayError, TimeoutError):
                self._forget(node)
        return answers

    def _placement(self, ends: Ends) -> PortLocations:
        hub = self._homes.get(ends.hub)
        post = self._posts.get(hub.node) if hub is not None else None
        homes = {index: self._homes[group] for index, group in ends.ends.items() if group in self._homes}
        return PortLocations(
            hub=hub.node if hub is not None and post is not None else "", hub_epoch=hub.epoch if hub is not None else 0,
            hub_address=post.address if post is not None else "",
            ends={index: (home.node, home.epoch) for index, home in homes.items()},
        )

    def _node_of(self, group: str) -> str:
        home = self._homes.get(group)
        return home.node if home is not None else ""


def mirrored_ends(program: Program) -> dict[str, Ends]:
    """The groups that hold the ends of each edge that is carried between nodes."""
    found = {name: _ends_of(edge, program.roles) for name, edge in program.edges.items()}
    return {name: ends for name, ends in found.items() if ends is not None}


def _ends_of(edge: Edge, roles: Sequence[RoleSpec]) -> Ends | None:
    hub, numbers = edge.hub(), {ref: number for number, ref in enumerate(edge.spokes())}
    held = [(spec.group, ref) for spec in roles for ref in spec.ends() if ref.edge == edge.name]
    hubs = [group for group, ref in held if ref == hub] or [group for group, _ in held]
    if hub is None or not hubs:
        return None
    readers = {group for group, ref in held if ref != hub} if edge.broadcast else set()
    return Ends(hubs[0], {numbers[ref]: group for group, ref in held if ref in numbers}, frozenset(readers))


def registry_class() -> Any:
    """The actor's class, as Ray wants it."""
    return ray.remote(num_cpus=0, max_concurrency=CALLS_AT_ONCE, max_restarts=0)(Registry)
