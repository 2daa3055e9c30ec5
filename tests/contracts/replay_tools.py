"""Ways to reach a replay service, and what its tests do again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pappus.replay.clients.client import Client
from pappus.replay.clients.session import Session
from pappus.replay.clients.writer import TrajectoryWriter
from pappus.replay.sampling.fields import Batch
from pappus.replay.service.service import Service
from pappus.replay.tables import rate_limiters
from pappus.replay.tables.live_table import in_order
from pappus.replay.tables.rate_limiters import RateLimiter
from pappus.replay.tables.table import FIFO, LIFO, MAX_HEAP, MIN_HEAP, UNIFORM, Selection, Table
from pappus.types import ArraySpec
from tests.process_tools import eventually

SECONDS = 4.0
"""How long something that must happen may take."""
NUMBER = {"x": ArraySpec((), "int64")}
STEP = {
    "obs": ArraySpec((2,), "float32"), "action": ArraySpec((), "int64"), "reward": ArraySpec((), "float32"),
    "discount": ArraySpec((), "float32"),
}
REMOVERS = [FIFO, LIFO, MIN_HEAP, MAX_HEAP]
REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": np.sum, "min": np.min, "max": np.max, "mean": np.mean, "product": np.prod
}


class Way:
    """A way to reach services. Subclasses say how one is served, and how a session with it is opened."""

    def __init__(self) -> None:
        self._accesses: list[Session] = []
        self._services: list[Service] = []

    def __call__(self, specs: Sequence[Table] | Table, **options: Any) -> tuple[Client, Service]:
        service = self.serve([specs] if isinstance(specs, Table) else specs, **options)
        self._services.append(service)
        return self.client(service), service

    def client(self, service: Service, name: str = "") -> Client:
        return Client(lambda: self.session(service, name))

    def session(self, service: Service, name: str = "") -> Session:
        self._accesses.append(self.connect(service, name))
        return self._accesses[-1]

    def serve(self, specs: Sequence[Table], **options: Any) -> Service:
        raise NotImplementedError

    def connect(self, service: Service, name: str) -> Session:
        raise NotImplementedError

    def shut(self) -> None:
        """End what serves, if anything does."""

    def close(self) -> None:
        for session in reversed(self._accesses):
            session.close()
        try:
            for service in self._services:
                eventually(lambda service=service: only_items_hold_chunks(service), SECONDS / 2)
        finally:
            self.shut()


class Background:
    """Something that may have to wait, in a thread of its own."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work, self._value, self._error = work, None, None
        self._done = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def result(self, seconds: float = SECONDS) -> Any:
        """What came of it; fails if it still waits after so long."""
        assert self._done.wait(seconds), f"still waits after {seconds} s"
        if self._error is not None:
            raise self._error
        return self._value

    def _run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error
        self._done.set()


def only_items_hold_chunks(service: Service) -> bool:
    """Whether every chunk is held once for each item that lies on it, and by nobody else."""
    holders = np.zeros(service.layout.num_chunks, np.int64)
    with service.standing_still() as live:
        for table in live.values():
            state = in_order(table.state())
            np.add.at(holders, service.chunks.spanned(state["windows/base"], state["windows/span"]), 1)
        free = int((holders == 0).sum())
        return bool((service.chunks.holders == holders).all()) and service.chunks.num_free == free


def waiting(service: Service, table: str, *words: str) -> str:
    """What is explained as soon as all these words are in it."""
    return str(eventually(lambda: text if all(w in (text := service.explain(table)) for w in words) else "", SECONDS))


def replay(
    name: str = "t", size: int = 8, sampler: Selection = UNIFORM, remover: Selection = FIFO,
    limiter: RateLimiter | None = None, **settings: Any,
) -> Table:
    settings = {"signature": NUMBER, **settings}
    return Table(name, sampler, remover, limiter or rate_limiters.min_size(1), size, **settings)


def add(writer: TrajectoryWriter, table: str, number: int, priority: float = 1.0) -> None:
    writer.append({"x": number})
    writer.create_item(table, priority, {"x": writer.history["x"][-1:]})


def put(
    client: Client, table: str, numbers: Sequence[int], priorities: Sequence[float] | None = None, together: int = 1,
    history: int = 1,
) -> None:
    """Items of one step each, which are in the table on return."""
    with client.writer(history=history, max_pending=together) as writer:
        for i, number in enumerate(numbers):
            add(writer, table, number, 1.0 if priorities is None else priorities[i])


def put_sequences(client: Client, table: str, count: int, length: int) -> None:
    """Items of `length` steps, each of which begins where the last one ends."""
    with client.writer(history=length) as writer:
        for i in range(count * length):
            writer.append({"x": i})
            if i % length == length - 1:
                writer.create_item(table, 1.0, {"x": writer.history["x"][-length:]})


def numbers(batch: Batch) -> list[int]:
    """The first step of every item."""
    return [int(x) for x in batch.data["x"][:, 0]]


def drawn(client: Client, table: str, count: int = 1, timeout: float = SECONDS) -> list[int]:
    return numbers(client.sample(table, count, timeout=timeout))


def present(client: Client, table: str) -> set[int]:
    """All items of a uniform table of few, as good as surely."""
    return set(drawn(client, table, 400))


def keys_of(client: Client, table: str) -> dict[int, int]:
    """Number → key, of a uniform table of few."""
    batch = client.sample(table, 400, timeout=SECONDS)
    return dict(zip(numbers(batch), batch.keys.tolist(), strict=True))


def chunks(client: Client, table: str = "t") -> int:
    return int(client.info(table)["chunks"])


def chunks_become(client: Client, count: int, table: str = "t") -> None:
    eventually(lambda: chunks(client, table) == count, SECONDS)


def step(i: int) -> dict[str, Any]:
    """A step of which every value is another."""
    return {"obs": np.array([i, i + 0.5], np.float32), "action": i, "reward": i / 4, "discount": 1.0 - (i % 5) / 8}
