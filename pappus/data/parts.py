"""Part files: what one group of envs went through, appended block by block while a run records.

    header   magic, length, crc, JSON: how many envs, which leaves
    block    magic, rows, time, crc, then `rows` rows of every leaf, `[rows, N, …]` each
      ⋮
    end      a block without rows: whoever wrote it closed it in peace

A row is what N envs show after one step, and the action that led to it. Blocks are written whole: after a crash the
last one may be torn, and is not read. Whatever else is not read was damaged afterwards.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pappus.types import Array, ArraySpec

SUFFIX = ".part"
MAGIC = b"pappus-1"
HEADER = struct.Struct("<8sII")
"""Magic, bytes of the JSON, its CRC."""
BLOCK = struct.Struct("<4sIdI")
"""Magic, rows, seconds since 1970, CRC of the content."""
BLOCK_MAGIC = b"rows"

FIRST, VALID, TERMINATED, ENDED = 1, 2, 4, 8
"""Bits of a row's flags. `ENDED`: the env said that an episode ended here."""


@dataclass(frozen=True)
class PartHeader:
    """What the rows of a part are made of, without the dimension of the envs."""

    num_envs: int
    observation: tuple[ArraySpec, ...]
    """Leaves in the order of `optree`."""
    action: ArraySpec
    behaviour: Mapping[str, ArraySpec]
    seeds: tuple[int, ...] | None = None
    """What each env was seeded with before the first row, where that is known."""

    @property
    def columns(self) -> list[ArraySpec]:
        """Every leaf of a row, in the order in which they lie in a block: flags, reward, action, behaviour …"""
        own = (ArraySpec((), "uint8"), ArraySpec((), "float32"), self.action)
        return [*own, *self.behaviour.values(), *self.observation]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of all envs."""
        return self.num_envs * sum(leaf.nbytes for leaf in self.columns)

    def to_bytes(self) -> bytes:
        content = json.dumps(asdict(self)).encode()
        return HEADER.pack(MAGIC, len(content), zlib.crc32(content)) + content

    @classmethod
    def from_json(cls, text: bytes) -> PartHeader:
        """The inverse of what `to_bytes` wrote."""

        def leaf(entry: Mapping[str, Any]) -> ArraySpec:
            return ArraySpec(tuple(entry["shape"]), entry["dtype"])

        content = json.loads(text)
        return cls(
            content["num_envs"], tuple(map(leaf, content["observation"])), leaf(content["action"]),
            {name: leaf(entry) for name, entry in content["behaviour"].items()},
            None if content["seeds"] is None else tuple(content["seeds"]),
        )


def append_block(path: Path, header: PartHeader, columns: Sequence[Array]) -> None:
    """Append rows, or the end where there are none; a new file begins with the header."""
    views = [np.ascontiguousarray(column).data.cast("B") for column in columns if column.size]
    crc = 0
    for view in views:
        crc = zlib.crc32(view, crc)
    rows = len(columns[0]) if columns else 0
    size = path.stat().st_size if path.exists() else 0
    try:
        with path.open("ab") as file:
            if size == 0:
                file.write(header.to_bytes())
            file.write(BLOCK.pack(BLOCK_MAGIC, rows, time.time(), crc))
            file.writelines(views)
    except OSError:
        with suppress(OSError):
            os.truncate(path, size)  # what came after half a block would not be read
        raise


class Block(NamedTuple):
    """Where `rows` rows lie in a part file, the first of which is number `start` of the part."""

    start: int
    rows: int
    time: float
    offset: int


class Stated(NamedTuple):
    """What the first bytes of a block say of it, and where it ends if that is so."""

    magic: bytes
    rows: int
    time: float
    crc: int
    end: int


class Part:
    """A part file, as far as it is whole. Its rows stay on disk until they are asked for.

    `damage` says what cannot be read of it although no crash explains that; it is empty where all is well.
    """

    def __init__(self, path: Path) -> None:
        """Reads flags only, but checks everything."""
        self.path = path
        empty = path.stat().st_size == 0
        self._bytes: Array = np.empty(0, np.uint8) if empty else np.asarray(np.memmap(path, np.uint8, "r"))
        self.blocks: list[Block] = []
        self.closed = False
        self.damage = ""
        self.header, offset = self._read_header()
        while offset is not None:
            offset = self._read_block(offset)
        self.rows = self.blocks[-1].start + self.blocks[-1].rows if self.blocks else 0

    def _read_header(self) -> tuple[PartHeader | None, int | None]:
        if self._bytes.size < HEADER.size:
            return None, None
        magic, length, crc = HEADER.unpack(self._bytes[: HEADER.size].tobytes())
        end = HEADER.size + length
        text = self._bytes[HEADER.size : end].tobytes()
        if magic != MAGIC or zlib.crc32(text) != crc:
            if magic != MAGIC or end <= self._bytes.size or any(self._block_marks(0)):
                self.damage = "its header is damaged, and without it nothing of it can be read"
            return None, None
        return PartHeader.from_json(text), end

    def _read_block(self, offset: int) -> int | None:
        """Note the block at `offset`; where the next one begins, or None where the part ends."""
        found, unread = self._whole_block(offset), f"its last {self._bytes.size - offset:,} bytes"
        if found is None:
            self.damage = f"{unread} are damaged and cannot be read" if self._changed(offset) else ""
            return None
        if found.rows == 0:
            self.closed = True
            self.damage = f"{unread} come after its end and are not read" if found.end < self._bytes.size else ""
            return None
        start = self.blocks[-1].start + self.blocks[-1].rows if self.blocks else 0
        self.blocks.append(Block(start, found.rows, found.time, offset + BLOCK.size))
        return found.end

    def _whole_block(self, offset: int) -> Stated | None:
        """What the block at `offset` says of itself; None where no whole one begins."""
        stated = self._stated(offset)
        if stated is None or stated.magic != BLOCK_MAGIC or stated.end > self._bytes.size:
            return None
        return stated if zlib.crc32(self._bytes[offset + BLOCK.size : stated.end].data) == stated.crc else None

    def _stated(self, offset: int) -> Stated | None:
        """The same of anything, if there is room to say it."""
        assert self.header is not None
        begin = offset + BLOCK.size
        if begin > self._bytes.size:
            return None
        magic, rows, written, crc = BLOCK.unpack(self._bytes[offset:begin].tobytes())
        return Stated(magic, rows, written, crc, begin + rows * self.header.row_bytes)

    def _changed(self, offset: int) -> bool:
        """Whether the bytes from `offset` on, where no whole block begins, are not just the beginning of one."""
        stated = self._stated(offset)
        if stated is None:
            return False
        complete = stated.magic != BLOCK_MAGIC or stated.end <= self._bytes.size
        return complete or any(self._whole_block(mark) for mark in self._block_marks(offset + 1))

    def _block_marks(self, offset: int) -> Iterator[int]:
        """Where blocks may begin."""
        for mark in re.finditer(BLOCK_MAGIC, self._bytes[offset:].data):
            yield offset + mark.start()

    def columns(self, block: Block) -> list[Array]:
        """The leaves of a block, `[rows, N, …]` each, where they lie."""
        assert self.header is not None
        found, offset = [], block.offset
        for leaf in self.header.columns:
            shape = (block.rows, self.header.num_envs, *leaf.shape)
            size = math.prod(shape) * np.dtype(leaf.dtype).itemsize
            found.append(self._bytes[offset : offset + size].view(leaf.dtype).reshape(shape))
            offset += size
        return found

    def flags(self) -> Array:
        """The flags of all rows, `[R, N]`."""
        return np.concatenate([self.columns(block)[0] for block in self.blocks])
