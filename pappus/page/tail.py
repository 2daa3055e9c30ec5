"""The lines of a file that another process appends to, each once."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from pappus.page.reading import opened

BLOCK = 1 << 18
LONGEST = 1 << 20
"""Bytes of a line; longer ones are left out."""


class Tail:
    """Of a file that is larger than `most` at the first look, whole blocks are left out in between, so that lines from
    all of it are seen; the last block always is. `again` counts how often the file was begun anew."""

    def __init__(self, path: Path, most: int) -> None:
        self._path, self._most = path, most
        self._offset, self._rest, self._inode = 0, b"", -1
        self._within = False
        """Whether what follows is the rest of a line that is left out."""
        self.again = 0

    def lines(self) -> Iterator[bytes]:
        """Whole lines since the last call."""
        descriptor = opened(self._path)
        if descriptor is None:
            return
        try:
            status = os.fstat(descriptor)
            if status.st_ino != self._inode or status.st_size < self._offset:
                self.again += self._inode != -1
                self._offset, self._rest, self._inode, self._within = 0, b"", status.st_ino, False
            for start in self._starts(status.st_size):
                yield from self._block(descriptor, start, min(BLOCK, status.st_size - start))
        except OSError:  # a disk that fails: what was read so far is there
            return
        finally:
            os.close(descriptor)

    def _starts(self, size: int) -> list[int]:
        """Where blocks begin that are read."""
        starts = range(self._offset, size, BLOCK)
        every = -(-(size - self._offset) // self._most)
        return [start for i, start in enumerate(starts) if i % max(1, every) == 0 or i == len(starts) - 1]

    def _block(self, descriptor: int, start: int, size: int) -> Iterator[bytes]:
        if start != self._offset:  # the beginning of its first line was left out
            self._rest, self._within = b"", True
        data = os.pread(descriptor, size, start)
        self._offset = start + len(data)
        if self._within:
            _, end, data = data.partition(b"\n")
            self._within = not end
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST:
            self._rest, self._within = b"", True
        yield from lines
