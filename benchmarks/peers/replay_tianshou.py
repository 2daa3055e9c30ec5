"""tianshou's prioritized buffer, timed; run by the python of `tianshou.txt`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from replay_workloads import ALPHA, BETA, Arrays, InProcess, Stream, measure
from tianshou.data import Batch, PrioritizedVectorReplayBuffer


class TianshouStore(InProcess):
    note = (
        "in process; PrioritizedVectorReplayBuffer, every item whole"
        " (stack_num=4 with ignore_obs_next takes an eighth of the memory but samples at half the speed)"
    )

    def __init__(self, stream: Stream, capacity: int) -> None:
        super().__init__()
        self._stream, self._batch = stream, stream.workload.batch
        # It adds one item to each of its parts at a time, so a chunk needs as many parts.
        parts = stream.workload.chunk
        self._buffer = PrioritizedVectorReplayBuffer(capacity, parts, alpha=ALPHA, beta=BETA)
        self._never = np.zeros(parts, np.bool_)

    def insert(self, first: int) -> None:
        items = self._stream.items(first)
        batch = Batch(
            obs=items["obs"],
            act=items["action"],
            rew=items["reward"],
            terminated=self._never,
            truncated=self._never,
            info=Batch(discount=items["discount"]),  # it drops fields that it does not know
        )
        if "next_obs" in items:
            batch.obs_next = items["next_obs"]
        self._buffer.add(batch)

    def sample(self) -> tuple[NDArray[Any], Arrays]:
        batch, indices = self._buffer.sample(self._batch)
        reward = batch.rew.astype(np.float32)  # it stores rewards in double precision
        arrays = {"obs": batch.obs, "action": batch.act, "reward": reward, "discount": batch.info.discount}
        return indices, arrays if isinstance(batch.obs_next, Batch) else {**arrays, "next_obs": batch.obs_next}

    def update(self, keys: NDArray[Any], priorities: NDArray[np.float32]) -> None:
        self._buffer.update_weight(keys, priorities)


if __name__ == "__main__":
    measure("tianshou", "tianshou", TianshouStore)
