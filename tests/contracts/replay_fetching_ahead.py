"""A part of the contract of `replay_contract.py`: batches that are fetched before they are asked for."""

from __future__ import annotations

import contextlib
import itertools

import pytest

from pappus.errors import PappusError, UserError
from pappus.replay.sampling.fields import Trajectory, col
from pappus.replay.tables import table as tables
from tests.contracts.replay_tools import (
    NUMBER,
    SECONDS,
    STEP,
    Background,
    Way,
    chunks_become,
    numbers,
    put,
    replay,
    step,
    waiting,
)
from tests.process_tools import eventually


class FetchingAhead:
    """`Client.sampler`."""

    def test_fetching_ahead_keeps_the_order_of_a_queue(self, make: Way) -> None:
        client, service = make(tables.queue("t", 4, NUMBER))
        writing = Background(lambda: put(make.client(service), "t", range(24)))
        with client.sampler("t", 3, prefetch=1) as sampler:
            found = [numbers(batch) for batch in itertools.islice(sampler, 8)]
        writing.result()
        assert found == [[3 * i, 3 * i + 1, 3 * i + 2] for i in range(8)]

    def test_several_that_fetch_ahead_lose_nothing_and_give_nothing_twice(self, make: Way) -> None:
        client, service = make(tables.queue("t", 4, NUMBER))
        writing = Background(lambda: put(make.client(service), "t", range(24)))
        with client.sampler("t", 1, prefetch=3) as sampler:
            found = [number for batch in itertools.islice(sampler, 24) for number in numbers(batch)]
        writing.result()
        assert sorted(found) == list(range(24))

    def test_a_sampler_yields_shaped_batches_without_end(self, make: Way) -> None:
        client, _ = make(replay(size=4, signature=STEP))
        with client.writer() as writer:
            writer.append(step(4))
            writer.create_item("t", 1.0, {name: writer.history[name][:] for name in STEP})
        with client.sampler("t", 5, Trajectory(a=col("action")[0]), prefetch=2) as sampler:
            for batch in itertools.islice(sampler, 30):
                assert batch.data["a"].tolist() == [4] * 5 and list(batch.data) == ["a"]

    def test_a_batch_is_fetched_before_it_is_asked_for(self, make: Way) -> None:
        client, _ = make(tables.queue("t", 8, NUMBER))
        put(client, "t", range(4))
        with client.sampler("t", 1, prefetch=2) as sampler:
            eventually(lambda: client.info("t")["samples"] >= 2, SECONDS)
            assert numbers(next(sampler))[0] in (0, 1)

    def test_closing_ends_those_that_wait_and_those_that_have_fetched(self, make: Way) -> None:
        client, service = make([tables.queue("empty", 4, NUMBER), replay("full")])
        put(client, "full", range(8))
        waits, ready = client.sampler("empty", 1, prefetch=3), client.sampler("full", 1, prefetch=3)
        waiting(service, "empty", "waits to sample")
        next(ready)
        for sampler in (waits, ready):
            Background(sampler.close).result()
        client.reset("full")
        chunks_become(client, 0, "full")
        eventually(lambda: "waits to" not in service.explain("empty"), SECONDS)
        eventually(lambda: not any(t.is_alive() for s in (waits, ready) for t in s._threads), SECONDS)

    def test_a_closed_sampler_ends_its_iteration(self, make: Way) -> None:
        client, _ = make(replay())
        put(client, "t", [0])
        sampler = client.sampler("t", 1)
        next(sampler)
        sampler.close()
        asking = Background(lambda: list(itertools.islice(sampler, 4)))
        with contextlib.suppress(PappusError):
            assert len(asking.result(2.0)) < 4, "a closed one has no batches without end"

    def test_closing_wakes_a_waiting_sampler(self, make: Way) -> None:
        client, service = make(replay())
        sampler = client.sampler("t", 1)
        asking = Background(lambda: list(itertools.islice(sampler, 1)))
        waiting(service, "t", "waits to sample")
        sampler.close()
        with contextlib.suppress(PappusError):
            assert asking.result(2.0) == []

    def test_an_error_is_raised_where_the_batch_is_asked_for(self, make: Way) -> None:
        client, _ = make(replay(lead=1))
        put(client, "t", [0])
        with client.sampler("t", 1, Trajectory(x=col("x").stack(3))) as sampler, \
                pytest.raises(UserError, match="make the table with lead=2"):
            Background(lambda: next(sampler)).result()

    def test_fetching_nothing_ahead_is_refused(self, make: Way) -> None:
        client, _ = make(replay())
        with pytest.raises(UserError, match="prefetch=0 must be at least 1"):
            client.sampler("t", 1, prefetch=0)
