"""A timeout is for everything that is waited for, together."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from pappus.replay import Client, Service, ShardedClient
from pappus.replay.clients.client import DirectSession
from pappus.replay.clients.session import Held
from pappus.replay.sampling.fields import Batch
from pappus.replay.service.service import Deadline
from tests.contracts.replay_tools import Background, drawn, put, replay, waiting

pytestmark = pytest.mark.timeout(60)


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr("pappus.replay.service.service.now", found)
    return found


class SlowLock:
    """Is had after three seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()

    def acquire(self, timeout: float) -> bool:
        self._clock.seconds += 3
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        self._lock.release()


class Asked(DirectSession):
    """Notes how long a sample may take."""

    seconds: list[float]

    def sample(self, *words: Any) -> Held | None:
        self.seconds.append(words[4])
        return super().sample(*words)


def test_what_is_left_of_a_deadline_ends_at_zero(clock: Clock) -> None:
    deadline, never = Deadline(5.0), Deadline(None)
    clock.seconds += 3
    assert deadline.left == 2 and deadline.waited == 3 and never.left is None
    clock.seconds += 3
    assert deadline.left == 0 and deadline.waited == 6 and never.left is None


def test_a_thread_that_samples_does_not_hold_up_another_beyond_its_timeout() -> None:
    service = Service([replay()])
    client = Client.of(service)
    first = Background(lambda: drawn(client, "t"))
    waiting(service, "t", "waits to sample")
    for timeout in (0.0, 0.01, -1.0):
        with pytest.raises(TimeoutError, match="another thread samples with this client"):
            client.sample("t", 1, timeout=timeout)
    put(client, "t", [4])
    assert first.result() == [4] and drawn(client, "t", timeout=float("inf")) == [4]


def test_the_wait_for_another_thread_counts(clock: Clock) -> None:
    service = Service([replay()])
    Asked.seconds = []
    client = Client(lambda: Asked(service))
    put(client, "t", [1])
    client._sampling_lock = SlowLock(clock)  # type: ignore[assignment]
    assert drawn(client, "t", timeout=5.0) == [1] and Asked.seconds == [2.0]


def test_the_wait_for_shards_counts(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard may take what weighing all of them, and the wait for a thread, have left of the time."""
    services = [Service([replay()]) for _ in range(2)]
    given: list[float | None] = []
    weigh, sample = Client.weigh, Client.sample

    def slow_weigh(self: Client, table: str) -> tuple[float, int]:
        clock.seconds += 2
        return weigh(self, table)

    def noted(self: Client, table: str, count: int, trajectory: Any, timeout: float | None) -> Batch:
        given.append(timeout)
        return sample(self, table, count, trajectory, timeout)

    monkeypatch.setattr(Client, "weigh", slow_weigh)
    monkeypatch.setattr(Client, "sample", noted)
    client = ShardedClient([lambda service=service: Client.of(service) for service in services], seed=0)
    for service in services:
        put(Client.of(service), "t", [1, 2])
    assert len(client.sample("t", 64, timeout=10.0).keys) == 64 and given == [6.0, 6.0]
    given.clear()
    client.sample("t", 64)
    assert given == [None, None]
