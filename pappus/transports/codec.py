"""The messages of `pappus.proto` as bytes. Protobuf's wire format is small enough to write it here, without generated
code and without a runtime whose version must fit it; a test holds it against the official implementation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import optree

from pappus.errors import WireError
from pappus.types import Array, ArraySpec, Nest, leaves_of

PROTOCOL = 1
DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float32", "float64")
MAX_TENSORS = 1000
"""Tensors that a Hello may list; a layout beyond that is a mistake or an attack."""
MAX_NAME = 100
"""Characters of a client's words that are repeated to people."""
MAX_METRICS, MOST_VALUES, LARGEST = 100, 1e9, 1e30
"""Metrics that one message may bring, the values that each may be of, and their magnitude."""
ONE_OF = (1, 2)
"""The fields of FromClient and ToClient, of which a message has one."""
UINT32 = 0xFFFF_FFFF
"""All numbers of the protocol are uint32; like every parser of protobuf, this one drops what is above."""

Buffer: TypeAlias = bytes | memoryview
Fields: TypeAlias = dict[int, list[int | memoryview]]
"""All values of each field of a message; of one that is not repeated the last one counts."""


@dataclass(frozen=True)
class Tensor:
    """An array of one env."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name[:MAX_NAME]!r} {printable(self.dtype)} {list(self.shape[:8])}"

    def encode(self) -> bytes:
        shape = b"".join(map(varint, self.shape))
        return b"".join((text(1, self.name), blob(2, shape) if shape else b"", text(3, self.dtype)))

    @classmethod
    def decode(cls, data: Buffer) -> Tensor:
        found = all_fields(data)
        return cls(last_text(found, 1), tuple(all_numbers(found, 2)), last_text(found, 3))


@dataclass(frozen=True)
class Hello:
    """What a client is going to send."""

    tensors: tuple[Tensor, ...]
    action: Tensor
    env_groups: int = 1
    envs: int = 1
    name: str = ""
    token: str = ""
    protocol: int = PROTOCOL

    def encode(self) -> bytes:
        tensors = [blob(6, tensor.encode()) for tensor in self.tensors]
        body = (
            integer(1, self.protocol), text(2, self.token), text(3, self.name), integer(4, self.env_groups),
            integer(5, self.envs), *tensors, blob(7, self.action.encode()),
        )
        return blob(1, b"".join(body))

    @classmethod
    def decode(cls, data: Buffer) -> Hello:
        found = all_fields(only(data, 1, "Hello"))
        return cls(
            tensors=tuple(Tensor.decode(as_bytes(value)) for value in found[6][:MAX_TENSORS]),
            action=Tensor.decode(last_bytes(found, 7)), env_groups=last_number(found, 4), envs=last_number(found, 5),
            name=last_text(found, 3), token=last_text(found, 2), protocol=last_number(found, 1),
        )


@dataclass(frozen=True)
class Welcome:
    """What the server expects, and what actions mean."""

    tensors: tuple[Tensor, ...]
    action: Tensor
    choices: tuple[int, ...] = ()
    run: str = ""
    protocol: int = PROTOCOL

    def encode(self) -> bytes:
        tensors = [blob(3, tensor.encode()) for tensor in self.tensors]
        choices = blob(5, b"".join(map(varint, self.choices))) if self.choices else b""
        body = (integer(1, self.protocol), text(2, self.run), *tensors, blob(4, self.action.encode()), choices)
        return blob(1, b"".join(body))

    @classmethod
    def decode(cls, data: Buffer) -> Welcome:
        found = all_fields(only(data, 1, "Welcome"))
        return cls(
            tensors=tuple(Tensor.decode(as_bytes(value)) for value in found[3]),
            action=Tensor.decode(last_bytes(found, 4)), choices=tuple(all_numbers(found, 5)),
            run=last_text(found, 2), protocol=last_number(found, 1),
        )


class EnvGroupEncoder:
    """Steps or Actions of one env group, whose arrays stay where they are: each message is one copy of them."""

    def __init__(self, env_group: int, arrays: Iterable[Array]) -> None:
        self._buffers = [array.reshape(-1).view(np.uint8).data for array in arrays]
        self._size = sum(len(buffer) for buffer in self._buffers)
        self._body = integer(1, env_group) + b"\x12" + varint(self._size)
        self._head = b"\x12" + varint(len(self._body) + self._size) + self._body

    def encode(self, metrics: bytes = b"") -> bytes:
        """`metrics` are encoded already, for Steps that bring some."""
        if not metrics:
            return b"".join((self._head, *self._buffers))
        head = b"\x12" + varint(len(self._body) + self._size + len(metrics)) + self._body
        return b"".join((head, *self._buffers, metrics))


def encode_env_group(env_group: int, arrays: Iterable[Array]) -> bytes:
    """Steps or Actions of one env group, once."""
    return EnvGroupEncoder(env_group, map(np.ascontiguousarray, arrays)).encode()


def encode_metrics(metrics: Mapping[str, tuple[float, float]]) -> bytes:
    """What envs measured, as fields of Steps: by name, the sum of the values and how many they were."""
    pairs = ((name, np.array(total, "<f8").tobytes()) for name, total in metrics.items())
    return b"".join(blob(3, text(1, name) + blob(2, total)) for name, total in pairs)


def decode_steps(data: Buffer) -> tuple[int, Buffer, dict[str, tuple[float, float]]]:
    """Steps of an env group: which, the bytes of its values where they lie, and what its envs measured."""
    env_group, payload, metrics = 0, memoryview(b""), dict[str, tuple[float, float]]()
    for number, value in fields(only(data, 2, "Steps")):
        if number == 1:
            env_group = as_number(value)
        elif number == 2:
            payload = as_bytes(value)
        elif number == 3 and len(metrics) < MAX_METRICS:
            found = all_fields(as_bytes(value))
            total = bytes(last_bytes(found, 2))
            sums = np.frombuffer(total, "<f8") if len(total) == 16 else np.full(2, np.nan)
            if not (np.isfinite(sums).all() and 0 < sums[1] <= MOST_VALUES and abs(sums[0]) <= LARGEST * sums[1]):
                raise WireError("a metric must have two numbers, a finite sum of values and how many they were")
            metrics[last_text(found, 1)] = float(sums[0]), float(sums[1])
    return env_group, payload, metrics


def decode_env_group(data: Buffer, what: str) -> tuple[int, Buffer]:
    """Steps or Actions: which env group, and the bytes of its values where they lie."""
    env_group, payload = 0, memoryview(b"")
    for number, value in fields(only(data, 2, what)):  # for each step: no table of fields
        if number == 1:
            env_group = as_number(value)
        elif number == 2:
            payload = as_bytes(value)
    return env_group, payload


class EnvGroupReader:
    """Takes the bytes of an env group's messages apart, into arrays that stay where they are."""

    def __init__(self, specs: Sequence[ArraySpec]) -> None:
        self.arrays = [np.zeros(spec.shape, spec.dtype) for spec in specs]
        self._bytes = [array.reshape(-1).view(np.uint8) for array in self.arrays]
        self._ends = list(accumulate(len(part) for part in self._bytes))

    def read(self, payload: Buffer) -> None:
        if len(payload) != self._ends[-1]:
            raise WireError(
                f"{len(payload)} bytes of tensors came, and the layout of the handshake has {self._ends[-1]}"
            )
        values = np.frombuffer(payload, np.uint8)
        start = 0
        for part, end in zip(self._bytes, self._ends, strict=True):
            part[:] = values[start:end]
            start = end


