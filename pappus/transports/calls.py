"""Questions and answers in place: lanes write requests, one desk answers them, over one block of memory.

Each lane has one request and one reply, and counters that only one side writes:

    sent      ─ requests of the lane so far; written by the lane
    session   ─ how often somebody has opened the lane; written by the lane
    answered  ─ replies so far; written by the desk
    invariant   answered ≤ sent ≤ answered + 1

While sent = answered the lane owns both arrays, otherwise the desk does. A lane whose process died leaves at most one
unanswered request; its successor waits for that answer, ignores it, and opens a new session. A desk that died leaves
unanswered requests; its successor finds them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pappus.telemetry.meter import Meter
from pappus.transports.memory import ALIGNMENT, Bell, Block, lay_out, layout_bytes
from pappus.types import Array, Nest, leaves_of

_COUNTERS = 2 * ALIGNMENT  # bytes per lane: a cache line for each side
_WORDS = ALIGNMENT // 8


class SharedCalls:
    """Both ends of a calls edge."""

    def __init__(self, name: str, request: Nest, reply: Nest, callers: int, lanes: int, block: Block) -> None:
        self._name, self._lanes = name, lanes
        self.meter = Meter()
        total = callers * lanes
        counters = block.memory[: total * _COUNTERS].view(np.int64).reshape(2, total, _WORDS)
        self.sent, self.session, self.answered = counters[0, :, 0], counters[0, :, 1], counters[1, :, 0]
        size = layout_bytes((request, reply))
        rest = block.memory[total * _COUNTERS :]
        self.arrays = [lay_out(rest[i * size : (i + 1) * size], (request, reply)) for i in range(total)]
        self.asked, *self.replied = block.bells
        self.memory = block.memory

    @staticmethod
    def footprint(request: Nest, reply: Nest, callers: int, lanes: int) -> tuple[int, int]:
        """Bytes and bells that its block must have."""
        return callers * lanes * (_COUNTERS + layout_bytes((request, reply))), 1 + callers

    def caller(self, index: int) -> SharedCaller:
        """The end for one actor."""
        lanes = range(index * self._lanes, (index + 1) * self._lanes)
        return SharedCaller(self._name, [SharedLane(self, lane) for lane in lanes], self.replied[index])

    def desk(self) -> SharedDesk:
        """The end for the one who answers."""
        return SharedDesk(self._name, self, self._lanes)


class SharedLane:
    """One group of envs."""

    def __init__(self, calls: SharedCalls, index: int) -> None:
        self.request, self._reply = calls.arrays[index]
        self._sent, self._session = calls.sent[index : index + 1], calls.session[index : index + 1]
        self._answered = calls.answered[index : index + 1]
        self._asked, self._meter = calls.asked, calls.meter
        self._bytes = sum(leaf.nbytes for leaf in leaves_of(calls.arrays[index]))

    def open(self) -> bool:
        if self._sent[0] != self._answered[0]:
            return False
        self._session[0] += 1
        return True

    def send(self) -> None:
        self._sent[0] += 1
        self._meter.total += self._bytes
        self._asked.ring()

    def reply(self) -> Array | None:
        return self._reply if self._sent[0] == self._answered[0] else None


class SharedCaller:
    """All lanes of one actor, with one bell for all."""

    def __init__(self, name: str, lanes: Sequence[SharedLane], replied: Bell) -> None:
        self.name = name
        self.lanes = lanes
        self._replied = replied

    def ready(self) -> bool:
        """Whether an answer is there, by a look at the memory."""
        return any(lane.reply() is not None for lane in self.lanes)

    def explain(self) -> str:
        return f"none of {len(self.lanes)} requests is answered"

    def fileno(self) -> int:
        return self._replied.fileno()

    def clear(self) -> None:
        self._replied.clear()


class SharedCall:
    """One lane's request, the same object each time."""

    def __init__(self, calls: SharedCalls, lane: int, replied: Bell) -> None:
        self.lane, self.session, self.taken = lane, 0, False
        self.request, self.reply = calls.arrays[lane]
        self._answered, self._replied = calls.answered[lane : lane + 1], replied

    def answer(self) -> None:
        self.taken = False
        self._answered[0] += 1
        self._replied.ring()


class SharedDesk:
    """The answering end of all lanes."""

    def __init__(self, name: str, calls: SharedCalls, lanes_per_caller: int) -> None:
        self.name = f"{name} requests"
        self._calls = calls
        self._objects = [
            SharedCall(calls, lane, calls.replied[lane // lanes_per_caller]) for lane in range(len(calls.arrays))
        ]

    def calls(self) -> list[SharedCall]:
        calls = self._calls
        unanswered = (calls.sent != calls.answered).nonzero()[0].tolist()
        arrived = [call for lane in unanswered if not (call := self._objects[lane]).taken]
        for call in arrived:
            call.taken, call.session = True, int(calls.session[call.lane])
        return arrived

    def left(self) -> list[int]:
        return []  # a lane's process that died is replaced, and its successor opens a new session

    def news(self) -> list[str]:
        return []

    def memory(self) -> list[Array]:
        return [self._calls.memory]

    def close(self) -> None: ...

    def ready(self) -> bool:
        """Whether a request is there that was not taken yet, by a look at the memory."""
        unanswered = (self._calls.sent != self._calls.answered).nonzero()[0].tolist()
        return any(not self._objects[lane].taken for lane in unanswered)

    def explain(self) -> str:
        return f"none of {len(self._objects)} lanes has sent anything new"

    def fileno(self) -> int:
        return self._calls.asked.fileno()

    def clear(self) -> None:
        self._calls.asked.clear()
