"""All-reduce of gradients between learners; here through memory that all of them see.

Each member has two places, used alternately, and a count of its contributions. The sum of a round is complete when
every count has reached it; each member adds up the places by itself, in their order: all get the same bits.

    invariant   counts differ by at most 1: no member brings twice before all have brought once

So when a member writes its place for round r + 2, all have brought r + 1, and have read round r.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from pappus.core import AllReduce
from pappus.edges.edge import Edge, Port, PortRef
from pappus.telemetry.metrics import Meter
from pappus.transports.memory import ALIGNMENT, Block, SharedBlock, aligned

if TYPE_CHECKING:  # a node agent makes blocks without torch
    from torch import Tensor

    from pappus.edges.torch_all_reduce import TorchAllReduce

PER_LINE = ALIGNMENT // 8


@dataclass(frozen=True)
class AllReduceEdge(Edge):
    """Sums of tensors of up to `size` float32, one of each member."""

    saved: ClassVar[bool] = False  # the inline runtime saves when no gradient waits for others

    members: int
    size: int
    backend: Literal["memory", "gloo", "nccl"]

    def member(self, index: int) -> PortRef[AllReduce]:
        return PortRef(self.name, _member, (index,))

    def memory(self) -> tuple[int, int]:
        return MemoryAllReduce.footprint(self.members, self.size) if self.backend == "memory" else (8, self.members)

    def open(self, block: Block) -> MemoryAllReduce | TorchAllReduce:
        if self.backend == "memory":
            one_thread = not isinstance(block, SharedBlock)
            return MemoryAllReduce(self.name, self.members, self.size, block, in_turn=one_thread)
        from pappus.edges.torch_all_reduce import TorchAllReduce

        return TorchAllReduce(self.name, self.members, self.backend, block)

    def shares_node(self, ref: PortRef[Any]) -> bool:
        return True


def _member(all_reduce: MemoryAllReduce | TorchAllReduce, index: int) -> AllReduce:
    return all_reduce.member(index)


class MemoryAllReduce:
    """All members' places. `in_turn` is for members that share a thread."""

    def __init__(self, name: str, members: int, size: int, block: Block, in_turn: bool = False) -> None:
        self.name, self.members, self.in_turn = name, members, in_turn
        self.meter = Meter()
        counters = block.memory[: 2 * members * ALIGNMENT].view(np.int64)[::PER_LINE]
        self.brought, self.collected = counters[:members], counters[members:]
        stride, start = aligned(4 * size), 2 * members * ALIGNMENT
        offsets = [start + i * stride for i in range(2 * members)]
        places = [block.memory[at : at + 4 * size].view(np.float32) for at in offsets]
        self.places = [places[:members], places[members:]]
        self.notifiers = block.notifiers

    @staticmethod
    def footprint(members: int, size: int) -> tuple[int, int]:
        return 2 * members * (ALIGNMENT + aligned(4 * size)), members

    def member(self, index: int) -> MemoryMember:
        return MemoryMember(self, index)


class MemoryMember(Port):
    """One learner's end of an all-reduce in memory."""

    def __init__(self, all_reduce: MemoryAllReduce, index: int) -> None:
        super().__init__(all_reduce.name, all_reduce.notifiers[index])
        self.member, self.members = index, all_reduce.members
        self._all_reduce, self._round = all_reduce, int(all_reduce.brought[index])

    def bring(self, flat: Tensor) -> None:
        self._round += 1
        np.copyto(self._all_reduce.places[self._round % 2][self.member][: len(flat)], flat.numpy())
        self._all_reduce.brought[self.member] = self._round
        for index, notifier in enumerate(self._all_reduce.notifiers):
            if index != self.member:
                notifier.notify()

    def collect(self, flat: Tensor) -> bool:
        if not self.ready():
            return False
        first, second, *rest = (place[: len(flat)] for place in self._all_reduce.places[self._round % 2])
        total = flat.numpy()
        np.add(first, second, out=total)
        for place in rest:
            np.add(total, place, out=total)
        self._all_reduce.meter.total += (self.members - 1) * total.nbytes
        self._all_reduce.collected[self.member] = self._round
        return True

    def ready(self) -> bool:
        """Whether the sum is complete. Members that share a thread collect in their order: then all do so within one
        round of the runtime, and between rounds all have the same weights."""
        if self._all_reduce.in_turn and self.member and self._all_reduce.collected[self.member - 1] < self._round:
            return False
        return bool((self._all_reduce.brought >= self._round).all())

    def explain(self) -> str:
        missing = [str(index) for index, count in enumerate(self._all_reduce.brought) if count < self._round]
        return f"nothing yet from {', '.join(missing)} of {self.members}"
