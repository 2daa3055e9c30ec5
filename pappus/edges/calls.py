"""Inference requests in shared memory: env groups write requests, one request server answers them.

Each env group has one request and one reply, and counters that only one side writes:

    sent      ─ requests of the env group so far; written by the env group
    session   ─ how often the env group was opened; written by the env group
    answered  ─ replies so far; written by the request server
    invariant   answered ≤ sent ≤ answered + 1

While sent = answered the env group owns both arrays, otherwise the request server does. An env group whose process died
leaves at most one unanswered request; its successor waits for that answer, ignores it, and opens a new session. A
request server that died leaves unanswered requests; its successor finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import optree

from pappus.config import WireConfig
from pappus.core import Call, RequestClient, RequestServer
from pappus.edges.edge import Edge, Port, PortRef
from pappus.edges.mirrored_rings import RingsMirror
from pappus.telemetry.metrics import Meter
from pappus.transports.memory import ALIGNMENT, Block, Notifier, lay_out, layout_bytes
from pappus.transports.mirrors import Hold
from pappus.types import OWN, Array, ArraySpec, Nest, leaves_of

if TYPE_CHECKING:  # only a server that listens needs grpc
    from pappus.transports.grpc_request_server import GrpcRequestServer

_COUNTERS = 2 * ALIGNMENT  # bytes per env group: a cache line for each side
_WORDS = ALIGNMENT // 8


@dataclass(frozen=True)
class CallsEdge(Edge):
    """Requests from the env groups of several clients to one request server; with `wire.listen` also from elsewhere.

    `request` and `reply` are of one env; an env group holds `envs` of them.
    """

    request: Nest
    reply: ArraySpec
    clients: int
    env_groups: int
    envs: int
    wire: WireConfig
    choices: tuple[int, ...] = ()
    run: str = ""
    steps_held: int = 1
    """Steps of an env that the request server's role keeps until they are learned from."""

    @property
    def group_request(self) -> Nest:
        return optree.tree_map(lambda leaf: leaf.prefixed(self.envs), self.request)

    @property
    def group_reply(self) -> ArraySpec:
        return self.reply.prefixed(self.envs)

    def client(self, index: int) -> PortRef[RequestClient]:
        return PortRef(self.name, SharedCalls.client, (index,))

    def server(self) -> PortRef[RequestServer]:
        return PortRef(self.name, SharedCalls.server)

    def memory(self) -> tuple[int, int]:
        return SharedCalls.footprint(self.group_request, self.group_reply, self.clients, self.env_groups)

    def open(self, block: Block) -> SharedCalls:
        listen = self._listen if self.wire.listen else None
        return SharedCalls(
            self.name, self.group_request, self.group_reply, self.clients, self.env_groups, block, listen
        )

    def _listen(self, asked: Notifier) -> GrpcRequestServer:
        from pappus.replay.storage.memory import total_memory
        from pappus.transports.grpc_request_server import GrpcRequestServer

        return GrpcRequestServer(
            self.name, self.wire, self.request, self.reply, self.choices, self.run, asked, self.steps_held,
            total_memory(),
        )

    def notifiers(self, ref: PortRef[Any]) -> Sequence[int]:
        return super().notifiers(ref) if ref == self.server() else (0, 1 + ref.arguments[0])

    def hub(self) -> PortRef[Any] | None:
        return self.server()

    def spokes(self) -> Sequence[PortRef[Any]]:
        return [self.client(index) for index in range(self.clients)]

    def mirror(self, block: Block, hold: Callable[[str], Hold]) -> RingsMirror:
        return self.open(block).mirror()


class SharedCalls:
    """A calls edge in memory."""

    def __init__(
        self, name: str, request: Nest, reply: Nest, clients: int, env_groups: int, block: Block,
        listen: Callable[[Notifier], GrpcRequestServer] | None = None,
    ) -> None:
        self._name, self._env_groups, self._listen = name, env_groups, listen
        self.meter = Meter()
        total = clients * env_groups
        counters = block.memory[: total * _COUNTERS].view(np.int64).reshape(2, total, _WORDS)
        self.sent, self.session, self.answered = counters[0, :, 0], counters[0, :, 1], counters[1, :, 0]
        size = layout_bytes((request, reply))
        rest = block.memory[total * _COUNTERS :]
        self._places, self._spec = rest.reshape(total, size), (request, reply)
        self.asked, *self.replied = block.notifiers
        self.memory, self._request_bytes = block.memory, layout_bytes(request)

    @staticmethod
    def footprint(request: Nest, reply: Nest, clients: int, env_groups: int) -> tuple[int, int]:
        return clients * env_groups * (_COUNTERS + layout_bytes((request, reply))), 1 + clients

    def arrays(self, env_group: int) -> Any:
        """An env group's request and reply. A client needs only its own: views of a thousand take megabytes."""
        return lay_out(self._places[env_group], self._spec)

    def client(self, index: int) -> SharedRequestClient:
        env_groups = range(index * self._env_groups, (index + 1) * self._env_groups)
        groups = [SharedEnvGroup(self, env_group) for env_group in env_groups]
        return SharedRequestClient(self._name, groups, self.replied[index])

    def server(self) -> SharedRequestServer | CombinedRequestServer:
        here = SharedRequestServer(self._name, self, self._env_groups)
        return here if self._listen is None else CombinedRequestServer(here, self._listen(self.asked))

    def mirror(self) -> RingsMirror:
        """What a node agent sees of it: each env group is a ring of one slot, whose release carries the reply."""
        arrays = self.memory[len(self.sent) * _COUNTERS :].reshape(len(self.sent), -1)
        requests, replies = np.split(arrays, [self._request_bytes], axis=1)
        return RingsMirror(
            ends=len(self.replied), committed=self.sent, released=self.answered, sessions=self.session,
            slots=requests[:, None], replies=replies, filled=self.asked, freed=self.replied,
        )


