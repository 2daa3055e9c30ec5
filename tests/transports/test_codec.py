"""Our bytes are protobuf's: each message is held against the official implementation of `pappus.proto`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc
from hypothesis import example, given
from hypothesis import strategies as st

import pappus.transports
from pappus.errors import WireError
from pappus.transports.codec import (
    EnvGroupEncoder,
    EnvGroupReader,
    Hello,
    Tensor,
    Welcome,
    decode_env_group,
    decode_steps,
    describe_difference,
    encode_env_group,
    encode_metrics,
    layout,
    varint,
)
from pappus.types import ArraySpec, ContinuousAction, EnvSpec, request_spec

NUMBERS = st.integers(0, 2**32 - 1)
TENSORS = st.builds(Tensor, st.text(), st.lists(NUMBERS, max_size=4).map(tuple), st.text())
MANY_TENSORS = st.lists(TENSORS, max_size=5).map(tuple)
HELLOS = st.builds(Hello, MANY_TENSORS, TENSORS, NUMBERS, NUMBERS, st.text(), st.text(), NUMBERS)
WELCOMES = st.builds(Welcome, MANY_TENSORS, TENSORS, st.lists(NUMBERS, max_size=4).map(tuple), st.text(), NUMBERS)
HELLO = Hello((Tensor("observation", (84, 300), "uint8"),), Tensor("action", (), "int64"), 2, 16, "me", "secret")
WELCOME = Welcome(HELLO.tensors, HELLO.action, (5, 300), "run")
DECODERS: list[Callable[[bytes], object]] = [
    Hello.decode, Welcome.decode, lambda data: decode_env_group(data, "Steps"),
    lambda data: decode_env_group(data, "Actions"),
]
Official = dict[str, Any]


@pytest.fixture(scope="module")
def official(tmp_path_factory: pytest.TempPathFactory) -> Official:
    """The message classes that protobuf itself makes of the .proto file."""
    folder = Path(pappus.transports.__path__[0])
    out = tmp_path_factory.mktemp("proto") / "pappus.bin"
    assert protoc.main(["protoc", f"-I{folder}", f"--descriptor_set_out={out}", "pappus.proto"]) == 0
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file:
        pool.Add(file)
    names = ("FromClient", "ToClient", "Hello", "Welcome", "Steps", "Actions", "Tensor")
    return {n: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"pappus.{n}")) for n in names}


def theirs(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "shape": tensor.shape, "dtype": tensor.dtype}


def official_hello(official: Official, hello: Hello) -> Any:
    body = official["Hello"](
        protocol=hello.protocol, token=hello.token, name=hello.name, env_groups=hello.env_groups, envs=hello.envs,
        tensors=[theirs(tensor) for tensor in hello.tensors], action=theirs(hello.action),
    )
    return official["FromClient"](hello=body)


def official_welcome(official: Official, welcome: Welcome) -> Any:
    body = official["Welcome"](
        protocol=welcome.protocol, run=welcome.run, tensors=[theirs(tensor) for tensor in welcome.tensors],
        action=theirs(welcome.action), choices=welcome.choices,
    )
    return official["ToClient"](welcome=body)


@given(hello=HELLOS)
def test_hello_is_written_and_read_as_protobuf_does(official: Official, hello: Hello) -> None:
    message = official_hello(official, hello)
    assert official["FromClient"].FromString(hello.encode()) == message
    assert Hello.decode(message.SerializeToString()) == hello


@given(welcome=WELCOMES)
def test_welcome_is_written_and_read_as_protobuf_does(official: Official, welcome: Welcome) -> None:
    message = official_welcome(official, welcome)
    assert official["ToClient"].FromString(welcome.encode()) == message
    assert Welcome.decode(message.SerializeToString()) == welcome


@pytest.mark.parametrize(
    ("outer", "field", "values"), [("FromClient", "steps", "tensors"), ("ToClient", "actions", "action")]
)
@given(env_group=NUMBERS, payload=st.binary(max_size=300))
@example(env_group=0, payload=b"")
def test_env_groups_are_written_and_read_as_protobuf_does(
    official: Official, outer: str, field: str, values: str, env_group: int, payload: bytes
) -> None:
    ours = encode_env_group(env_group, [np.frombuffer(payload, np.uint8)])
    message = official[outer](**{field: {"env_group": env_group, values: payload}})
    assert official[outer].FromString(ours) == message
    number, bytes_read = decode_env_group(message.SerializeToString(), field)
    assert (number, bytes(bytes_read)) == (env_group, payload)


def test_metrics_are_written_and_read_as_protobuf_does(official: Official) -> None:
    metrics = {"success": (2.5, 4.0), "ß": (-1e9, 1.0)}
    ours = EnvGroupEncoder(3, [np.arange(2.0)]).encode(encode_metrics(metrics))
    message = official["FromClient"].FromString(ours)
    assert {one.name: tuple(one.total) for one in message.steps.metrics} == metrics
    env_group, payload, found = decode_steps(message.SerializeToString())
    assert (env_group, bytes(payload), found) == (3, np.arange(2.0).tobytes(), metrics)


@pytest.mark.parametrize("total", [[], [1.0], [np.nan, 1.0], [np.inf, 1.0], [1.0, 0.0], [1.0, -1.0], [1e40, 1.0]])
def test_metrics_that_cannot_be_are_refused(official: Official, total: list[float]) -> None:
    steps = {"metrics": [{"name": "a", "total": total}]}
    with pytest.raises(WireError, match="a finite sum of values and how many"):
        decode_steps(official["FromClient"](steps=steps).SerializeToString())


def test_the_arrays_of_an_env_group_follow_each_other_row_by_row_in_little_endian(official: Official) -> None:
    rows = np.arange(6, dtype=np.int16).reshape(2, 3)
    message = official["FromClient"].FromString(encode_env_group(1, [rows.T, np.array([True, False])]))
    assert message.steps.tensors == b"\0\0\3\0\1\0\4\0\2\0\5\0" + b"\1\0"


def test_numbers_that_are_not_packed_are_read_too(official: Official) -> None:
    unpacked = b"\x0a\x01x" + b"".join(b"\x10" + varint(size) for size in (3, 300)) + b"\x1a\x04int8"
    assert list(official["Tensor"].FromString(unpacked).shape) == [3, 300]
    assert Tensor.decode(unpacked) == Tensor("x", (3, 300), "int8")
    mixed = unpacked + b"\x12\x02\x05\x06"
    assert Tensor.decode(mixed).shape == tuple(official["Tensor"].FromString(mixed).shape) == (3, 300, 5, 6)


UNKNOWN = [b"\x98\x06\x07", b"\xa2\x06\x02hi", b"\xa9\x06" + bytes(8), b"\xad\x06" + bytes(4)]
"""Fields 99 to 101 of every kind: number, bytes, 8 and 4 bytes of fixed size."""


@pytest.mark.parametrize("unknown", UNKNOWN, ids=["number", "bytes", "fixed64", "fixed32"])
def test_fields_of_later_versions_are_skipped(official: Official, unknown: bytes) -> None:
    body = official_hello(official, HELLO).hello.SerializeToString() + unknown
    message = b"\x0a" + varint(len(body)) + body + unknown
    assert official["FromClient"].FromString(message).hello.name == "me"
    assert Hello.decode(message) == HELLO


def test_a_field_that_comes_again_counts_the_last_time(official: Official) -> None:
    body = b"\x0a\x01x\x0a\x01y"
    assert official["Tensor"].FromString(body).name == Tensor.decode(body).name == "y"


def test_numbers_beyond_32_bits_lose_what_is_above(official: Official) -> None:
    body = b"\x10" + varint(2**32 + 5)
    assert list(official["Tensor"].FromString(body).shape) == list(Tensor.decode(body).shape) == [5]


@pytest.mark.parametrize("message", [HELLO.encode(), WELCOME.encode(), encode_env_group(3, [np.arange(5)])])
def test_a_message_that_is_cut_off_anywhere_is_refused(message: bytes) -> None:
    for decode in DECODERS:
        for size in range(len(message)):
            with pytest.raises(WireError):
                decode(message[:size])


def test_every_message_is_told_from_every_other() -> None:
    hello, steps = HELLO.encode(), encode_env_group(0, [np.arange(3)])
    with pytest.raises(WireError, match="another message came where Steps was due"):
        decode_env_group(hello, "Steps")
    with pytest.raises(WireError, match="another message came where Hello was due"):
        Hello.decode(steps)
    with pytest.raises(WireError, match="another message"):
        Hello.decode(hello + steps)


@pytest.mark.parametrize(
    ("garbage", "sentence"),
    [
        (b"\x0a\x02\x08\x80", "cut off within a number"),
        (b"\x0a\x02\x08" + b"\xff" * 11, "cut off within a number"),
        (b"\x0a\x05\x08", "a field of 5 bytes has 1"),
        (b"\x0b", "wire type 3"),
        (b"\x00\x01", "field 0"),
        (b"\x0a\x03\x12\x01\xff", "not UTF-8"),
        (b"\x0a\x02\x10\x01", "a number stands where bytes are due"),
        (b"\x0a\x02\x22\x00", "bytes stand where a number is due"),
        (b"\xa9\x06\x00", "cut off within a field of fixed size"),
    ],
)
def test_garbage_is_refused_with_a_reason(garbage: bytes, sentence: str) -> None:
    with pytest.raises(WireError, match=sentence):
        Hello.decode(garbage)


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_nothing_but_wire_errors_comes_of_random_bytes(data: bytes, inner: bytes) -> None:
    for wrapped in (data, b"\x0a" + varint(len(inner)) + inner + data, b"\x12" + varint(len(inner)) + inner):
        for decode in DECODERS:
            try:
                understood = decode(wrapped)
            except WireError as error:
                assert str(error), "whoever sent it is told why"
            else:
                assert understood is not None


def test_tensors_of_another_size_than_the_layout_are_refused() -> None:
    specs = [ArraySpec((2, 3), "float32"), ArraySpec((2,), "bool")]
    reader = EnvGroupReader(specs)
    with pytest.raises(WireError, match="25 bytes of tensors came, and the layout of the handshake has 26"):
        reader.read(bytes(25))
    reader.read(bytes(24) + b"\1\0")
    values, flags = reader.arrays
    assert values.shape == (2, 3) and flags.tolist() == [True, False]


def test_the_layout_names_tensors_by_their_path() -> None:
    leaf = ArraySpec((3,), "float32")
    nested = EnvSpec({"b": (leaf, leaf), "a": leaf}, ContinuousAction((2,)))
    scalars = ["first", "reward", "discount", "valid", "episode_return", "episode_length"]
    names = [tensor.name for tensor in layout(request_spec(nested))]
    assert names == ["observation/a", "observation/b/0", "observation/b/1", *scalars]
    plain = [tensor.name for tensor in layout(request_spec(EnvSpec(leaf, ContinuousAction((2,)))))]
    assert plain == ["observation", *scalars]


def test_the_difference_between_layouts_is_short_and_printable_whatever_the_client_called_its_tensors() -> None:
    evil = Tensor("\x1b[2J\n" * 1000, (1,) * 1000, "\x1b[2J\n" * 1000)
    text = describe_difference([evil], HELLO.tensors)
    assert text.isprintable() and len(text) < 1000
