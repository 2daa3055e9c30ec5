"""What NVIDIA's driver says of GPUs, by its own library: https://docs.nvidia.com/deploy/nvml-api."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
SUCCESS = 0


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class Gpus:
    """Some GPUs of this machine; `library` is NVML."""

    def __init__(self, library: Any, devices: Sequence[ctypes.c_void_p]) -> None:
        self._library, self._devices = library, devices

    def __len__(self) -> int:
        return len(self._devices)

    def busy(self) -> float | None:
        """How many of them compute: the driver's share of the time (of its last sixth of a second to second) in which a
        kernel ran, added up. None where it does not say."""
        shares = list[float]()
        for device in self._devices:
            found = _Utilization()
            if self._library.nvmlDeviceGetUtilizationRates(device, ctypes.byref(found)) != SUCCESS:
                return None
            shares.append(found.gpu / 100)
        return sum(shares)

    def joules(self) -> float | None:
        """Energy since the driver was loaded, of all together. None where it does not say."""
        total = 0.0
        for device in self._devices:
            found = ctypes.c_ulonglong()
            if self._library.nvmlDeviceGetTotalEnergyConsumption(device, ctypes.byref(found)) != SUCCESS:
                return None
            total += found.value / 1000
        return total

    def free_bytes(self) -> list[int]:
        """Memory of each that nobody holds; empty where the driver does not say."""
        sizes = []
        for device in self._devices:
            found = _Memory()
            if self._library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(found)) != SUCCESS:
                return []
            sizes.append(int(found.free))
        return sizes


def find_gpus(numbers: Sequence[int], library: Any = None) -> Gpus | None:
    """The GPUs that CUDA gives these numbers here; None where there is no driver, or it does not know them."""
    try:
        library = library or ctypes.CDLL(LIBRARY)
    except OSError:
        return None
    if not numbers or library.nvmlInit_v2() != SUCCESS:
        return None
    visible = [word.strip() for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip()]
    devices = []
    for number in numbers:
        handle = ctypes.c_void_p()
        name = visible[number] if number < len(visible) else str(number)
        if _handle(library, name, handle) != SUCCESS:
            return None
        devices.append(handle)
    return Gpus(library, devices)


def _handle(library: Any, name: str, handle: ctypes.c_void_p) -> int:
    """A device by its number on this machine, or by its UUID."""
    if name.isdigit():
        return int(library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(name)), ctypes.byref(handle)))
    return int(library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle)))
