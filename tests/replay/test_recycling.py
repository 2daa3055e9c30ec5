from __future__ import annotations

import gc
import platform
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch

from pappus.replay import ArraySpec, Client, Service, uniform_replay
from pappus.replay.sampling.evaluation import KEPT, SMALLEST, Recycler

SHAPE = (SMALLEST,)


def test_an_unreferenced_array_is_reused() -> None:
    recycler = Recycler()
    where = recycler.empty(SHAPE, np.dtype(np.uint8)).ctypes.data
    assert recycler.empty(SHAPE, np.dtype(np.uint8)).ctypes.data == where


def test_a_referenced_array_is_not_reused() -> None:
    recycler = Recycler()
    for hold in (lambda a: a, lambda a: a[3:5], lambda a: a.reshape(2, -1).T, torch.from_numpy, memoryview):
        array = recycler.empty(SHAPE, np.dtype(np.uint8))
        where, held = array.ctypes.data, hold(array)
        del array
        others = [recycler.empty(SHAPE, np.dtype(np.uint8)) for _ in range(3)]
        assert where not in [other.ctypes.data for other in others]
        del held, others


def test_another_shape_or_dtype_is_another_array() -> None:
    recycler = Recycler()
    first = recycler.empty(SHAPE, np.dtype(np.uint8)).ctypes.data
    assert recycler.empty(SHAPE, np.dtype(np.float32)).dtype == np.float32
    assert recycler.empty((2, SMALLEST), np.dtype(np.uint8)).shape == (2, SMALLEST)
    assert recycler.empty(SHAPE, np.dtype(np.uint8)).ctypes.data == first


def test_few_are_remembered() -> None:
    recycler = Recycler()
    held = [recycler.empty(SHAPE, np.dtype(np.uint8)) for _ in range(3 * KEPT)]
    assert len(recycler._arrays) == KEPT and len({array.ctypes.data for array in held}) == 3 * KEPT


def test_an_unused_service_is_freed_at_once() -> None:
    service = Service([uniform_replay("t", 10, {"x": ArraySpec((), "int64")})])
    client = Client.of(service)
    with client.writer() as writer:
        writer.append({"x": 1})
        writer.create_item("t", 1.0, {"x": writer.history["x"][-1:]})
    client.sample("t", 1)
    left = weakref.ref(service)
    gc.disable()
    try:
        del client, writer, service
        assert left() is None
    finally:
        gc.enable()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has its own ways")
def test_freed_blocks_are_not_faulted_in_again() -> None:
    """In a process of its own, since the C library's setting is the process's."""
    script = """
import resource, sys
from pappus.replay.wire.grpc_wire import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
filled = bytes(range(256)) * 4096
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        held = [bytearray(filled) for _ in range(20)]  # 20 MiB, more than is kept by default
        del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""
    counts = [
        int(subprocess.run([sys.executable, "-c", script, how], capture_output=True, text=True, check=True).stdout)
        for how in ("kept", "as it was")
    ]
    assert counts[0] < counts[1] / 10
