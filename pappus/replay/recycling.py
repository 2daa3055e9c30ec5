"""Arrays for large batches, used again when nobody looks at them any more.

Fresh memory costs a page fault for every 4 KiB, which for a batch of frames takes as long as filling it. An array is
free again when all that refer to it are gone: views, and tensors made from it, count. What others allocate, such as
gRPC for the parts of a message, is kept by `keep_freed_memory`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import threading

import numpy as np

from pappus.types import Array

SMALLEST = 1 << 18
"""Bytes; smaller ones come from memory that the process has anyway."""
KEPT = 8
"""Arrays that are remembered, at most."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""As glibc's malloc.h numbers them."""
KEPT_FREE, LARGEST_KEPT = 64 << 20, 32 << 20
"""Bytes that the C library may keep at the end of a heap, and the largest block that comes from a heap at all; glibc
refuses more than 32 MiB for that."""


@functools.cache
def keep_freed_memory() -> None:
    """Have the C library keep what is freed, up to `KEPT_FREE`, where it would give blocks of a megabyte straight back
    to the system and fault them in again. A stream of sequences is a sixth faster so."""
    with contextlib.suppress(OSError, AttributeError):  # another C library has its own ways
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_TRIM_THRESHOLD, KEPT_FREE)
        mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)


class Recycler:
    """Hands out arrays whose content is arbitrary."""

    def __init__(self) -> None:
        self._arrays: list[Array] = []
        self._lock = threading.Lock()

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[np.generic] | type) -> Array:
        """As `numpy.empty`."""
        with self._lock:
            for index in range(len(self._arrays)):
                fits = self._arrays[index].shape == shape and self._arrays[index].dtype == dtype
                if fits and references(self._arrays, index) == UNUSED:
                    self._arrays.append(self._arrays.pop(index))  # the longest unused comes first
                    return self._arrays[-1]
            fresh: Array = np.empty(shape, dtype)
            if fresh.nbytes >= SMALLEST:
                self._arrays.append(fresh)
                del self._arrays[: max(0, len(self._arrays) - KEPT)]
            return fresh


def references(arrays: list[Array], index: int) -> int:
    """How many refer to an array of a list, the list among them."""
    return sys.getrefcount(arrays[index])


UNUSED = references([np.empty(1)], 0)
"""What an array counts that only the list refers to; it depends on the interpreter."""