class SharedEnvGroup:
    """One group of envs."""

    def __init__(self, calls: SharedCalls, index: int) -> None:
        self.request, self._reply = calls.arrays(index)
        self._sent, self._session = calls.sent[index : index + 1], calls.session[index : index + 1]
        self._answered = calls.answered[index : index + 1]
        self._asked, self._meter = calls.asked, calls.meter
        self._bytes = sum(leaf.nbytes for leaf in leaves_of((self.request, self._reply)))

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


class SharedRequestClient(Port):
    """All env groups of one actor, with one notifier for all."""

    def __init__(self, name: str, env_groups: Sequence[SharedEnvGroup], replied: Notifier) -> None:
        super().__init__(name, replied)
        self.env_groups = env_groups

    def ready(self) -> bool:
        return any(env_group.reply() is not None for env_group in self.env_groups)

    def explain(self) -> str:
        return f"none of {len(self.env_groups)} requests is answered"


class SharedCall:
    """One env group's request, the same object each time."""

    origin = OWN

    def __init__(self, calls: SharedCalls, env_group: int, replied: Notifier) -> None:
        self.env_group, self.session, self.taken = env_group, 0, False
        self.request, self.reply = calls.arrays(env_group)
        self._answered, self._replied = calls.answered[env_group : env_group + 1], replied

    def answer(self) -> None:
        self.taken = False
        self._answered[0] += 1
        self._replied.notify()


class SharedRequestServer(Port):
    """The answering end of all env groups."""

    def __init__(self, name: str, calls: SharedCalls, groups_per_client: int) -> None:
        super().__init__(f"{name} requests", calls.asked)
        self._calls = calls
        self._objects = [
            SharedCall(calls, env_group, calls.replied[env_group // groups_per_client])
            for env_group in range(len(calls.sent))
        ]

    def calls(self) -> list[SharedCall]:
        calls = self._calls
        unanswered = (calls.sent != calls.answered).nonzero()[0].tolist()
        arrived = [call for env_group in unanswered if not (call := self._objects[env_group]).taken]
        for call in arrived:
            call.taken, call.session = True, int(calls.session[call.env_group])
        return arrived

    def left(self) -> list[int]:
        return []  # an actor that died is replaced, and its successor opens new sessions

    def news(self) -> list[str]:
        return []

    def refused(self) -> int:
        return 0

    def drop(self, origin: int, reason: str) -> None: ...

    def take_metrics(self) -> dict[str, tuple[float, float]]:
        return {}  # actors of the run report for themselves

    def memory(self) -> list[Array]:
        return [self._calls.memory]

    def close(self, over: str = "") -> None: ...

    def ready(self) -> bool:
        unanswered = (self._calls.sent != self._calls.answered).nonzero()[0].tolist()
        return any(not self._objects[env_group].taken for env_group in unanswered)

    def explain(self) -> str:
        return f"none of {len(self._objects)} env groups has sent anything new"


class CombinedRequestServer:
    """The server of this machine's env groups and of those that connect over gRPC; both use one notifier."""

    def __init__(self, here: SharedRequestServer, elsewhere: GrpcRequestServer) -> None:
        self.name = here.name
        self._here, self._elsewhere = here, elsewhere
        self.fileno, self.clear, self.sleep = here.fileno, here.clear, elsewhere.sleep
        self.left, self.news, self.memory, self.close = elsewhere.left, elsewhere.news, here.memory, elsewhere.close
        self.refused, self.drop, self.take_metrics = elsewhere.refused, elsewhere.drop, elsewhere.take_metrics

    def calls(self) -> Sequence[Call]:
        return [*self._here.calls(), *self._elsewhere.calls()]

    def explain(self) -> str:
        return f"{self._here.explain()}; {self._elsewhere.explain()}"
