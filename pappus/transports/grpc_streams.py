"""One stream between two node agents, over gRPC: how it is opened (again), and how both halves of an edge meet in it.

    spoke → hub   a line of JSON (an `Opening`), followed by the spoke's hello
    hub → spoke   the hub's welcome
    both ways     what the halves say, raw bytes

The token is in the metadata, so that no message without it is read. Everything here runs in one event loop.
"""

from __future__ import annotations

import asyncio
import json
import random
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import grpc
import grpc.aio

from pappus.errors import WireError
from pappus.transports.grpc_request_client import CHANNEL_OPTIONS
from pappus.transports.grpc_server import HANDSHAKE_SECONDS
from pappus.transports.mirrors import Half, PortLocations, Spoke

SERVICE, METHOD = "pappus.Mirrors", "Carry"
TOKEN = "pappus-token-bin"
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

    def encode(self, hello: bytes) -> bytes:
        return json.dumps(self).encode() + b"\n" + hello

    @classmethod
    def decode(cls, message: bytes) -> tuple[Opening, bytes]:
        line, _, hello = message.partition(b"\n")
        try:
            return cls(*json.loads(line)), hello
        except (TypeError, ValueError):
            raise WireError(f"{line[:100]!r} does not open a stream") from None


class MirrorStream:
    """One stream from its welcome to its end, seen from either side."""

    def __init__(self, half: Half, count: Count) -> None:
        self._half, self._count = half, count
        self._awake, self._over = asyncio.Event(), asyncio.Event()
        self._awake.set()

    def wake(self) -> None:
        """Look for changes."""
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

    def __init__(self, opening: Opening, spoke: Spoke, placement: PortLocations, token: bytes, count: Count) -> None:
        super().__init__(spoke, count)
        self.spoke, self._opening, self._address, self._token = spoke, opening, placement.hub_address, token
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
        async with grpc.aio.insecure_channel(self._address, [*CHANNEL_OPTIONS, *_DIRECT]) as channel:
            call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(metadata=((TOKEN, self._token),))
            try:
                async with asyncio.timeout(HANDSHAKE_SECONDS):
                    await call.write(self._opening.encode(self.spoke.hello()))
                    welcome = await call.read()
                if welcome is grpc.aio.EOF:
                    raise WireError("the stream ended before its welcome")
                self.spoke.welcomed(welcome)
                self._over.clear()
                self.trouble = ""
                await self.carry(call.read, call.write)
            finally:
                call.cancel()
