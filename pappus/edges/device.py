"""Queues and weights between roles that share a process and a device: nothing is copied to the host.

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
        self.committed = self.released = self.steps = 0
        self.name, (self.filled, self.freed) = name, notifiers

    def _allocate(self, leaf: ArraySpec) -> torch.Tensor:
        return torch.zeros(leaf.shape, dtype=getattr(torch, leaf.dtype), device=self.accelerator.device)

    def sink(self, producer: int = 0) -> DeviceSink:
        """The only producer's end."""
        return DeviceSink(self)

    def source(self) -> DeviceSource:
        return DeviceSource(self)

    def ready(self) -> int:
        return self.committed - self.released

    def hand_over(self, number: int) -> None:
        """The other side's stream will wait for what this one has queued on that slot."""
        i = number % self.capacity
        self.events[i] = self.accelerator.mark(self.events[i])

    def receive(self, number: int) -> Unroll:
        """That slot, when the work of the other side's stream is done."""
        self.accelerator.follow(self.events[number % self.capacity])
        return self.slots[number % self.capacity]


class DeviceSink(Port):
    """The producer's end."""

    def __init__(self, queue: DeviceQueue) -> None:
        super().__init__(f"{queue.name} slots", queue.freed)
        self._queue = queue

    def acquire(self) -> Unroll | None:
        queue = self._queue
        return None if queue.ready() >= queue.capacity else queue.receive(queue.committed)

    def commit(self, steps: int = 0) -> None:
        self._queue.hand_over(self._queue.committed)
        self._queue.committed += 1
        self._queue.steps += steps
        self._queue.filled.notify()

    def handed_on(self) -> int:
        return self._queue.steps

    def explain(self) -> str:
        return f"all {self._queue.capacity} slots are full"


class DeviceSource(Port):
    """The consumer's end."""

    def __init__(self, queue: DeviceQueue) -> None:
        super().__init__(queue.name, queue.filled)
        self._queue, self._wanted, self.depth = queue, 1, queue.ready

    def take(self, count: int) -> list[Unroll] | None:
        queue, self._wanted = self._queue, count
        return None if queue.ready() < count else [queue.receive(queue.released + i) for i in range(count)]

    def release(self) -> None:
        for _ in range(self._wanted):
            self._queue.hand_over(self._queue.released)
            self._queue.released += 1
        self._queue.freed.notify()

    def explain(self) -> str:
        return f"{self.depth()} of {self._wanted} batches are ready"


class DeviceWeights(Port):
    """Both ends of a weights edge on a device: two buffers, written alternately, never while one is read."""

    def __init__(self, name: str, size: int, accelerator: Accelerator, notifier: Notifier) -> None:
        super().__init__(name, notifier)
        self._accelerator, self._lock = accelerator, threading.Lock()
        self._buffers = [torch.zeros(size, device=accelerator.device) for _ in range(2)]
        self._written: list[Any] = [None, None]
        self._read: list[Any] = [None, None]
        self._newest, self._version = 0, -1

    def reader(self) -> DeviceWeights:
        return self

    def publish(self, flat: torch.Tensor, version: int) -> None:
        i = 1 - self._newest
        with self._lock:
            self._accelerator.follow(self._read[i])
            self._buffers[i].copy_(flat)
            self._written[i] = self._accelerator.mark(self._written[i])
            self._newest, self._version = i, version
        self._notifier.notify()  # synchronous inference waits for every version, others for the first

    def version(self) -> int:
        return self._version

    def read(self, into: torch.Tensor) -> int:
        with self._lock:
            i = self._newest
            self._accelerator.follow(self._written[i])
            into.copy_(self._buffers[i])
            self._read[i] = self._accelerator.mark(self._read[i])
            return self._version

    def explain(self) -> str:
        return f"no version newer than {self._version} was published yet"
