"""Memory of edges: on the heap (one process), or in anonymous memory files that end with their last user.

A `Block` is some bytes and a few *notifiers*. A notifier wakes the process that polls it: to notify is one system call,
and a notification that was sent before anybody polled is not lost. The state is in the bytes; a notifier only says
"check again".
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, Protocol

import numpy as np

from pappus.types import Array, ArraySpec, Nest, leaves_of, map_leaves

ALIGNMENT = 64
"""Leaves start on cache lines, so that writer and reader never share one."""


ABSENT = -1
"""In place of a descriptor that a process has no use for."""


class Notifier(Protocol):
    """Wakes a waiting process; readable until it is cleared."""

    def notify(self) -> None: ...

    def clear(self) -> None: ...

    def fileno(self) -> int: ...


class CountingNotifier:
    """For ports within one thread, where nothing sleeps: a role need not check again before `count` grows."""

    def __init__(self) -> None:
        self.count = 0

    def notify(self) -> None:
        self.count += 1

    def clear(self) -> None: ...

    def fileno(self) -> int:
        return -1


class EventNotifier:
    """An eventfd, or a pipe's two ends where the system has none."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self._read_fd, self._write_fd = read_fd, write_fd

    @staticmethod
    def descriptors() -> tuple[int, int]:
        """A fresh (read, write) pair; twice the same number for an eventfd."""
        if hasattr(os, "eventfd"):
            fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            return fd, fd
        read_fd, write_fd = os.pipe()
        os.set_blocking(read_fd, False)
        os.set_blocking(write_fd, False)
        return read_fd, write_fd

    def notify(self) -> None:
        with suppress(BlockingIOError):  # a full pipe is readable already
            os.write(self._write_fd, b"\1\0\0\0\0\0\0\0")

    def clear(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._read_fd, 4096)

    def fileno(self) -> int:
        return self._read_fd


class Block:
    """Zeroed bytes and notifiers."""

    def __init__(self, memory: Array, notifiers: Sequence[Notifier]) -> None:
        self.memory, self.notifiers = memory, notifiers


class HeapBlock(Block):
    """For roles of one process."""

    def __init__(self, nbytes: int, num_notifiers: int) -> None:
        super().__init__(np.zeros(nbytes, np.uint8), [CountingNotifier() for _ in range(num_notifiers)])


class SharedBlock(Block):
    """For roles of one machine: an anonymous file, known only by its descriptors."""

    def __init__(self, nbytes: int, descriptors: Sequence[int]) -> None:
        self.nbytes, self.descriptors = nbytes, tuple(descriptors)
        mapping = mmap.mmap(self.descriptors[0], max(nbytes, 1))
        pairs = zip(self.descriptors[1::2], self.descriptors[2::2], strict=True)
        super().__init__(np.frombuffer(mapping, np.uint8, nbytes), [EventNotifier(*pair) for pair in pairs])

    @classmethod
    def create(cls, nbytes: int, num_notifiers: int) -> SharedBlock:
        """Fresh memory; a process that gets the `descriptors` maps it with the constructor."""
        descriptors = [anonymous_file(max(nbytes, 1))]
        for _ in range(num_notifiers):
            descriptors += EventNotifier.descriptors()
        return cls(nbytes, descriptors)

    def descriptors_of(self, notifiers: Collection[int]) -> list[int]:
        """The descriptors for a process that uses these notifiers alone."""
        pairs = zip(self.descriptors[1::2], self.descriptors[2::2], strict=True)
        used = [pair if number in notifiers else (ABSENT, ABSENT) for number, pair in enumerate(pairs)]
        return [self.descriptors[0], *(fd for pair in used for fd in pair)]

    def close(self) -> None:
        """Close the descriptors; the mapping ends with the last array that views it."""
        for fd in set(self.descriptors):
            os.close(fd)


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to whole cache lines."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def layout_bytes(spec: Nest) -> int:
    """Bytes of a nest of specs, each leaf on cache lines of its own."""
    return sum(aligned(leaf.nbytes) for leaf in leaves_of(spec))


def lay_out(memory: Array, spec: Nest) -> Any:
    """Arrays over raw memory, as a nest of specs says."""
    offset = 0

    def leaf(item: ArraySpec) -> Array:
        nonlocal offset
        view = memory[offset : offset + item.nbytes].view(item.dtype).reshape(item.shape)
        offset += aligned(item.nbytes)
        return view

    return map_leaves(leaf, spec)


def anonymous_file(nbytes: int = 0) -> int:
    """The descriptor of a file that ends with its last user."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("pappus", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile() as file:  # unlinked from the start
            fd = os.dup(file.fileno())
    os.ftruncate(fd, nbytes)
    return fd
