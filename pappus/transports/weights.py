"""Weights as one flat buffer: publishing is one copy and a version number; readers see whole versions.

Two buffers are written in turn, each under a sequence number that is odd while it is being written (a seqlock):
the writer never waits, and a reader that was overtaken reads again. The order of the writes is what x86 guarantees; on
other processors the system calls and the interpreter between them have to keep it.
"""

from __future__ import annotations

import numpy as np

from pappus.telemetry.meter import Meter
from pappus.transports.memory import ALIGNMENT, Block, aligned
from pappus.types import Array


class FlatWeights:
    """Both ends of a weights edge over raw memory."""

    def __init__(self, name: str, size: int, block: Block) -> None:
        self.name = name
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
        self._notifier, self.changed = block.notifiers

    @staticmethod
    def footprint(size: int) -> tuple[int, int]:
        """Bytes and notifiers that its block must have."""
        return ALIGNMENT + 2 * aligned(size * 4), 2

    def reader(self) -> FlatWeights:
        """An end with a meter of its own: what each role reads can be told apart, also where they share a process."""
        return FlatWeights(self.name, self.size, self._block)

    def publish(self, flat: Array, version: int) -> None:
        """Make `flat` the newest version. The next number goes to the other buffer, so that nobody who reads is
        disturbed; one that skips numbers may make a reader read again."""
        i = (version + 1) % 2
        self._sequence[i] |= 1  # odd already if a predecessor was killed here
        self._buffers[i][:] = flat
        self._versions[i] = version
        self._sequence[i] += 1
        self._published[0] = version + 1
        if version == 0 or self._sequence[1 - i] == 0:
            self._notifier.notify()  # never cleared: from now on nobody has to wait for weights
        if self._followed[0]:
            self.changed.notify()

    def follow(self) -> None:
        """Have `changed` ring with every version from now on, for one who carries them elsewhere."""
        self._followed[0] = 1

    def version(self) -> int:
        """The newest version, -1 before the first."""
        return int(self._published[0]) - 1

    def read(self, into: Array) -> int:
        """Copy the newest version and return its number."""
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

    def fileno(self) -> int:
        return self._notifier.fileno()

    def clear(self) -> None: ...
