"""Arrays for large batches, used again when nobody looks at them any more.

Fresh memory costs a page fault for every 4 KiB, which for a batch of frames takes as long as filling it. An array is
free again when all that refer to it are gone: views, and tensors made from it, count.
"""

from __future__ import annotations

import sys
import threading

import numpy as np

from pappus.types import Array

SMALLEST = 1 << 18
"""Bytes; smaller ones come from memory that the process has anyway."""
KEPT = 8
"""Arrays that are remembered, at most."""


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
