"""An actor's connection to a run elsewhere: the client's end of `pappus.proto`, which connects again by itself.

A reader thread takes actions from the stream; the actor's own thread sends. When the stream breaks, all env groups that
wait for actions ask again as soon as there is a new one: to the server they are new envs.
"""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc
import numpy as np

from pappus.errors import RunError, RunOver, UserError, WireError
from pappus.telemetry.metrics import Measure
from pappus.transports import codec
from pappus.transports.addresses import Address, nearest, read_token
from pappus.transports.grpc_server import HANDSHAKE_SECONDS, MAX_FRAME_BYTES
from pappus.transports.memory import EventNotifier
from pappus.types import Array, EnvSpec, Request, leaves_of, map_leaves, request_spec

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds before the first and the last attempts to connect again."""
HOPELESS = {
    grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.RESOURCE_EXHAUSTED,
}
"""What another attempt would meet again."""
CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000), ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.http2.max_frame_size", MAX_FRAME_BYTES),
]


@dataclass(frozen=True)
class Identity:
    """How a client proves itself, and whom it trusts."""

    name: str = ""
    token_file: str = ""
    authority: str = ""
    """TLS: who must have signed the server's certificate (PEM)."""
    certificate: str = ""
    key: str = ""

    @property
    def tls(self) -> bool:
        return bool(self.authority or self.certificate)

    def channel(self, target: str) -> grpc.Channel:
        """A channel to a target, encrypted where certificates are given."""
        if not self.tls:
            return grpc.insecure_channel(target, CHANNEL_OPTIONS)
        authority, certificate, key = (
            Path(path).read_bytes() if path else None for path in (self.authority, self.certificate, self.key)
        )
        return grpc.secure_channel(target, grpc.ssl_channel_credentials(authority, key, certificate), CHANNEL_OPTIONS)


class GrpcEnvGroup:
    """One group of envs; one request is in flight at a time."""

    def __init__(self, index: int, spec: EnvSpec, num_envs: int, send: Callable[[GrpcEnvGroup], None]) -> None:
        self.request: Request = map_leaves(
            lambda leaf: np.zeros(leaf.shape, leaf.dtype), request_spec(spec, num_envs)
        )
        self.message = codec.EnvGroupEncoder(index, leaves_of(self.request)).encode
        self.read = codec.EnvGroupReader(codec.env_group_specs(spec.action.array, num_envs))
        self.action: Array | None = None
        self.waiting = False
        self.send = partial(send, self)

    def open(self) -> bool:
        return True

    def reply(self) -> Array | None:
        return self.action


class GrpcRequestClient:
    """All env groups of one actor over one stream."""

    name = "inference"

    def __init__(
        self, address: Address, spec: EnvSpec, env_groups: int, envs: int, identity: Identity,
        patience: float = 60.0, tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._address, self._identity, self._patience, self._tell = address, identity, patience, tell
        self._hello = codec.Hello(
            codec.layout(request_spec(spec)), codec.layout({"action": spec.action.array})[0], env_groups, envs,
            identity.name, read_token(identity.token_file),
        )
        self.env_groups = [GrpcEnvGroup(i, spec, envs, self._send) for i in range(env_groups)]
        self._notifier = EventNotifier(*EventNotifier.descriptors())
        self.fileno, self.clear = self._notifier.fileno, self._notifier.clear
        self._lock = threading.Lock()
        self.measured: Measure = dict
        """What the envs measured since the last call, to send with the next request."""
        self._outgoing: queue.SimpleQueue[bytes | None] | None = None
        self._greeting: grpc.Call | None = None
        """The stream that waits for its Welcome."""
        self._closed = threading.Event()
        self._failure: Exception | None = None
        self._connected = False
        self._thread = threading.Thread(target=self._keep_connected, name="wire", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise what made the connection hopeless, if something did."""
        if self._failure is not None:
            raise self._failure

    def explain(self) -> str:
        return f"connected to {self._address}" if self._connected else f"no connection to {self._address}"

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            if self._outgoing is not None:
                self._outgoing.put(None)
            elif self._greeting is not None:
                self._greeting.cancel()
        self._thread.join(5.0)

    def _send(self, env_group: GrpcEnvGroup) -> None:
        with self._lock:  # an env group that waits is asked for again by whoever connects next, and once only
            env_group.action, env_group.waiting = None, True
            if self._outgoing is not None:
                self._outgoing.put(env_group.message(codec.encode_metrics(self.measured())))

    def _keep_connected(self) -> None:
        pause, since, reason = FIRST_PAUSE, time.monotonic(), ""
        while not self._closed.is_set():
            try:
                self._converse(min(HANDSHAKE_SECONDS, max(FIRST_PAUSE, since + self._patience - time.monotonic())))
            except (grpc.RpcError, StopIteration) as error:
                if isinstance(error, grpc.RpcError) and error.code() is grpc.StatusCode.OUT_OF_RANGE:
                    return self._give_up(RunOver(error.details()))
                if isinstance(error, grpc.RpcError) and error.code() in HOPELESS:
                    return self._give_up(UserError(f"{self._address} refused the connection: {error.details()}"))
                if isinstance(error, grpc.RpcError) and error.code() is grpc.StatusCode.UNAVAILABLE:
                    reason = f" ({error.details()})"
            except Exception as error:
                return self._give_up(error)
            if self._closed.is_set():
                return
            if self._connected:
                pause, since, self._connected = FIRST_PAUSE, time.monotonic(), False
                self._tell(f"lost the connection to {self._address}; connecting again")
            elif time.monotonic() - since > self._patience:
                return self._give_up(RunError(f"nobody answered at {self._address} for {self._patience:.0f} s{reason}"))
            self._closed.wait(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, LONGEST_PAUSE)

    def _give_up(self, failure: Exception) -> None:
        self._failure = failure
        self._notifier.notify()

    def _converse(self, seconds: float) -> None:
        """One stream from Hello, which must be answered within so many seconds, to its end."""
        target = nearest(self._address, self._identity.tls)
        outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        outgoing.put(self._hello.encode())
        with self._identity.channel(target) as channel:
            stream = channel.stream_stream("/pappus.Inference/Act")(iter(outgoing.get, None))
            try:
                self._greet(stream, seconds)
                self._tell(f"connected to {target}")
                self._begin(outgoing)
                self._listen(stream)
            finally:
                with self._lock:
                    self._outgoing = self._greeting = None
                outgoing.put(None)
                stream.cancel()

    def _greet(self, stream: grpc.Call, seconds: float) -> None:
        with self._lock:
            self._greeting = stream
            if self._closed.is_set():
                stream.cancel()
        guard = threading.Timer(seconds, stream.cancel)
        guard.start()
        try:
            codec.Welcome.decode(next(stream))
        finally:
            guard.cancel()
        self._connected = True

    def _begin(self, outgoing: queue.SimpleQueue[bytes | None]) -> None:
        """Ask (again) for all env groups that wait."""
        with self._lock:
            for env_group in self.env_groups:
                if env_group.waiting:
                    outgoing.put(env_group.message())
            self._outgoing = outgoing
            if self._closed.is_set():
                outgoing.put(None)

    def _listen(self, stream: Iterator[bytes]) -> None:
        for message in stream:
            number, payload = codec.decode_env_group(message, "Actions")
            if number >= len(self.env_groups):
                raise WireError(f"actions came for env group {number} of {len(self.env_groups)}")
            env_group = self.env_groups[number]
            env_group.read.read(payload)
            env_group.waiting, env_group.action = False, env_group.read.arrays[0]
            self._notifier.notify()
