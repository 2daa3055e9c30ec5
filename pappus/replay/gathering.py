"""Copying many rows at once, with several cores where there is much to copy."""

from __future__ import annotations

import itertools
import math
import os
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from pappus.telemetry.processes import usable_cores
from pappus.types import Array

WORTH_A_THREAD = 4 << 20
"""Bytes; below this a copy is done before another thread has woken up."""
MOST_THREADS = 4
"""Beyond that memory is the limit."""

_pool: ThreadPoolExecutor | None = None


def gather(values: Array, rows: Array, out: Array) -> list[Future[None]]:
    """`out[...] = values[rows]`: whole rows, which is a good deal faster than NumPy's indexing for long ones.

    Part of it may still be under way: `out` is complete when all that is returned is.
    """
    width = math.prod(values.shape[1:])
    source, into = values.reshape(len(values), width), out.reshape(rows.size, width)
    flat = rows.reshape(-1)
    parts = min(MOST_THREADS, usable_cores(), max(1, out.nbytes // WORTH_A_THREAD))
    bounds = [len(flat) * i // parts for i in range(parts + 1)]
    others = [
        _threads().submit(_copy, source, flat[begin:end], into[begin:end])
        for begin, end in itertools.pairwise(bounds[1:])
    ]
    _copy(source, flat[: bounds[1]], into[: bounds[1]])
    return others


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
