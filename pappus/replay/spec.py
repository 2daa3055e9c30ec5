"""What both sides of a replay edge must agree on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pappus.replay.experience_tables import SequenceLayout, TransitionLayout
from pappus.replay.service import Service
from pappus.replay.sockets import SharedMemory
from pappus.replay.tables import Table


@dataclass(frozen=True)
class ReplaySpec:
    """The table of a run, and how it is sampled."""

    layout: TransitionLayout | SequenceLayout
    table: Table
    max_steps: int
    batch_size: int
    importance_exponent: float
    seed: int
    prefetch: int = 16
    """Batches that a learner has fetched ahead, where a thread can do that."""
    path: str = ""
    """The unix socket through which processes reach the service."""

    @property
    def row_bytes(self) -> int:
        """Of one step of one env, as it is stored."""
        columns = self.layout.signature.values()
        return sum(int(np.prod(column.shape)) * np.dtype(column.dtype).itemsize for column in columns)

    def service(self, memory: SharedMemory | None = None) -> Service:
        """A fresh, empty one."""
        allocate = None if memory is None else memory.allocate
        return Service([self.table], self.max_steps, seed=self.seed, allocate=allocate)
