"""Speaking `pappus.proto` by hand, right or wrong, and runs that listen."""

from __future__ import annotations

import queue
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from pappus.config import WireConfig
from pappus.roles.seed_actor import write_request
from pappus.transports.codec import Hello, Tensor, Welcome, decode_env_group, encode_env_group, layout
from pappus.transports.grpc_request_server import GrpcRequestServer
from pappus.transports.memory import EventNotifier
from pappus.types import ArraySpec, Request, leaves_of, map_leaves
from tests.contracts.calls_contract import ACTION, ENVS, REQUEST, take, timestep
from tests.process_tools import Training, eventually

SECONDS = 20.0
TENSORS, ACTION_TENSOR = layout(REQUEST), Tensor("action", (), "int64")


@contextmanager
def request_server_at(listen: str = "127.0.0.1:0", **settings: Any) -> Iterator[GrpcRequestServer]:
    """A request server on a real socket."""
    request_server = open_request_server(listen, **settings)
    try:
        yield request_server
    finally:
        request_server.close()


def open_request_server(listen: str = "127.0.0.1:0", **settings: Any) -> GrpcRequestServer:
    """A request server that whoever opens it closes."""
    wire = WireConfig(listen=listen, **settings)
    notifier = EventNotifier(*EventNotifier.descriptors())
    return GrpcRequestServer("inference", wire, REQUEST, ACTION, (5,), "run", notifier)


def hello(**changes: Any) -> Hello:
    """A Hello to which nobody can object, with changes."""
    return replace(Hello(TENSORS, ACTION_TENSOR, 1, ENVS, "test"), **changes)


def steps(env_group: int = 0, change: Callable[[Request], object] = lambda _: None) -> bytes:
    """Steps to which nobody can object, with changes."""
    request: Request = map_leaves(lambda leaf: np.zeros((ENVS, *leaf.shape), leaf.dtype), REQUEST)
    write_request(request, timestep(1))
    change(request)
    return encode_env_group(env_group, leaves_of(request))


class Line:
    """A stream that says whatever it is told to."""

    def __init__(self, target: str, *messages: bytes, credentials: grpc.ChannelCredentials | None = None) -> None:
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._channel = (
            grpc.insecure_channel(target) if credentials is None else grpc.secure_channel(target, credentials)
        )
        act = self._channel.stream_stream("/pappus.Inference/Act")
        self._stream = act(iter(self._outgoing.get, None), timeout=SECONDS)
        for message in messages:
            self.say(message)

    def say(self, message: bytes) -> None:
        self._outgoing.put(message)

    def hear(self) -> bytes:
        """The next message."""
        return bytes(next(self._stream))

    def ending(self) -> tuple[str, str]:
        """The status that the server ends the stream with, and its text."""
        try:
            for _ in self._stream:
                pass
        except grpc.RpcError as error:
            return error.code().name, error.details()
        finally:
            self.close()
        return "OK", ""

    def close(self) -> None:
        self._outgoing.put(None)
        self._stream.cancel()
        self._channel.close()


class Witness(Line):
    """A client without a fault."""

    def __init__(self, request_server: GrpcRequestServer) -> None:
        super().__init__(request_server.address, hello(name="witness").encode())
        self._request_server = request_server
        assert Welcome.decode(self.hear()).run == "run"

    def round_trip(self) -> None:
        """Steps out, actions back. The request server must have no other calls."""
        self.say(steps())
        (call,) = take(self._request_server, 1)
        call.reply[...] = np.arange(ENVS)
        call.answer()
        env_group, actions = decode_env_group(self.hear(), "Actions")
        assert env_group == 0 and np.frombuffer(actions, np.int64).tolist() == list(range(ENVS))


def with_observation(name: str, value: float) -> Callable[[Request], object]:
    """A change for `steps`: one number of the observation is another."""
    return lambda request: request.observation[name].reshape(-1).__setitem__(0, value)


def other_tensor(index: int, **changes: Any) -> tuple[Tensor, ...]:
    """The layout with one tensor changed."""
    return tuple(replace(tensor, **changes) if i == index else tensor for i, tensor in enumerate(TENSORS))


def size_of_env_group() -> int:
    """Bytes of the tensors of one env group."""
    leaves: list[ArraySpec] = leaves_of(REQUEST)
    return sum(leaf.prefixed(ENVS).nbytes for leaf in leaves)


class Listening(Training):
    """A run that others may join, in a process of its own: `pappus train --listen` or `pappus serve`."""

    def __init__(self, directory: Path, command: str, *words: str) -> None:
        super().__init__(directory, *words, command=command)

    def address(self) -> str:
        """Where it listens."""
        pattern = re.compile(r"listening on (\S+)")
        found = eventually(lambda: self.process.poll() is not None or pattern.search(self.output()), 60)
        assert isinstance(found, re.Match), self.output()
        return str(found[1])
