"""Queues and weights between roles that share a process and a device: nothing crosses to the host.

Each role runs in its own thread, with its own stream. A slot (or a buffer of weights) is handed over with an event: the
stream of the role that receives it waits for the work that the other stream has queued on it.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from pappus.accelerator import Accelerator
from pappus.edges.edge import Port
from pappus.transports.memory import Notifier
from pappus.types import ArraySpec, Nest, Unroll, map_leaves


class DeviceQueue:
    """A queue edge on a device, from one producer to one consumer."""

    def __init__(
        self, name: str, spec: Nest, capacity: int, accelerator: Accelerator, notifiers: Sequence[Notifier]
    ) -> None:
        self.accelerator, self.capacity = accelerator, capacity
        self.slots: list[Unroll] = [map_leaves(self._allocate, spec) for _ in range(capacity)]
        self.events: list[Any] = [None] * capacity
        self.committed = self.released = 0
        self._name, (self._filled, self._freed) = name, notifiers

    def _allocate(self, leaf: ArraySpec) -> torch.Tensor:
        return torch.zeros(leaf.shape, dtype=getattr(torch, leaf.dtype), device=self.accelerator.device)

    def sink(self, producer: int = 0) -> DeviceSink:
        """The producer's end; there is only one."""
        return DeviceSink(self._name, self, self._freed, self._filled)

    def source(self) -> DeviceSource:
        """The consumer's end."""
        return DeviceSource(self._name, self, self._filled, self._freed)


class DeviceSink(Port):
    """The producer's end."""

    def __init__(self, name: str, queue: DeviceQueue, freed: Notifier, filled: Notifier) -> None:
        super().__init__(f"{name} slots", freed)
        self._queue, self._filled = queue, filled

    def acquire(self) -> Unroll | None:
        queue = self._queue
        if queue.committed - queue.released >= queue.capacity:
            return None
        i = queue.committed % queue.capacity
        queue.accelerator.follow(queue.events[i])
        return queue.slots[i]

    def commit(self) -> None:
        queue = self._queue
        i = queue.committed % queue.capacity
        queue.events[i] = queue.accelerator.mark(queue.events[i])
        queue.committed += 1
        self._filled.notify()

    def explain(self) -> str:
        return f"all {self._queue.capacity} slots are full"


class DeviceSource(Port):
    """The consumer's end."""

    def __init__(self, name: str, queue: DeviceQueue, filled: Notifier, freed: Notifier) -> None:
        super().__init__(name, filled)
        self._queue, self._freed = queue, freed
        self._wanted = 1

    def take(self, count: int) -> list[Unroll] | None:
        queue, self._wanted = self._queue, count
        if queue.committed - queue.released < count:
            return None
        places = [(queue.released + i) % queue.capacity for i in range(count)]
        for i in places:
            queue.accelerator.follow(queue.events[i])
        return [queue.slots[i] for i in places]

    def release(self) -> None:
        queue = self._queue
        for _ in range(self._wanted):
            i = queue.released % queue.capacity
            queue.events[i] = queue.accelerator.mark(queue.events[i])
            queue.released += 1
        self._freed.notify()

    def depth(self) -> int:
        return self._queue.committed - self._queue.released

    def explain(self) -> str:
        return f"{self.depth()} of {self._wanted} batches are ready"


class DeviceWeights(Port):
    """Both ends of a weights edge on a device: two buffers, written in turn, never while one is read."""

    def __init__(self, name: str, size: int, accelerator: Accelerator, notifier: Notifier) -> None:
        super().__init__(name, notifier)
        self._accelerator, self._lock = accelerator, threading.Lock()
        self._buffers = [torch.zeros(size, device=accelerator.device) for _ in range(2)]
        self._written: list[Any] = [None, None]
        self._read: list[Any] = [None, None]
        self._newest, self._version = 0, -1

    def reader(self) -> DeviceWeights:
        """The reader's end."""
        return self

    def publish(self, flat: torch.Tensor, version: int) -> None:
        """Make `flat` the newest version."""
        i = 1 - self._newest
        with self._lock:
            self._accelerator.follow(self._read[i])
            self._buffers[i].copy_(flat)
            self._written[i] = self._accelerator.mark(self._written[i])
            self._newest, self._version = i, version
        self._notifier.notify()  # synchronous inference waits for every version, others for the first

    def version(self) -> int:
        """The newest version, -1 before the first."""
        return self._version

    def read(self, into: torch.Tensor) -> int:
        """Copy the newest version and return its number."""
        with self._lock:
            i = self._newest
            self._accelerator.follow(self._written[i])
            into.copy_(self._buffers[i])
            self._read[i] = self._accelerator.mark(self._read[i])
            return self._version

    def explain(self) -> str:
        return f"no version newer than {self._version} was published yet"
