"""A simulator's line to a Pappus run: this file and grpcio are all it needs.

    client = Client("127.0.0.1:5000", {"observation": ("float32", [3])}, ("int64", []), envs=2)
    actions = client.act([Step([0.1, 0.2, 0.3], "first"), Step([0.4, 0.5, 0.6], "first")])
    actions = client.act([Step([0.2, 0.2, 0.3], reward=1.0), Step([0.4, 0.4, 0.6], "terminated", reward=-1.0)])

Each call sends one step of every env and returns one action for each. The action that answers a `terminated` or
`truncated` step is ignored; the env's next step is the `first` of a new episode.

The protocol is described in docs/reference/protocol.md and pappus.proto.
"""

from __future__ import annotations

import queue
import random
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

PROTOCOL = 1
HANDSHAKE_SECONDS = 10.0
FORMATS = {
    "bool": "?", "uint8": "B", "int8": "b", "int16": "h", "int32": "i", "int64": "q", "float32": "f", "float64": "d",
}
OPTIONS = [
    ("grpc.max_receive_message_length", -1),
    # a machine that vanished says nothing
    ("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 10_000), ("grpc.http2.ping_timeout_ms", 10_000),
]
SCALARS = {
    "first": "bool", "reward": "float32", "discount": "float32", "valid": "bool", "episode_return": "float32",
    "episode_length": "int32",
}
Kind = tuple[str, Sequence[int]]
"""dtype and shape, such as `("float32", [3])`."""


@dataclass
class Step:
    """What one env shows. `reward` is what the last action earned, and means nothing in a `first` step."""

    observation: Any
    """All its numbers in a row, or bytes; a dict of those if the observation has several parts."""
    kind: str = "running"
    """first, running, terminated or truncated."""
    reward: float = 0.0
    metrics: Mapping[str, float] | None = None
    """What else the env measured, such as `{"success": 1.0}`; the run shows the means as `env/success`."""


class RunOver(Exception):
    """The run has come to its end; the message says why. There is nothing more to do."""


class Client:
    """A group of envs that takes turns with the run: `act` sends their steps and waits for their actions."""

    def __init__(
        self, address: str, observation: dict[str, Kind], action: Kind, envs: int = 1, name: str = "", token: str = "",
        patience: float = 60.0, credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        """`credentials` are what `grpc.ssl_channel_credentials` makes of certificates, for a run that uses TLS."""
        self._address, self._patience, self._envs, self._credentials = address, patience, envs, credentials
        self._observation, self._action = observation, action
        self._returns, self._lengths = [0.0] * envs, [0] * envs
        tensors = [_tensor(_path(key, observation), *kind) for key, kind in sorted(observation.items())]
        tensors += [_tensor(key, dtype, []) for key, dtype in SCALARS.items()]
        hello = [_number(1, PROTOCOL), _bytes(2, token.encode()), _bytes(3, name.encode()), _number(4, 1)]
        hello += [_number(5, envs), *(_bytes(6, tensor) for tensor in tensors), _bytes(7, _tensor("action", *action))]
        self._hello = _bytes(1, b"".join(hello))
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._stream: Any = None

    def act(self, steps: Sequence[Step]) -> list[Any]:
        """One action per env: a number, or a list of them where the action's shape is not []."""
        assert len(steps) == self._envs, f"{len(steps)} steps came, and there are {self._envs} envs"
        message = self._encode(steps)
        lost, pause = 0.0, 0.1
        while True:
            try:
                if self._stream is None:
                    self._connect()
                self._outgoing.put(message)
                return self._decode(next(self._stream))
            except (grpc.RpcError, StopIteration) as error:
                self.close()
                if isinstance(error, grpc.RpcError) and error.code() is grpc.StatusCode.OUT_OF_RANGE:
                    raise RunOver(error.details()) from None
                passing = isinstance(error, StopIteration) or error.code() in PASSING
                lost = lost or time.monotonic()  # the time that actions take does not count
                if not passing or time.monotonic() - lost > self._patience:
                    raise
                time.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, 5.0)

    def close(self) -> None:
        """Leave; the next `act` connects again."""
        if self._stream is not None:
            self._outgoing.put(None)
            self._stream.cancel()
            self._channel.close()
            self._stream = None

    def _connect(self) -> None:
        if self._credentials is None:
            self._channel = grpc.insecure_channel(self._address, OPTIONS)
        else:
            self._channel = grpc.secure_channel(self._address, self._credentials, OPTIONS)
        self._outgoing = queue.SimpleQueue()
        self._outgoing.put(self._hello)
        act = self._channel.stream_stream("/pappus.Inference/Act")
        self._stream = act(iter(self._outgoing.get, None), wait_for_ready=False)
        guard = threading.Timer(HANDSHAKE_SECONDS, self._stream.cancel)
        guard.start()
        try:
            next(self._stream)  # Welcome
        finally:
            guard.cancel()

    def _encode(self, steps: Sequence[Step]) -> bytes:
        columns = [self._column(steps, key, dtype) for key, (dtype, _) in sorted(self._observation.items())]
        rows = [self._scalars(env, step) for env, step in enumerate(steps)]
        for values, dtype in zip(zip(*rows, strict=True), SCALARS.values(), strict=True):
            columns.append(struct.pack(f"<{self._envs}{FORMATS[dtype]}", *values))
        return _bytes(2, _bytes(2, b"".join(columns)) + _metrics(steps))  # env group 0, which need not be said

    def _column(self, steps: Sequence[Step], key: str, dtype: str) -> bytes:
        parts = [step.observation[key] if isinstance(step.observation, dict) else step.observation for step in steps]
        return b"".join(
            part if isinstance(part, bytes) else struct.pack(f"<{len(part)}{FORMATS[dtype]}", *part) for part in parts
        )

    def _scalars(self, env: int, step: Step) -> tuple[bool, float, float, bool, float, int]:
        if step.kind == "first":
            self._returns[env], self._lengths[env] = 0.0, 0
            return True, 0.0, 0.0, False, 0.0, 0
        self._returns[env] += step.reward
        self._lengths[env] += 1
        length = self._lengths[env] if step.kind in ("terminated", "truncated") else 0
        return False, step.reward, float(step.kind != "terminated"), True, self._returns[env], length

    def _decode(self, message: bytes) -> list[Any]:
        dtype, shape = self._action
        width = 1
        for size in shape:
            width *= size
        layout = f"<{self._envs * width}{FORMATS[dtype]}"
        values = struct.unpack(layout, message[-struct.calcsize(layout) :])  # the values end the message
        rows = [list(values[i * width : (i + 1) * width]) for i in range(self._envs)]
        return rows if shape else [row[0] for row in rows]


PASSING = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL)
"""What may be over when the client connects again."""


def _path(key: str, observation: dict[str, Kind]) -> str:
    return key if list(observation) == ["observation"] else f"observation/{key}"


def _metrics(steps: Sequence[Step]) -> bytes:
    """By name: the sum of the values, and how many they are."""
    values: dict[str, list[float]] = {}
    for step in steps:
        for name, value in (step.metrics or {}).items():
            values.setdefault(name, []).append(float(value))
    return b"".join(
        _bytes(3, _bytes(1, name.encode()) + _bytes(2, struct.pack("<2d", sum(found), len(found))))
        for name, found in values.items()
    )


def _tensor(name: str, dtype: str, shape: Sequence[int]) -> bytes:
    sizes = b"".join(map(_varint, shape))
    return _bytes(1, name.encode()) + _bytes(2, sizes) + _bytes(3, dtype.encode())


def _varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + _varint(number >> 7)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value
