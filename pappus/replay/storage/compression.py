"""Columns that are stored compressed once their writer is done with them.

A chunk is written uncompressed. When its writer will not touch it again, a thread compresses its rows in blocks, keeps
the blocks, and returns the memory under the rows to the system; the rows keep their numbers. Reading a row decompresses
its block. Columns are chosen by name, or by measurement (`auto`): those whose first chunks shrink to less than half.
"""

from __future__ import annotations

import importlib.util
import logging
import mmap
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from pappus.errors import UserError, closest, install_line
from pappus.replay.storage.chunks import PAGE, Chunks
from pappus.types import Array

Compress: TypeAlias = Sequence[str] | Literal["auto"]

BLOCK_ROWS = 8
"""Rows per compressed block: larger blocks compress better, smaller ones are faster to read."""
LEVEL = 1
SMALLEST_CHUNK = 16 * PAGE
"""`auto` skips columns with smaller chunks: partial pages at a chunk's ends cannot be freed, so nothing is gained."""
WORTH_WHILE = 0.5
TRIALS = 4
"""Chunks on which `auto` bases its decision."""

log = logging.getLogger("pappus.replay")


class Packer(Protocol):
    def compress(self, data: memoryview) -> bytes: ...


class DiscardableMemory(NamedTuple):
    """Memory of which parts can be freed; they read as zeros until they are written again."""

    array: Array
    mapping: mmap.mmap
    close: Callable[[], None] = lambda: None
    """Close the descriptor through which others map it. The memory is freed with the last array that views it."""

    @classmethod
    def allocate(cls, nbytes: int) -> DiscardableMemory:
        mapping = mmap.mmap(-1, max(nbytes, 1))
        return cls(np.frombuffer(mapping, np.uint8, nbytes), mapping)

    def discard(self, begin: int, end: int) -> None:
        """Free the whole pages between two bytes."""
        first, last = -(-begin // PAGE) * PAGE, end // PAGE * PAGE
        if last > first and hasattr(mmap, "MADV_REMOVE"):
            self.mapping.madvise(mmap.MADV_REMOVE, first, last - first)


class Compression:
    """The compressed columns of chunks. `release` is called with chunks that were held for compression."""

    def __init__(
        self, chunks: Chunks, memory: DiscardableMemory, columns: Compress, release: Callable[[Array], None]
    ) -> None:
        if importlib.util.find_spec("zstandard") is None:
            raise UserError(f"compress needs zstandard, which is not installed; run {install_line('replay')}")
        self._chunks, self._memory, self._release = chunks, memory, release
        self.columns = self._chosen(columns)
        """Columns that are compressed or may be later: read their rows through `rows`."""
        self._trials: dict[str, list[float]] = {name: [] for name in self.columns} if columns == "auto" else {}
        self._packed: dict[str, dict[int, list[bytes]]] = {name: {} for name in self.columns}
        self.nbytes = 0
        """Bytes of all compressed blocks."""
        self._lock = threading.Lock()
        self._waiting: queue.Queue[int | None] = queue.Queue()
        """Chunks to be compressed; None ends the thread."""
        self._closed = False
        self._thread = threading.Thread(target=self._work, daemon=True, name="replay compression")
        self._thread.start()

    def enqueue(self, chunks: Array) -> None:
        """Queue chunks for compression. The caller holds them for that."""
        for chunk in chunks.tolist():
            self._waiting.put(chunk)

    def settle(self) -> None:
        self._waiting.join()

    def close(self) -> None:
        """End the thread. Queued chunks stay uncompressed; all rows can still be read."""
        self._closed = True
        self._waiting.put(None)
        self._thread.join()

    def forget(self, chunks: Array) -> None:
        """Drop the compressed blocks of chunks that are free."""
        with self._lock:
            for packed in self._packed.values():
                for chunk in chunks.tolist():
                    self.nbytes -= sum(map(len, packed.pop(chunk, [])))

    def rows(self, column: str, rows: Array) -> Array:
        """Rows `[n]` of a column. Their chunks must be held."""
        values, length = self._chunks.columns[column], self._chunks.layout.chunk_length
        out = np.empty((len(rows), *values.shape[1:]), values.dtype)
        chunks = rows // length
        with self._lock:  # what is plain now may be packed in a moment
            known = {chunk: self._packed[column].get(chunk) for chunk in np.unique(chunks).tolist()}
            plain = np.array([known[chunk] is None for chunk in chunks.tolist()], bool)
            out[plain] = values[rows[plain]]
        self._unpack(out, np.flatnonzero(~plain), rows, known)
        return out

    def _unpack(self, out: Array, places: Array, rows: Array, known: dict[int, list[bytes] | None]) -> None:
        """Fill some places of `out`, and decompress each block once."""
        if not len(places):
            return
        import zstandard

        unpack = zstandard.ZstdDecompressor().decompress
        length = self._chunks.layout.chunk_length
        blocks = rows[places] // length * length + rows[places] % length // BLOCK_ROWS
        order = np.argsort(blocks, kind="stable")
        distinct, begins = np.unique(blocks[order], return_index=True)
        for block, mine in zip(distinct.tolist(), np.split(places[order], begins[1:]), strict=True):
            blobs = known[block // length]
            assert blobs is not None
            data = np.frombuffer(unpack(blobs[block % length]), out.dtype).reshape(-1, *out.shape[1:])
            out[mine] = data[rows[mine] % length % BLOCK_ROWS]

    def _chosen(self, columns: Compress) -> tuple[str, ...]:
        signature, length = self._chunks.layout.signature, self._chunks.layout.chunk_length
        if columns == "auto":
            return tuple(name for name, spec in signature.items() if spec.nbytes * length >= SMALLEST_CHUNK)
        for name in columns:
            if name not in signature:
                raise UserError(f"compress names {name!r}, which is no column{closest(name, list(signature))}")
        return tuple(columns)

    def pack(self, chunks: Array) -> None:
        """Compress chunks now; they stay held. Only while nothing is queued."""
        import zstandard

        packer = zstandard.ZstdCompressor(level=LEVEL)
        for chunk in chunks.tolist():
            try:
                for name in self.columns:
                    self._pack(packer, name, chunk)
            except (OSError, MemoryError, zstandard.ZstdError) as error:
                log.warning("a chunk stays uncompressed: %s", error)

    def _work(self) -> None:
        while (chunk := self._waiting.get()) is not None:
            if not self._closed:
                self.pack(np.array([chunk]))
            self._release(np.array([chunk]))
            self._waiting.task_done()
        self._waiting.task_done()

    def _pack(self, packer: Packer, name: str, chunk: int) -> None:
        """Compress the rows of a chunk; while `auto` is undecided, only measure the ratio."""
        length = self._chunks.layout.chunk_length
        rows = self._chunks.columns[name][chunk * length : (chunk + 1) * length]
        if not rows.nbytes:
            return
        parts = (rows[i : i + BLOCK_ROWS] for i in range(0, length, BLOCK_ROWS))
        blobs = [packer.compress(part.reshape(-1).view(np.uint8).data) for part in parts]
        ratio = sum(map(len, blobs)) / rows.nbytes
        if name in self._trials and not self._worth_while(name, ratio):
            return
        begin = rows.__array_interface__["data"][0] - self._memory.array.__array_interface__["data"][0]
        with self._lock:
            self._packed[name][chunk] = blobs
            self.nbytes += sum(map(len, blobs))
            self._memory.discard(begin, begin + rows.nbytes)

    def _worth_while(self, name: str, ratio: float) -> bool:
        """Whether `auto` compresses a column; decided once, from its first chunks."""
        trials = self._trials[name]
        if len(trials) < TRIALS:
            trials.append(ratio)
        if len(trials) < TRIALS:
            return False
        mean = sum(trials) / TRIALS
        if mean >= WORTH_WHILE and name in self.columns:
            self.columns = tuple(column for column in self.columns if column != name)
            log.info("column %r is stored uncompressed: compression would leave %.0f %%", name, 100 * mean)
        return mean < WORTH_WHILE