def layout(spec: Nest) -> tuple[Tensor, ...]:
    """A nest of specs (of one env) as the handshake lists it: names are paths."""
    paths, leaves, _ = optree.tree_flatten_with_path(spec)
    names = ["/".join(map(str, _words(path, spec))) for path in paths]
    return tuple(Tensor(name, leaf.shape, leaf.dtype) for name, leaf in zip(names, leaves, strict=True))


def _words(path: tuple[Any, ...], nest: Nest) -> Iterator[Any]:
    """Keys along a path; a named tuple's places have names."""
    for key in path:
        yield nest._fields[key] if hasattr(nest, "_fields") else key
        nest = nest[key]


def describe_difference(theirs: Sequence[Tensor], ours: Sequence[Tensor]) -> str:
    """The first difference between two layouts, in words; empty where there is none."""
    for i, (one, other) in enumerate(zip(theirs, ours, strict=False)):
        if one != other:
            return f"tensor {i} is {one}, and the run expects {other}"
    if len(theirs) != len(ours):
        return f"{len(theirs)} tensors were announced, and the run expects {len(ours)}: {', '.join(map(str, ours))}"
    return ""


def printable(text: str) -> str:
    """A client's words as one short line that no terminal obeys."""
    return "".join(character if character.isprintable() else "?" for character in text[:MAX_NAME])


