"""All streams of one node agent, in one event loop: a server for spokes of its hubs, and a stream to each other hub."""

from __future__ import annotations

import asyncio
import hmac
import random
from functools import partial
from typing import Any

import grpc
import grpc.aio

from pappus.errors import RunError, WireError
from pappus.transports.addresses import Address
from pappus.transports.grpc_server import SERVER_OPTIONS, Refusal, first_message
from pappus.transports.grpc_streams import METHOD, SERVICE, TOKEN, MirrorStream, Opening, SpokeStream
from pappus.transports.mirrors import Hub, MirroredEdge, Misplaced, Peer

GRACE_SECONDS = 0.5
"""Streams that were ended finish sooner; cut off, they would leave a line in the log of the other side."""


class Streams:
    """Follows the placements of all edges of one node."""

    def __init__(self, node: str, token: str) -> None:
        self._node, self._token, self._life = node, token.encode(), random.SystemRandom().getrandbits(62)
        self._edges: dict[str, MirroredEdge] = {}
        self._hub_lines: dict[tuple[str, str], tuple[Hub, MirrorStream]] = {}
        """By edge and the spoke's node."""
        self._spoke_lines: dict[str, SpokeStream] = {}
        self._ended: set[asyncio.Task[None]] = set()
        """Tasks of streams that were ended, until they are done."""
        self.traffic: dict[str, tuple[int, int]] = {}
        """Messages and bytes of each edge since the start, both ways together."""

    async def open(self, host: str) -> str:
        unlimited = ("grpc.max_receive_message_length", -1)
        self._server = grpc.aio.server(options=[*SERVER_OPTIONS, unlimited])
        handlers = {METHOD: grpc.stream_stream_rpc_method_handler(self._serve)}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        try:
            port = self._server.add_insecure_port(str(Address(host, 0)))
        except RuntimeError:
            raise RunError(f"host={host!r} cannot be listened on; give an address of this machine") from None
        await self._server.start()
        return str(Address(host, port))

    async def close(self) -> None:
        for _, line in self._hub_lines.values():
            line.end()
        for name in list(self._spoke_lines):
            self._end(name)
        await asyncio.gather(*self._ended, return_exceptions=True)
        await self._server.stop(GRACE_SECONDS)

    def follow(self, name: str, edge: MirroredEdge) -> None:
        """End and begin streams as the edge's placement now asks; called after each change."""
        self._edges[name] = edge
        for (of, node), (hub, stream) in self._hub_lines.items():
            if of == name and (hub is not edge.hub or not edge.placement.at(node)):
                stream.end()
        if name in self._spoke_lines and self._spoke_lines[name].spoke is not edge.spoke:
            self._end(name)
        if edge.spoke is not None and name not in self._spoke_lines:
            opening = Opening(name, edge.placement.hub_epoch, self._node, self._life)
            line = SpokeStream(opening, edge.spoke, edge.placement, self._token, partial(self._count, name))
            self._spoke_lines[name] = line

    def wake(self, edge: str, node: str) -> None:
        """Something may have changed that this node should know."""
        if (edge, node) in self._hub_lines:
            self._hub_lines[edge, node][1].wake()
        elif edge in self._spoke_lines:
            self._spoke_lines[edge].wake()

    def wake_all(self, edge: str) -> None:
        """The same for all spokes of a hub."""
        for (of, _), (_, line) in self._hub_lines.items():
            if of == edge:
                line.wake()

    def troubles(self) -> dict[str, str]:
        """Of each edge that has no stream to its hub, why."""
        return {name: line.trouble for name, line in list(self._spoke_lines.items()) if line.trouble}

    def _end(self, name: str) -> None:
        line = self._spoke_lines.pop(name)
        self._ended.add(line.task)
        line.task.add_done_callback(self._ended.discard)
        line.end()

    async def _serve(self, _: Any, context: Any) -> None:
        try:
            key, line, welcome = await self._greet(context)
            try:
                await context.write(welcome)
                await line.carry(context.read, context.write)
            finally:
                line.end()
                if key in self._hub_lines and self._hub_lines[key][1] is line:
                    del self._hub_lines[key]
        except Refusal as refusal:
            await context.abort(refusal.code, refusal.text)
        except WireError as error:
            await context.abort(grpc.StatusCode.ABORTED, str(error))

    async def _greet(self, context: Any) -> tuple[tuple[str, str], MirrorStream, bytes]:
        if not hmac.compare_digest(dict(context.invocation_metadata()).get(TOKEN, b""), self._token):
            raise Refusal("UNAUTHENTICATED", "the token is wrong")
        opening, hello = Opening.decode(await first_message(context, "opening"))
        hub, key = self._hub(opening), (opening.edge, opening.node)
        if key in self._hub_lines:  # it has not noticed yet that the spoke gave it up
            self._hub_lines[key][1].end()
        try:
            half, welcome = hub.greet(Peer(opening.node, opening.life), hello)
        except Misplaced as error:
            raise Refusal("FAILED_PRECONDITION", str(error)) from None
        line = MirrorStream(half, partial(self._count, opening.edge))
        self._hub_lines[key] = hub, line
        return key, line, welcome

    def _hub(self, opening: Opening) -> Hub:
        edge = self._edges.get(opening.edge)
        if edge is None or edge.hub is None:
            raise Refusal("FAILED_PRECONDITION", f"the hub of {opening.edge!r} is not on {self._node}, or not yet")
        if edge.placement.hub_epoch != opening.hub_epoch:
            raise Refusal(
                "FAILED_PRECONDITION",
                f"{opening.node} seeks the hub of {opening.edge!r} in epoch {opening.hub_epoch}, and on {self._node} "
                f"it is in epoch {edge.placement.hub_epoch}; one of them will get an update",
            )
        return edge.hub

    def _count(self, edge: str, message: bytes) -> None:
        messages, total = self.traffic.get(edge, (0, 0))
        self.traffic[edge] = messages + 1, total + len(message)
