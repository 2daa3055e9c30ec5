"""Edges between roles that share a process and a device: nothing crosses to the host.

Roles run in threads of their own, each with a stream of its own. A slot (or a buffer of weights) that changes hands
carries an event with it: whoever gets it lets its stream wait for what the other stream was told to do with it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from pappus.accelerator import Accelerator
from pappus.transports.memory import Notifier
from pappus.types import ArraySpec, Nest, Unroll, map_leaves


class DeviceQueue:
    """A bounded queue of unrolls on a device, from one producer to one consumer. Both ends are this object's."""

    def __init__(self, name: str, spec: Nest, capacity: int, accelerator: Accelerator, notifiers: Sequence[Notifier]) -> None:
        self.accelerator, self.capacity = accelerator, capacity
        self.slots: list[Unroll] = [map_leaves(self._allocate, spec) for _ in range(capacity)]
        self.events: list[Any] = [None] * capacity
        self.committed = self.released = 0
        self._name, (self._filled, self._freed) = name, notifiers

    def _allocate(self, leaf: ArraySpec) -> torch.Tensor:
        return torch.zeros(leaf.shape, dtype=getattr(torch, leaf.dtype), device=self.accelerator.device)

    def sink(self) -> DeviceSink:
        """The producer's end."""
        return DeviceSink(self._name, self, self._freed, self._filled)

    def source(self) -> DeviceSource:
        """The consumer's end."""
        return DeviceSource(self._name, self, self._filled, self._freed)


class DeviceSink:
    """Where batches are written."""

    def __init__(self, name: str, queue: DeviceQueue, freed: Notifier, filled: Notifier) -> None:
        self.name = f"{name} slots"
        self._queue, self._freed, self._filled = queue, freed, filled

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

    def fileno(self) -> int:
        return self._freed.fileno()

    def clear(self) -> None:
        self._freed.clear()


class DeviceSource:
    """Where batches are read."""

    def __init__(self, name: str, queue: DeviceQueue, filled: Notifier, freed: Notifier) -> None:
        self.name = name
        self._queue, self._filled, self._freed = queue, filled, freed
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

    def fileno(self) -> int:
        return self._filled.fileno()

    def clear(self) -> None:
        self._filled.clear()


class BufferLoan:
    """Through which objects go from one role to another of the same process, and come back when they were used."""

    def __init__(self, name: str, notifiers: Sequence[Notifier]) -> None:
        self._name, (self._given, self._returned) = name, notifiers
        self.given: deque[Any] = deque()
        self.returned: deque[Any] = deque()

    def lender(self) -> BufferLender:
        """The end of the one whose objects they are."""
        return BufferLender(self._name, self, self._given, self._returned)

    def borrower(self) -> BufferBorrower:
        """The end of the one who uses them."""
        return BufferBorrower(self._name, self, self._given, self._returned)


class BufferLender:
    """Gives objects away and gets them back."""

    def __init__(self, name: str, loan: BufferLoan, given: Notifier, returned: Notifier) -> None:
        self.name = f"{name} back"
        self._loan, self._given, self._returned = loan, given, returned

    def give(self, thing: Any) -> None:
        self._loan.given.append(thing)
        self._given.notify()

    def returned(self) -> list[Any]:
        """What has come back since the last look."""
        return [self._loan.returned.popleft() for _ in range(len(self._loan.returned))]

    def explain(self) -> str:
        return f"{len(self._loan.given)} are still to be used"

    def fileno(self) -> int:
        return self._returned.fileno()

    def clear(self) -> None:
        self._returned.clear()


class BufferBorrower:
    """Takes objects and gives them back."""

    def __init__(self, name: str, loan: BufferLoan, given: Notifier, returned: Notifier) -> None:
        self.name = name
        self._loan, self._given, self._returned = loan, given, returned

    def take(self) -> Any:
        """The oldest object, or None."""
        return self._loan.given.popleft() if self._loan.given else None

    def give_back(self, thing: Any) -> None:
        self._loan.returned.append(thing)
        self._returned.notify()

    def explain(self) -> str:
        return "nothing was given"

    def fileno(self) -> int:
        return self._given.fileno()

    def clear(self) -> None:
        self._given.clear()


class DeviceWeights:
    """Both ends of a weights edge on a device: two buffers, written in turn, never while one is read."""

    def __init__(self, name: str, size: int, accelerator: Accelerator, notifier: Notifier) -> None:
        self.name = name
        self._accelerator, self._notifier, self._lock = accelerator, notifier, threading.Lock()
        self._buffers = [torch.zeros(size, device=accelerator.device) for _ in range(2)]
        self._written: list[Any] = [None, None]
        self._read: list[Any] = [None, None]
        self._newest, self._version = 0, -1

    def publish(self, flat: torch.Tensor, version: int) -> None:
        """Make `flat` the newest version."""
        i = 1 - self._newest
        with self._lock:
            self._accelerator.follow(self._read[i])
            self._buffers[i].copy_(flat)
            self._written[i] = self._accelerator.mark(self._written[i])
            self._newest, first = i, self._version < 0
            self._version = version
        if first:
            self._notifier.notify()  # never cleared: from now on nobody has to wait for weights

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
        return "no version was published yet"

    def fileno(self) -> int:
        return self._notifier.fileno()

    def clear(self) -> None: ...
