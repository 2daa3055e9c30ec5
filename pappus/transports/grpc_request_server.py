"""The server for envs in other processes, machines and languages: the server's end of `pappus.proto`.

One event loop runs all streams, in a thread of its own until a role waits with `sleep`. From then on it runs within
that wait, in the role's thread: passing a request from thread to thread takes longer than answering it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any, cast

import grpc
import grpc.aio
import numpy as np
import optree

from pappus.config import WireConfig
from pappus.polling import readable
from pappus.telemetry.metrics import Sums
from pappus.transports import codec
from pappus.transports.admission import Admission, Taken
from pappus.transports.grpc_server import (
    SERVER_OPTIONS,
    Ration,
    Refusal,
    Strangers,
    first_message,
    listen,
    understood,
)
from pappus.transports.memory import Notifier
from pappus.transports.plausible import Plausibility
from pappus.types import Array, ArraySpec, Request

LONGEST_SILENCE = 1e-3
"""Seconds after which a role that never waits runs the event loop."""
LONGEST_UNCONNECTED = 5e-3
"""The same while no client is connected: how long a client may wait for its Welcome."""
MAX_STRANGERS = 256
"""Streams that may be open without a Hello."""
MAX_REFUSALS = 1000
"""Refusals a minute that are told of."""
MAX_DEPARTED = 1000
"""Clients that have left whose names are known."""
DISMISS_SECONDS = 1.0
"""How long to wait until all clients have heard that the run is over."""
MAX_HELLO_BYTES = 256 << 10
"""Bytes of a Hello, at most."""


@dataclass(eq=False)
class GrpcCall:
    """One request of an env group."""

    env_group: tuple[int, int]
    """The numbers of its stream, of which no two are the same, and of the env group in it."""
    request: Request
    reply: Array
    stream: Stream
    session: int = 0

    @property
    def origin(self) -> int:
        return self.stream.number

    def answer(self) -> None:
        loop = self.stream.loop
        if loop.is_running():
            loop.call_soon_threadsafe(self.stream.send, self.env_group[1], self.reply)
        else:
            self.stream.send(self.env_group[1], self.reply)
            loop.call_soon(loop.stop)
            loop.run_forever()  # one turn: the reply is sent before anything else is done


@dataclass(eq=False)
class Stream:
    """One client."""

    number: int
    name: str
    env_groups: int
    envs: int
    readers: list[codec.EnvGroupReader]
    requests: list[Request]
    """A request of each env group: written by its reader when it arrives, read until it is answered."""
    context: Any
    loop: asyncio.AbstractEventLoop
    nbytes: int = 0
    """What its envs may take here."""
    task: asyncio.Task[Any] | None = None
    blame: str = ""
    """Why it is dropped, if it is."""
    waiting: set[int] = field(default_factory=set)
    """Env groups that wait for the server."""
    _outgoing: deque[bytes] = field(default_factory=deque)
    _writer: asyncio.Task[None] | None = None

    def send(self, env_group: int, action: Array) -> None:
        """Send actions; the env group may send its next request."""
        self.waiting.discard(env_group)
        self._outgoing.append(codec.encode_env_group(env_group, [action]))
        if self._writer is None:
            self._writer = self.loop.create_task(self._write())

    async def _write(self) -> None:
        with contextlib.suppress(grpc.aio.BaseError, asyncio.InvalidStateError):  # the reader sees the end, too
            while self._outgoing:
                await self.context.write(self._outgoing.popleft())
        self._writer = None


class GrpcRequestServer:
    """A request server for remote clients. `request` and `action` are the specs of one env."""

    def __init__(
        self, name: str, wire: WireConfig, request: Request, action: ArraySpec, choices: tuple[int, ...], run: str,
        notifier: Notifier, steps_held: int = 1, memory: int = 16 << 30,
    ) -> None:
        """`steps_held` and `memory` are for `Admission`."""
        self.name = f"{name} requests"
        self.fileno, self.clear = notifier.fileno, notifier.clear
        self._wire, self._request, self._action, self._notifier = wire, request, action, notifier
        self._welcome = codec.Welcome(codec.layout(request), codec.layout({"action": action})[0], choices, run)
        self._admission = Admission(wire, request, self._welcome, steps_held, memory)
        self._plausibility = Plausibility(request, wire.unusual_factor)
        self._strangers, self._ration, self._refused = Strangers(MAX_STRANGERS), Ration(MAX_REFUSALS), 0
        self._structure: Any = optree.tree_structure(cast(Any, request))
        self._streams: dict[int, Stream] = {}
        self._departed: dict[int, str] = {}
        """Names of streams that ended lately: what they sent may be learned from later."""
        self._numbers = secrets.randbits(40) << 20  # what a predecessor received is blamed on nobody of now
        self._arrived: deque[GrpcCall] = deque()
        self._left: deque[tuple[int, int]] = deque()
        self._news: deque[str] = deque(maxlen=1000)
        self._loop = asyncio.new_event_loop()
        self._commands, self._told, self._ran, self._closing = -1, False, 0.0, False
        self._over = ""
        """Why the run is over, if it is."""
        self._measured = Sums()
        self.take_metrics = self._measured.take
        self._thread: threading.Thread | None = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._loop.run_until_complete(self._open())
        self._thread.start()

    def calls(self) -> list[GrpcCall]:
        longest = LONGEST_SILENCE if self._streams else LONGEST_UNCONNECTED
        if self._thread is None and time.perf_counter() - self._ran > longest:
            self._run_loop(0.0)
        return drain(self._arrived)

    def sleep(self, commands: int, seconds: float) -> bool:
        """As `Waiter.wait`, in the event loop. Always called by the same thread."""
        self._leave_thread()
        if not self._streams and self._notifier.fileno() >= 0:
            return self._sleep_alone(commands, seconds)
        if commands != self._commands:
            self._loop.add_reader(commands, self._tell_of_commands)
            self._commands = commands
        if not self._arrived:
            self._run_loop(seconds)
        told, self._told = self._told, False
        return told

    def left(self) -> list[tuple[int, int]]:
        return drain(self._left)

    def news(self) -> list[str]:
        return drain(self._news)

    def refused(self) -> int:
        refused, self._refused = self._refused, 0
        return refused

    def drop(self, origin: int, reason: str) -> None:
        self._loop.call_soon_threadsafe(self._drop, origin, reason)

    def memory(self) -> list[Array]:
        """No array outlives its client."""
        return []

    def explain(self) -> str:
        return f"{len(self._streams)} clients are connected to {self.address}"

    def _sleep_alone(self, commands: int, seconds: float) -> bool:
        """While no client is connected, env groups of this machine come first: a plain wait wakes faster."""
        notifier = self._notifier.fileno()
        woken = readable([commands, notifier], min(seconds, LONGEST_UNCONNECTED))
        if notifier in woken:
            self._notifier.clear()
        if not woken:
            self._run_loop(0.0)
        return commands in woken

    def close(self, over: str = "") -> None:
        self._leave_thread()
        self._closing = True
        if over:
            self._loop.run_until_complete(self._dismiss(over))
        self._loop.run_until_complete(self._server.stop(0.1))
        self._listeners.close()

    async def _dismiss(self, over: str) -> None:
        """Tell all clients that the run is over, and wait a moment until they have heard it."""
        self._over = f"the run is over: {over}"
        tasks = [stream.task for stream in self._streams.values() if stream.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=DISMISS_SECONDS)

    def _leave_thread(self) -> None:
        """From now on the loop runs in the thread that calls `sleep`."""
        if self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._thread = None
        if self._notifier.fileno() >= 0:
            self._loop.add_reader(self._notifier.fileno(), self._hear_notifier)

    def _run_loop(self, seconds: float) -> None:
        timer = self._loop.call_later(seconds, self._loop.stop) if seconds else self._loop.call_soon(self._loop.stop)
        self._loop.run_forever()
        timer.cancel()
        self._ran = time.perf_counter()

    def _hear_notifier(self) -> None:
        self._notifier.clear()
        self._wake()

    def _tell_of_commands(self) -> None:
        self._told = True
        self._wake()

    def _wake(self) -> None:
        if self._thread is not None:
            self._notifier.notify()
        elif not self._closing:
            self._loop.stop()

    async def _open(self) -> None:
        largest = sum(spec.nbytes for spec in codec.env_group_specs(self._request, self._wire.max_envs))
        most = self._wire.max_message_mib << 20
        limit = ("grpc.max_receive_message_length", min(most, largest) + MAX_HELLO_BYTES)
        self._server = grpc.aio.server(options=[*SERVER_OPTIONS, limit])
        handler = grpc.stream_stream_rpc_method_handler(self._act)
        generic = grpc.method_handlers_generic_handler("pappus.Inference", {"Act": handler})
        self._server.add_generic_rpc_handlers((generic,))
        self._listeners = listen(self._server, self._wire)
        self.address = self._listeners.address
        await self._server.start()
        self._tell(f"listening on {self.address}")

    async def _act(self, _: Any, context: Any) -> None:
        stream: Stream | None = None
        try:
            stream = await self._greet(context)
            await context.write(self._welcome.encode())
            await self._converse(stream, context)
        except Refusal as refusal:
            self._tell_refusal(context.peer() or "somebody", stream, refusal.text)
            await context.abort(refusal.code, refusal.text)
        except asyncio.CancelledError:
            if stream is None or not (stream.blame or self._over):
                raise
            code = grpc.StatusCode.INVALID_ARGUMENT if stream.blame else grpc.StatusCode.OUT_OF_RANGE
            await context.abort(code, stream.blame or self._over)
        finally:
            if stream is not None:
                self._forget(stream)

    async def _greet(self, context: Any) -> Stream:
        message = await first_message(context, "Hello", self._strangers)
        if len(message) > MAX_HELLO_BYTES:
            raise Refusal("RESOURCE_EXHAUSTED", f"a Hello of {len(message)} bytes; at most {MAX_HELLO_BYTES} may be")
        hello = understood(codec.Hello.decode, message)
        streams = self._streams.values()
        taken = Taken(sum(one.env_groups * one.envs for one in streams), sum(one.nbytes for one in streams))
        self._admission.check(hello, taken)
        self._numbers += 1
        name = f"{codec.printable(hello.name) or context.peer()} ({hello.env_groups * hello.envs} envs)"
        specs = codec.env_group_specs(self._request, hello.envs)
        readers = [codec.EnvGroupReader(specs) for _ in range(hello.env_groups)]
        requests = [cast(Request, optree.tree_unflatten(self._structure, reader.arrays)) for reader in readers]
        stream = Stream(
            self._numbers, name, hello.env_groups, hello.envs, readers, requests, context, self._loop,
            self._admission.nbytes(hello), asyncio.current_task(),
        )
        self._streams[stream.number] = stream  # at once, so that concurrent clients do not exceed the limit together
        self._tell(f"{name} joined")
        return stream

    async def _converse(self, stream: Stream, context: Any) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            env_group, request = self._understand(stream, message)
            stream.waiting.add(env_group)
            reply = np.empty((stream.envs, *self._action.shape), self._action.dtype)
            self._arrived.append(GrpcCall((stream.number, env_group), request, reply, stream))
            self._wake()

    def _understand(self, stream: Stream, message: codec.Buffer) -> tuple[int, Request]:
        env_group, payload, metrics = understood(codec.decode_steps, message)
        if env_group >= stream.env_groups:
            last = stream.env_groups - 1
            raise Refusal("INVALID_ARGUMENT", f"env group {env_group} was not announced: env groups are 0 to {last}")
        if env_group in stream.waiting:
            raise Refusal("FAILED_PRECONDITION", f"env group {env_group} sent again before its actions came")
        understood(stream.readers[env_group].read, payload)
        request = stream.requests[env_group]
        if complaint := self._plausibility.complaint(request):
            raise Refusal("INVALID_ARGUMENT", complaint)
        for name, total in metrics.items():
            self._measured.add(name, *total)
        return env_group, request

    def _tell(self, text: str) -> None:
        self._news.append(text)
        self._wake()

    def _tell_refusal(self, peer: str, stream: Stream | None, text: str) -> None:
        self._refused += stream is not None
        passes, held = self._ration.passes()
        if held:
            self._tell(f"{held:,} more were refused")
        if passes:
            self._tell(f"{stream.name} at {peer} was refused: {text}" if stream else f"{peer} was refused: {text}")

    def _drop(self, origin: int, reason: str) -> None:
        stream = self._streams.get(origin)
        if stream is None:
            if name := self._departed.pop(origin, ""):
                self._refused += 1
                self._tell(f"{name}, which has left, counts as refused: {reason}")
        elif stream.task is not None and not stream.blame:
            stream.blame = reason
            self._tell_refusal(stream.context.peer(), stream, reason)
            stream.task.cancel()

    def _forget(self, stream: Stream) -> None:
        if self._streams.pop(stream.number, None) is not None:
            if not stream.blame:
                self._departed[stream.number] = f"{stream.name} at {stream.context.peer()}"
            if len(self._departed) > MAX_DEPARTED:
                del self._departed[next(iter(self._departed))]
            self._left.extend((stream.number, env_group) for env_group in range(stream.env_groups))
            self._tell(f"{stream.name} left")


def drain(queue: deque[Any]) -> list[Any]:
    """Everything in a queue that another thread fills."""
    return [queue.popleft() for _ in range(len(queue))]
