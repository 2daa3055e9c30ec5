"""Where the gradients of several learners meet, through memory that all of them see.

Each member has two places, used in turn, and a count of what it has brought. The sum of a round is there when every
count has reached it; each member adds up the places for itself, in the order of the members: all get the same bits.

    invariant   counts differ by at most 1: nobody brings twice before all have brought once

So when a member writes its place for round r + 2, all have brought r + 1, and are done with reading round r.
"""

from __future__ import annotations

import numpy as np
import torch

from pappus.telemetry.meter import Meter
from pappus.transports.memory import ALIGNMENT, Block, aligned

PER_LINE = ALIGNMENT // 8


class MemoryAllReduce:
    """All members' places over raw memory. `in_turn` is for members that share a thread."""

    def __init__(self, name: str, members: int, size: int, block: Block, in_turn: bool = False) -> None:
        self.name, self.members, self.in_turn = name, members, in_turn
        self.meter = Meter()
        counters = block.memory[: 2 * members * ALIGNMENT].view(np.int64)[::PER_LINE]
        self.brought, self.collected = counters[:members], counters[members:]
        stride, start = aligned(4 * size), 2 * members * ALIGNMENT
        offsets = [start + i * stride for i in range(2 * members)]
        places = [torch.from_numpy(block.memory[at : at + 4 * size].view(np.float32)) for at in offsets]
        self.places = [places[:members], places[members:]]
        self.notifiers = block.notifiers

    @staticmethod
    def footprint(members: int, size: int) -> tuple[int, int]:
        """Bytes and notifiers that its block must have."""
        return 2 * members * (ALIGNMENT + aligned(4 * size)), members

    def member(self, index: int) -> MemoryMember:
        """The end of the member of that number."""
        return MemoryMember(self, index)


class MemoryMember:
    """One learner's end of an all-reduce in memory."""

    def __init__(self, all_reduce: MemoryAllReduce, index: int) -> None:
        self.name, self.member, self.members = all_reduce.name, index, all_reduce.members
        self._all_reduce, self._round = all_reduce, int(all_reduce.brought[index])

    def bring(self, flat: torch.Tensor) -> None:
        """Write the own place, and wake the others."""
        self._round += 1
        self._all_reduce.places[self._round % 2][self.member][: len(flat)].copy_(flat)
        self._all_reduce.brought[self.member] = self._round
        for index, notifier in enumerate(self._all_reduce.notifiers):
            if index != self.member:
                notifier.notify()

    def collect(self, flat: torch.Tensor) -> bool:
        """Add all places up, if everybody's is written."""
        if not self.ready():
            return False
        first, second, *rest = (place[: len(flat)] for place in self._all_reduce.places[self._round % 2])
        torch.add(first, second, out=flat)
        for place in rest:
            flat.add_(place)
        self._all_reduce.meter.total += (self.members - 1) * flat.nbytes
        self._all_reduce.collected[self.member] = self._round
        return True

    def ready(self) -> bool:
        """Whether the sum is there.

        Members that share a thread collect in their order: then all do so within one round of the runtime, and between
        rounds all have the same weights.
        """
        if self._all_reduce.in_turn and self.member and self._all_reduce.collected[self.member - 1] < self._round:
            return False
        return bool((self._all_reduce.brought >= self._round).all())

    def explain(self) -> str:
        missing = [str(index) for index, count in enumerate(self._all_reduce.brought) if count < self._round]
        return f"nothing yet from {', '.join(missing)} of {self.members}"

    def fileno(self) -> int:
        return self._all_reduce.notifiers[self.member].fileno()

    def clear(self) -> None:
        self._all_reduce.notifiers[self.member].clear()
