"""The streams of a node agent, over gRPC: a server for spokes of the hubs here, and a stream to each hub elsewhere.

    spoke → hub   a line of JSON (an `Opening`), followed by the spoke's hello
    hub → spoke   the hub's welcome
    both ways     what the halves of the edge say, raw bytes

The token is in the metadata, so that no message without it is read. Everything here runs in one event loop.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import random
import traceback
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

import grpc
import grpc.aio

from pappus.errors import RunError, WireError
from pappus.transports.addresses import Address
from pappus.transports.grpc_request_client import CHANNEL_OPTIONS
from pappus.transports.grpc_server import HANDSHAKE_SECONDS, SERVER_OPTIONS, Refusal, first_message
from pappus.transports.mirrors import Half, Hub, MirroredEdge, Misplaced, Peer, PortLocations, Spoke
from pappus.transports.tls import Tls

SERVICE, METHOD = "pappus.Mirrors", "Carry"
TOKEN = "pappus-token-bin"
GRACE_SECONDS = 0.5
"""Streams that were ended finish sooner; cut off, they would leave a line in the log of the other side."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds before the first and the last attempts to connect again."""
_DIRECT = [
    ("grpc.use_local_subchannel_pool", 1),  # each stream has a connection of its own: slots do not hold up requests
    ("grpc.enable_http_proxy", 0),  # nodes of one cluster reach each other
]
_ENDS_A_STREAM = (grpc.aio.BaseError, asyncio.InvalidStateError, TimeoutError, WireError)
"""Errors that may be gone when the stream is opened again."""

Count = Callable[[bytes], None]


class Opening(NamedTuple):
    """How a spoke introduces itself."""

    edge: str
    hub_epoch: int
    node: str
    life: int

    @classmethod
    def decode(cls, message: bytes) -> tuple[Opening, bytes]:
        line, _, hello = message.partition(b"\n")
        try:
            opening = cls(*json.loads(line))
            if [type(word) for word in opening] == [str, int, str, int]:
                return opening, hello
            raise TypeError
        except (TypeError, ValueError, RecursionError):
            raise WireError(f"{line[:100]!r} does not open a stream") from None


class MirrorStream:
    """One stream from its welcome to its end, seen from either side."""

    def __init__(self, half: Half, count: Count) -> None:
        self._half, self._count = half, count
        self._awake, self._over = asyncio.Event(), asyncio.Event()
        self._awake.set()

    def wake(self) -> None:
        self._awake.set()

    def end(self) -> None:
        """From now on nothing is applied and nothing new is sent: the memory may have another owner."""
        self._over.set()

    async def carry(self, read: Callable[[], Awaitable[Any]], write: Callable[[bytes], Awaitable[None]]) -> None:
        """Returns when either side ends the stream, and raises what breaks it."""
        tasks = [asyncio.ensure_future(task) for task in (self._read(read), self._write(write), self._over.wait())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._over.set()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, read: Callable[[], Awaitable[Any]]) -> None:
        while (message := await read()) is not grpc.aio.EOF and not self._over.is_set():
            self._count(message)
            self._half.apply(message)
            self.wake()

    async def _write(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        while not self._over.is_set():
            self._awake.clear()
            for message in self._half.changes():
                self._count(message)
                await write(message)
                if self._over.is_set():
                    return
            if self._half.seconds:
                await asyncio.sleep(self._half.seconds)
            else:
                await self._awake.wait()


class SpokeStream(MirrorStream):
    """A spoke's stream to its hub, opened again whenever it ends, until `end` is called."""

    def __init__(
        self, opening: Opening, spoke: Spoke, placement: PortLocations, token: bytes, count: Count, tls: Tls | None
    ) -> None:
        super().__init__(spoke, count)
        self.spoke, self._opening, self._address, self._token = spoke, opening, placement.hub_address, token
        self._tls = tls
        self.trouble = f"{self._address} has not answered yet"
        """Why there is no stream now; empty while there is one."""
        self.task = asyncio.get_running_loop().create_task(self._keep())

    def end(self) -> None:
        super().end()
        self.task.cancel()

    async def _keep(self) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                await self._converse()
                reason = "the stream was ended there"
            except grpc.aio.AioRpcError as error:
                reason = error.details() or error.code().name
            except _ENDS_A_STREAM as error:
                reason = str(error) or f"no welcome came within {HANDSHAKE_SECONDS:.0f} s"
            except Exception as error:
                traceback.print_exc()  # a bug of ours: shown, and the run may continue
                reason = f"{type(error).__name__}: {error}"
            pause = pause if self.trouble else FIRST_PAUSE  # there was a stream
            self.trouble = f"{self._address}: {reason}"
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _converse(self) -> None:
        async with self._channel() as channel:
            call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(metadata=((TOKEN, self._token),))
            try:
                async with asyncio.timeout(HANDSHAKE_SECONDS):
                    await call.write(json.dumps(self._opening).encode() + b"\n" + self.spoke.hello())
                    welcome = await call.read()
                if welcome is grpc.aio.EOF:
                    raise WireError("the stream ended before its welcome")
                self.spoke.welcomed(welcome)
                self._over.clear()
                self.trouble = ""
                await self.carry(call.read, call.write)
            finally:
                call.cancel()


    def _channel(self) -> grpc.aio.Channel:
        options = [*CHANNEL_OPTIONS, *_DIRECT]
        if self._tls is None:
            return grpc.aio.insecure_channel(self._address, options)
        return grpc.aio.secure_channel(self._address, self._tls.channel_credentials(), options)


class Streams:
    """Follows the placements of all edges of one node."""

    def __init__(self, node: str, token: str, tls: Tls | None = None) -> None:
        self._tls = tls
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
        self._server = grpc.aio.server(options=[*SERVER_OPTIONS, ("grpc.max_receive_message_length", -1)])
        handlers = {METHOD: grpc.stream_stream_rpc_method_handler(self._serve)}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        try:
            where = str(Address(host, 0))
            port = (
                self._server.add_insecure_port(where) if self._tls is None
                else self._server.add_secure_port(where, self._tls.server_credentials())
            )
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
            line = SpokeStream(opening, edge.spoke, edge.placement, self._token, partial(self._count, name), self._tls)
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
        """For each edge without a stream to its hub, the reason."""
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
