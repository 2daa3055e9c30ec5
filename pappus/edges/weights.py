"""Weights as one flat buffer: publishing is one copy and a version number; readers see whole versions.

Two buffers are written alternately, each under a sequence number that is odd while it is being written (a seqlock):
the writer never waits, and a reader that was overtaken reads again. The order of the writes is what x86 guarantees; on
other processors the system calls and the interpreter between them have to keep it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from pappus.core import ShardWeights, WeightsReader
from pappus.edges.edge import Edge, Port, PortRef
from pappus.telemetry.metrics import Meter
from pappus.transports.memory import ALIGNMENT, Block, aligned
from pappus.types import Array

if TYPE_CHECKING:  # a device needs torch
    from pappus.edges.device import DeviceWeights


@dataclass(frozen=True)
class WeightsEdge(Edge):
    """Versions of one flat buffer of `size` float32, from one writer to any number of readers.

    With a `device`, the buffer is in its memory, and there is one reader, in the writer's process.
    """

    broadcast: ClassVar[bool] = True

    size: int
    device: str = ""

    def writer(self) -> PortRef[ShardWeights]:
        return PortRef(self.name, _writer)

    def reader(self) -> PortRef[WeightsReader]:
        return PortRef(self.name, _reader)

    def memory(self) -> tuple[int, int]:
        return (0, 2) if self.device else FlatWeights.footprint(self.size)

    def open(self, block: Block) -> FlatWeights | DeviceWeights:
        if not self.device:
            return FlatWeights(self.name, self.size, block)
        from pappus.accelerator import Accelerator
        from pappus.edges.device import DeviceWeights

        return DeviceWeights(self.name, self.size, Accelerator(self.device), block.notifiers[0])

    def hub(self) -> PortRef[Any] | None:
        return None if self.device else self.writer()


def _writer(weights: FlatWeights | DeviceWeights) -> ShardWeights:
    return weights


def _reader(weights: FlatWeights | DeviceWeights) -> WeightsReader:
    return weights.reader()


class FlatWeights(Port):
    """Both ends of a weights edge in memory."""

    def __init__(self, name: str, size: int, block: Block) -> None:
        super().__init__(name, block.notifiers[0])
        self.size, self._block = size, block
        self.meter = Meter()
        header = block.memory[:ALIGNMENT].view(np.int64)
        self._published = header[0:1]  # the newest version plus one
        self._sequence, self._versions = header[1:3], header[3:5]  # per buffer
        self._followed = header[5:6]
        stride = aligned(size * 4)
        self._buffers = [
            block.memory[ALIGNMENT + i * stride : ALIGNMENT + i * stride + size * 4].view(np.float32) for i in range(2)
        ]
        self.changed = block.notifiers[1]

    @staticmethod
    def footprint(size: int) -> tuple[int, int]:
        return ALIGNMENT + 2 * aligned(size * 4), 2

    def reader(self) -> FlatWeights:
        """A reader's end, with its own meter: roles that share a process report separately what they read."""
        return FlatWeights(self.name, self.size, self._block)

    def publish(self, flat: Array, version: int) -> None:
        """Consecutive versions alternate between the buffers; one that skips numbers may make a reader read again."""
        i = (version + 1) % 2
        self._sequence[i] |= 1  # odd already if a predecessor was killed here
        self._buffers[i][:] = flat
        self._versions[i] = version
        self._sequence[i] += 1
        self._published[0] = version + 1
        if version == 0 or self._sequence[1 - i] == 0:
            self._notifier.notify()  # never cleared: from now on there are weights
        if self._followed[0]:
            self.changed.notify()

    def follow(self) -> None:
        """Notify `changed` with every version from now on, for a node agent that copies them to other nodes."""
        self._followed[0] = 1

    def version(self) -> int:
        return int(self._published[0]) - 1

    def read(self, into: Array) -> int:
        while True:
            i = int(self._published[0]) % 2
            sequence = int(self._sequence[i])
            if sequence % 2 == 0:
                np.copyto(into, self._buffers[i])
                version = int(self._versions[i])
                if int(self._sequence[i]) == sequence:
                    self.meter.total += into.nbytes
                    return version

    def explain(self) -> str:
        return "no version was published yet"

    def clear(self) -> None: ...
