"""One node's part of a run on a cluster: the blocks of the edges that its roles use, and streams to other nodes.

    role's process ──fetch_blocks──▶ node agent ◀══ gRPC ══▶ node agent of another node
          └──────── shared memory ──────┘

Roles of one node share memory, as on a single machine. Node agents carry what they exchange with roles of other nodes
between the blocks of both (see `pappus.transports.mirrors`). Weights are carried by `ray_node_agent`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress

from pappus.edges.edge import Edge
from pappus.transports.fd_server import FdServer
from pappus.transports.memory import Notifier, SharedBlock
from pappus.transports.mirrors import Hold, Mirror, MirroredEdge, PortLocations
from pappus.transports.tls import Tls

CLOSE_SECONDS = 4.0


class NodeAgent:
    """Owns the blocks of one node, hands them to its roles, and mirrors edges to other nodes.

    `delivered(weights edge, node)` is the newest version that a node has. Any thread may call the methods.
    """

    def __init__(
        self, node: str, ip: str, edges: Mapping[str, Edge], token: str,
        delivered: Callable[[str, str], int] = lambda edge, node: 0, tls: Tls | None = None,
    ) -> None:
        self.node = node
        self._edges, self._delivered = edges, delivered
        self._blocks: dict[str, SharedBlock] = {}
        self._lock = threading.Lock()
        self._mirrored: dict[str, MirroredEdge] = {}
        self._heard: dict[str, dict[Notifier, str]] = {}
        self._held: set[str] = set()
        """Edges whose releases wait for weights."""
        self._closed = False
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._runner.run(self._open(ip, token, tls))
        self._thread = threading.Thread(target=self._run, name="node_agent", daemon=True)
        self._thread.start()

    def block(self, name: str) -> SharedBlock:
        """The block of an edge on this node, made when it is first asked for."""
        with self._lock:
            if name not in self._blocks:
                self._blocks[name] = self._edges[name].new_block(SharedBlock.create)
            return self._blocks[name]

    def place(self, edge: str, placement: PortLocations) -> None:
        """Where the ends of an edge now are. When it returns, roles that moved here may start."""
        asyncio.run_coroutine_threadsafe(self._place(edge, placement), self._loop).result()

    def look_again(self) -> None:
        """Weights were delivered: slots that waited for them may be released."""
        with suppress(RuntimeError):  # closed meanwhile
            for name in list(self._held):
                self._loop.call_soon_threadsafe(self._streams.wake_all, name)

    def meter(self) -> dict[str, tuple[int, int]]:
        """Messages and bytes of each edge since the start, both ways together."""
        return dict(self._streams.traffic)

    def close(self) -> None:
        """End all streams and close the blocks; processes that have mapped them keep them."""
        if self._closed:
            return
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_SECONDS + 1.0)
        with self._lock:
            for block in self._blocks.values():
                block.close()
            self._blocks = {}

    def _run(self) -> None:
        with self._runner:
            self._loop.run_forever()
            self._runner.run(self._close())

    async def _open(self, ip: str, token: str, tls: Tls | None) -> None:
        from pappus.transports.grpc_mirrors import Streams  # only a node agent needs grpc, not the roles that it serves

        self._streams = Streams(self.node, token, tls)
        self.address = await self._streams.open(ip)
        self._fd_server = FdServer(self._loop, self.block)
        self.socket = self._fd_server.path

    async def _close(self) -> None:
        for name in self._heard:
            self._listen(name, {})
        self._fd_server.close()
        with suppress(TimeoutError):  # the rest ends with the process
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._streams.close()

    async def _place(self, name: str, placement: PortLocations) -> None:
        if name not in self._mirrored:
            if placement.hub != self.node and not placement.at(self.node):
                return
            self._mirrored[name] = MirroredEdge(self.node, self._mirror(name))
        edge = self._mirrored[name]
        edge.place(placement)
        self._streams.follow(name, edge)
        self._listen(name, edge.notifiers())

    def _mirror(self, name: str) -> Mirror:
        def hold(weights: str) -> Hold:
            self._held.add(name)
            opened = self._edges[weights].open(self.block(weights))
            return Hold(opened.version, lambda node: self._delivered(weights, node))

        return self._edges[name].mirror(self.block(name), hold)

    def _listen(self, name: str, notifiers: dict[Notifier, str]) -> None:
        """Listen to these notifiers of an edge, and no others."""
        heard = self._heard.get(name, {})
        for notifier in heard.keys() - notifiers.keys():
            self._loop.remove_reader(notifier.fileno())
        for notifier, node in notifiers.items():
            self._loop.add_reader(notifier.fileno(), self._rang, notifier, name, node)
        self._heard[name] = notifiers

    def _rang(self, notifier: Notifier, name: str, node: str) -> None:
        notifier.clear()
        self._streams.wake(name, node)

