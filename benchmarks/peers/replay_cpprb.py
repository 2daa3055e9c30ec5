"""cpprb's prioritized buffer, timed; run by the python of `cpprb.txt`."""

from __future__ import annotations

from typing import Any

import numpy as np
from cpprb import PrioritizedReplayBuffer
from numpy.typing import NDArray
from replay_workloads import ALPHA, BETA, Arrays, InProcess, Stream, measure


class CpprbStore(InProcess):
    note = (
        "in process; every item whole"
        " (stack_compress takes a quarter of the memory for stacks, samples no faster and inserts 15 times slower)"
    )

    def __init__(self, stream: Stream, capacity: int) -> None:
        super().__init__()
        self._stream, self._batch = stream, stream.workload.batch
        items = stream.items(0)
        fields = {name: {"shape": value.shape[1:] or 1, "dtype": value.dtype} for name, value in items.items()}
        self._scalars = [name for name, value in items.items() if value.ndim == 1]
        self._buffer = PrioritizedReplayBuffer(capacity, fields, alpha=ALPHA)
        self._priorities = np.random.default_rng(0).random(stream.workload.chunk)

    def insert(self, first: int) -> None:
        self._buffer.add(priorities=self._priorities, **self._stream.items(first))

    def sample(self) -> tuple[NDArray[Any], Arrays]:
        batch = self._buffer.sample(self._batch, BETA)
        # cpprb gives scalars a dimension of one.
        return batch["indexes"], {**batch, **{name: batch[name][:, 0] for name in self._scalars}}

    def update(self, keys: NDArray[Any], priorities: NDArray[np.float32]) -> None:
        self._buffer.update_priorities(keys, priorities)


if __name__ == "__main__":
    measure("cpprb", "cpprb", CpprbStore)
