"""Fetching many rows: into one array, with several cores where there is much to copy, or piece by piece to be sent."""

from __future__ import annotations

import itertools
import math
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np

from pappus.telemetry.processes import usable_cores
from pappus.types import Array

WORTH_A_THREAD = 4 << 20
"""Bytes; below this a copy is done before another thread has woken up."""
MOST_THREADS = 4
"""Beyond that memory is the limit."""

BLOCK_BYTES = 512 << 10
RUN_BYTES = 16 << 10
"""Rows that lie together for so many bytes, on average, are sent from where they lie."""

_pool: ThreadPoolExecutor | None = None


class Copies:
    """Copies under way. Large ones are cut into blocks, which threads take one by one while their owner does other
    things; whoever waits for them takes part."""

    def __init__(self) -> None:
        self._blocks: deque[tuple[Array, Array, Array]] = deque()
        self._helpers: list[Future[None]] = []

    def gather(self, values: Array, rows: Array, out: Array) -> None:
        """`out[...] = values[rows]`: whole rows, which is a good deal faster than NumPy's indexing for long ones.

        It is done when `complete` has returned.
        """
        width = math.prod(values.shape[1:])
        source, into = values.reshape(len(values), width), out.reshape(rows.size, width)
        flat = rows.reshape(-1)
        parts, threads = out.nbytes // WORTH_A_THREAD, min(MOST_THREADS, usable_cores())
        if threads == 1 or parts < 2:
            _copy(source, flat, into)
            return
        bounds = [len(flat) * i // parts for i in range(parts + 1)]
        self._blocks += [(source, flat[begin:end], into[begin:end]) for begin, end in itertools.pairwise(bounds)]
        busy = sum(not helper.done() for helper in self._helpers)
        self._helpers += [_threads().submit(_work, self._blocks) for _ in range(threads - 1 - busy)]

    def complete(self) -> None:
        """All that was asked for is there, or an error is raised; nobody is at work any more."""
        try:
            _work(self._blocks)
        finally:
            begun = [helper for helper in self._helpers if not helper.cancel()]
            self._helpers = []
            wait(begun)
        for helper in begun:
            helper.result()


def pieces_of(column: Array, rows: Array) -> Iterator[Array]:
    """`column[rows]` in pieces: long runs of rows as they lie, the others gathered in blocks that fit into a cache."""
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


def _work(blocks: deque[tuple[Array, Array, Array]]) -> None:
    while True:
        try:
            block = blocks.popleft()
        except IndexError:
            return
        _copy(*block)


def _copy(source: Array, rows: Array, into: Array) -> None:
    np.take(source, rows, axis=0, out=into, mode="clip")  # "clip", since "raise" would go by way of another copy


def _threads() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(MOST_THREADS - 1, "replay gather")
    return _pool


def _forget_threads() -> None:
    """A forked process has none of its parent's."""
    global _pool
    _pool = None


os.register_at_fork(after_in_child=_forget_threads)
