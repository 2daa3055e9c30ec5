"""What NVIDIA's driver says of GPUs, by its own library: https://docs.nvidia.com/deploy/nvml-api."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
SUCCESS = 0
UTILIZATION_SAMPLES, UNSIGNED = 1, 1
"""Of the library: what kind of samples is asked for, and the type that their values have then."""


class _Utilization(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Sample(ctypes.Structure):
    _fields_ = [("time", ctypes.c_ulonglong), ("value", ctypes.c_uint), ("_rest_of_the_union", ctypes.c_uint)]


class Gpus:
    """Some GPUs of this machine; `library` is NVML."""

    def __init__(self, library: Any, devices: Sequence[ctypes.c_void_p]) -> None:
        self._library, self._devices = library, devices
        self._seen = [0] * len(devices)
        """Of each, the time of its last sample, in the driver's µs."""

    def __len__(self) -> int:
        return len(self._devices)

    def busy(self) -> float | None:
        """How many of them have computed since this was asked last: the share of the time in which a kernel ran, added
        up, as far back as the driver remembers (some seconds). None where it does not say."""
        shares = [self._sampled(number) for number in range(len(self._devices))]
        if not all(shares):
            return self.utilization()
        return sum(sum(values) / len(values) / 100 for values in shares)

    def _sampled(self, number: int) -> list[int]:
        """The driver's samples of a device, in percent, that are newer than those of the last time."""
        device, count, kind = self._devices[number], ctypes.c_uint(), ctypes.c_int()
        ask = self._library.nvmlDeviceGetSamples
        since = ctypes.c_ulonglong(self._seen[number])
        if ask(device, UTILIZATION_SAMPLES, since, ctypes.byref(kind), ctypes.byref(count), None) != SUCCESS:
            return []
        samples = (_Sample * count.value)()
        if ask(device, UTILIZATION_SAMPLES, since, ctypes.byref(kind), ctypes.byref(count), samples) != SUCCESS:
            return []
        found = [one for one in samples[: count.value] if one.time > self._seen[number]]
        self._seen[number] = max((one.time for one in found), default=self._seen[number])
        return [one.value for one in found] if kind.value == UNSIGNED else []

    def utilization(self) -> float | None:
        """How many of them compute at present, by the driver's last sample (of a sixth of a second to a second)."""
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