def varint(number: int) -> bytes:
    """A number, seven bits a byte, the lowest first."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def integer(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value) if value else b""


def blob(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    return blob(field, value.encode()) if value else b""


def fields(data: Buffer) -> Iterator[tuple[int, int | memoryview]]:
    """Number and value of each field: an int, or bytes where they lie. Fields of other kinds are skipped."""
    view, at = memoryview(data), 0
    while at < len(view):
        tag, at = _read_varint(view, at)
        kind = tag & 7
        if not 0 < tag >> 3 < 1 << 29:
            raise WireError(f"the message is no protobuf: field {tag >> 3} at byte {at}")
        if kind == 0:
            value, at = _read_varint(view, at)
            yield tag >> 3, value
        elif kind == 2:
            size, at = _read_varint(view, at)
            if at + size > len(view):
                raise WireError(f"the message is cut off: a field of {size} bytes has {len(view) - at}")
            yield tag >> 3, view[at : at + size]
            at += size
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
            if at > len(view):
                raise WireError("the message is cut off within a field of fixed size")
        else:
            raise WireError(f"the message is no protobuf: wire type {kind} at byte {at}")


def _read_varint(view: memoryview, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(view) and shift < 64:
        byte = view[at]
        number |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return number, at
    raise WireError("the message is cut off within a number")


def only(data: Buffer, field: int, what: str) -> memoryview:
    """The one field of a `oneof` message; fields of later versions may stand beside it."""
    found = [(number, value) for number, value in fields(data) if number in ONE_OF]
    if len(found) == 1 and found[0][0] == field and not isinstance(found[0][1], int):
        return found[0][1]
    raise WireError(f"another message came where {what} was due")


def all_fields(data: Buffer) -> Fields:
    found: Fields = defaultdict(list)
    for number, value in fields(data):
        found[number].append(value)
    return found


def as_number(value: int | memoryview) -> int:
    if not isinstance(value, int):
        raise WireError("bytes stand where a number is due")
    return value & UINT32


def as_bytes(value: int | memoryview) -> memoryview:
    if isinstance(value, int):
        raise WireError("a number stands where bytes are due")
    return value


def last_number(found: Fields, field: int) -> int:
    return as_number(found[field][-1]) if field in found else 0


def last_bytes(found: Fields, field: int) -> Buffer:
    return as_bytes(found[field][-1]) if field in found else b""


def last_text(found: Fields, field: int) -> str:
    try:
        return bytes(last_bytes(found, field)).decode()
    except UnicodeDecodeError:
        raise WireError("a text is not UTF-8") from None


def all_numbers(found: Fields, field: int) -> list[int]:
    """A repeated number, packed or not."""
    numbers: list[int] = []
    for value in found[field]:
        at, packed = 0, value if isinstance(value, memoryview) else memoryview(varint(value))
        while at < len(packed):
            number, at = _read_varint(packed, at)
            numbers.append(number & UINT32)
    return numbers


def env_group_specs(spec: Nest, num_envs: int) -> list[ArraySpec]:
    """The leaves of a nest of specs (of one env), for an env group of so many envs."""
    return [leaf.prefixed(num_envs) for leaf in leaves_of(spec)]
