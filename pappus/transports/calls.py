"""Questions and answers in place: env groups write requests, one request server answers them, over one block of memory.

Each env group has one request and one reply, and counters that only one side writes:

    sent      ─ requests of the env group so far; written by the env group
    session   ─ how often somebody has opened the env group; written by the env group
    answered  ─ replies so far; written by the request server
    invariant   answered ≤ sent ≤ answered + 1

While sent = answered the env group owns both arrays, otherwise the request server does. An env group whose process died leaves at most one
unanswered request; its successor waits for that answer, ignores it, and opens a new session. A request server that died leaves
unanswered requests; its successor finds them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pappus.telemetry.meter import Meter
from pappus.transports.memory import ALIGNMENT, Block, Notifier, lay_out, layout_bytes
from pappus.types import Array, Nest, leaves_of

_COUNTERS = 2 * ALIGNMENT  # bytes per env group: a cache line for each side
_WORDS = ALIGNMENT // 8


class SharedCalls:
    """Both ends of a calls edge."""

    def __init__(self, name: str, request: Nest, reply: Nest, clients: int, env_groups: int, block: Block) -> None:
        self._name, self._env_groups = name, env_groups
        self.meter = Meter()
        total = clients * env_groups
        counters = block.memory[: total * _COUNTERS].view(np.int64).reshape(2, total, _WORDS)
        self.sent, self.session, self.answered = counters[0, :, 0], counters[0, :, 1], counters[1, :, 0]
        size = layout_bytes((request, reply))
        rest = block.memory[total * _COUNTERS :]
        self.arrays = [lay_out(rest[i * size : (i + 1) * size], (request, reply)) for i in range(total)]
        self.asked, *self.replied = block.notifiers
        self.memory = block.memory

    @staticmethod
    def footprint(request: Nest, reply: Nest, clients: int, env_groups: int) -> tuple[int, int]:
        """Bytes and notifiers that its block must have."""
        return clients * env_groups * (_COUNTERS + layout_bytes((request, reply))), 1 + clients

    def client(self, index: int) -> SharedRequestClient:
        """The end for one actor."""
        env_groups = range(index * self._env_groups, (index + 1) * self._env_groups)
        return SharedRequestClient(self._name, [SharedEnvGroup(self, env_group) for env_group in env_groups], self.replied[index])

    def server(self) -> SharedRequestServer:
        """The end for the one who answers."""
        return SharedRequestServer(self._name, self, self._env_groups)


class SharedEnvGroup:
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
        self._asked.notify()

    def reply(self) -> Array | None:
        return self._reply if self._sent[0] == self._answered[0] else None


class SharedRequestClient:
    """All env groups of one actor, with one notifier for all."""

    def __init__(self, name: str, env_groups: Sequence[SharedEnvGroup], replied: Notifier) -> None:
        self.name = name
        self.env_groups = env_groups
        self._replied = replied

    def ready(self) -> bool:
        """Whether an answer is there, by a look at the memory."""
        return any(env_group.reply() is not None for env_group in self.env_groups)

    def explain(self) -> str:
        return f"none of {len(self.env_groups)} requests is answered"

    def fileno(self) -> int:
        return self._replied.fileno()

    def clear(self) -> None:
        self._replied.clear()


class SharedCall:
    """One env group's request, the same object each time."""

    def __init__(self, calls: SharedCalls, env_group: int, replied: Notifier) -> None:
        self.env_group, self.session, self.taken = env_group, 0, False
        self.request, self.reply = calls.arrays[env_group]
        self._answered, self._replied = calls.answered[env_group : env_group + 1], replied

    def answer(self) -> None:
        self.taken = False
        self._answered[0] += 1
        self._replied.notify()


class SharedRequestServer:
    """The answering end of all env groups."""

    def __init__(self, name: str, calls: SharedCalls, groups_per_client: int) -> None:
        self.name = f"{name} requests"
        self._calls = calls
        self._objects = [
            SharedCall(calls, env_group, calls.replied[env_group // groups_per_client]) for env_group in range(len(calls.arrays))
        ]

    def calls(self) -> list[SharedCall]:
        calls = self._calls
        unanswered = (calls.sent != calls.answered).nonzero()[0].tolist()
        arrived = [call for env_group in unanswered if not (call := self._objects[env_group]).taken]
        for call in arrived:
            call.taken, call.session = True, int(calls.session[call.env_group])
        return arrived

    def left(self) -> list[int]:
        return []  # an env group's process that died is replaced, and its successor opens a new session

    def news(self) -> list[str]:
        return []

    def memory(self) -> list[Array]:
        return [self._calls.memory]

    def close(self) -> None: ...

    def ready(self) -> bool:
        """Whether a request is there that was not taken yet, by a look at the memory."""
        unanswered = (self._calls.sent != self._calls.answered).nonzero()[0].tolist()
        return any(not self._objects[env_group].taken for env_group in unanswered)

    def explain(self) -> str:
        return f"none of {len(self._objects)} env groups has sent anything new"

    def fileno(self) -> int:
        return self._calls.asked.fileno()

    def clear(self) -> None:
        self._calls.asked.clear()
