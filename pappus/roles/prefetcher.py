"""The prefetcher of SEED: packs finished unrolls into the next training batch, ahead of the learner."""

from __future__ import annotations

import numpy as np

from pappus.accelerator import Accelerator
from pappus.core import Borrower, Sink, Waitable
from pappus.recording.unrolls import BatchPacker
from pappus.roles.device_unrolls import UnrollBuffer
from pappus.roles.role import Role


class Prefetcher(Role):
    """finished unrolls ──▶ packer ──batches──▶ sink, all on the device."""

    afresh = "finished unrolls are in the memory of the learner's device"

    def __init__(self, name: str, unrolls: Borrower, sink: Sink, batch_size: int, device: str) -> None:
        super().__init__(name)
        self._unrolls, self._sink = unrolls, sink
        self._packer = BatchPacker([sink], batch_size)
        self._accelerator = Accelerator(device)
        self._stream = self._accelerator.stream()
        self._buffer: UnrollBuffer | None = None
        self._packed = 0

    def step(self) -> Waitable | None:
        self._buffer = self._buffer or self._unrolls.take()
        if self._buffer is None:
            return self._unrolls
        with self._accelerator.on(self._stream):
            return self._pack(self._buffer)

    def _pack(self, buffer: UnrollBuffer) -> Waitable | None:
        if self._packed == 0:
            self._accelerator.follow(buffer.event)
        self._packed = self._packer.pack(buffer.unroll, self._packed, buffer.num_envs)
        if self._packed < buffer.num_envs:
            return self._sink
        buffer.event = self._accelerator.mark(buffer.event)
        self._unrolls.give_back(buffer)
        self._buffer, self._packed = None, 0
        self.metrics.count("unrolls", buffer.num_envs)
        return None

    def close(self) -> None:
        """Count what is left here as dropped."""
        dropped, buffer = self._packer.held, self._buffer or self._unrolls.take()
        while buffer is not None:
            dropped += int(np.count_nonzero(buffer.host.valid[:, self._packed :]))
            buffer, self._packed = self._unrolls.take(), 0
        self.drop(dropped)
