"""Messages as bytes: a JSON object, then arrays as they are in memory.

    uint32 size of the words │ words (UTF-8) │ padding to 8 │ array │ padding to 8 │ array │ …

The words are a JSON object; its key `arrays` lists `[name, dtype, shape]` of what follows. Numbers are little-endian.
Nothing that arrives is executed or trusted: sizes must add up, and dtypes must be numeric. A large array may be
gathered block by block while it is sent, so that the blocks stay in the cache.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from pappus.errors import PappusError, WireError
from pappus.types import Array

Buffer: TypeAlias = bytes | bytearray | memoryview

MAX_MESSAGE = 1 << 30
MAX_WORDS = 1 << 20
MAX_DIMS, MAX_DIM = 16, 1 << 40
BLOCK_BYTES = 512 << 10
RUN_BYTES = 16 << 10
"""If consecutive rows have this many bytes on average, they are sent without a copy."""

DTYPES = frozenset(
    np.dtype(name).str for name in (
        "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
        "float16", "float32", "float64",
    )
)


class Message(NamedTuple):
    """A JSON object (`words`) and arrays by name."""

    words: dict[str, Any]
    arrays: dict[str, Array]


class Blocks(NamedTuple):
    """An array that is gathered while it is sent."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    parts: Iterator[Array]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Encoded(NamedTuple):
    """An encoded message: pieces of `size` bytes in total, which can be iterated once."""

    size: int
    pieces: Iterator[Buffer]


def encode(words: Mapping[str, Any], arrays: Mapping[str, Array | Blocks]) -> Encoded:
    listed = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    text = json.dumps({**words, "arrays": listed}, separators=(",", ":")).encode()
    text += b" " * (-(4 + len(text)) % 8)
    size = 4 + len(text) + sum(array.nbytes + -array.nbytes % 8 for array in arrays.values())
    return Encoded(size, _pieces(text, list(arrays.values())))


def _pieces(text: bytes, arrays: list[Array | Blocks]) -> Iterator[Buffer]:
    yield len(text).to_bytes(4, "little") + text
    for array in arrays:
        for part in array.parts if isinstance(array, Blocks) else [array]:
            yield np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
        if array.nbytes % 8:
            yield bytes(-array.nbytes % 8)


def decode(data: Buffer) -> Message:
    """Decode a message; its arrays are views of the bytes. Raises `WireError` for anything malformed."""
    view = memoryview(data)
    size = int.from_bytes(view[:4], "little") if len(view) >= 4 else -1
    if not 0 <= size <= min(MAX_WORDS, len(view) - 4):
        raise WireError(f"a message of {len(view)} bytes cannot hold {size} bytes of words")
    try:
        words = json.loads(bytes(view[4 : 4 + size]))
        listed = [(str(name), str(dtype), [int(n) for n in shape]) for name, dtype, shape in words.pop("arrays")]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise WireError(f"the words of a message cannot be read: {error}") from None
    arrays, offset = {}, 4 + size
    for name, dtype, shape in listed:
        if dtype not in DTYPES or len(shape) > MAX_DIMS or any(not 0 <= n <= MAX_DIM for n in shape):
            raise WireError(f"array {name!r} of dtype {dtype!r} and shape {shape} is not allowed")
        count = math.prod(shape)
        end = offset + count * np.dtype(dtype).itemsize
        if end > len(view):
            raise WireError(f"array {name!r} of shape {shape} is longer than its message")
        try:
            arrays[name] = np.frombuffer(view[offset:end], dtype).reshape(shape)
        except ValueError as error:  # such as 0 × 2⁴⁰ × 2⁴⁰
            raise WireError(f"array {name!r} of shape {shape} cannot be: {error}") from None
        offset = end + (-end % 8)
    return Message(words, arrays)


class Words:
    """Checked access to the words of a request."""

    def __init__(self, words: dict[str, Any]) -> None:
        self._words = words

    def given(self, name: str) -> Any:
        if name not in self._words:
            raise WireError(f"{name} is missing")
        return self._words[name]

    def text(self, name: str) -> str:
        found = self.given(name)
        if not isinstance(found, str):
            raise WireError(f"{name}={found!r:.60} must be a word")
        return found

    def whole(self, name: str, least: int, most: int) -> int:
        found = self.given(name)
        if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
            raise WireError(f"{name}={found!r:.60} must be a whole number from {least} to {most}")
        return found

    def number(self, name: str, least: float, most: float, kind: type[PappusError] = WireError) -> float | None:
        found = self.given(name)
        if found is None:
            return None
        if not isinstance(found, int | float) or isinstance(found, bool) or not least <= found <= most:
            raise kind(f"{name}={found!r:.60} must be a number from {least:g} to {most:g}")
        return float(found)

    def columns(self, known: list[str]) -> list[str]:
        found = self.given("columns")
        if not isinstance(found, list) or not all(isinstance(name, str) and name in known for name in found):
            raise WireError(f"columns={found!r:.60} must be some of {', '.join(known)}")
        return list(dict.fromkeys(found))


def pieces_of(column: Array, rows: Array) -> Iterator[Array]:
    """`column[rows]` in pieces: long runs of rows without a copy, others gathered in blocks that fit into a cache."""
    ends = np.append(np.flatnonzero(np.diff(rows) != 1) + 1, len(rows))
    row_bytes = max(1, column[:1].nbytes)
    if len(rows) * row_bytes >= RUN_BYTES * len(ends):
        begin = 0
        for end in ends.tolist():
            yield column[rows[begin] : rows[begin] + end - begin]
            begin = end
        return
    count = max(1, BLOCK_BYTES // row_bytes)
    for i in range(0, len(rows), count):
        yield column.take(rows[i : i + count], axis=0, mode="clip")
