"""What a replay service must do, whichever way it is reached.

Subclasses of `ReplayContract` provide the fixture `make`, a `Way`: `client, service = make(tables, **service_options)`.
`make.client(service)` and `make.access(service)` are further sessions with it, which the fixture closes. When a test is
over and all sessions are closed, only items may hold chunks, each as often as it lies on them.

The scenarios are in groups: what is drawn and dropped, who waits, what is known of items, where steps are, what writers
refuse, what fields compute, fetching ahead, and checkpoints.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pappus.replay.client
from pappus.errors import PappusError, RunError, UserError
from pappus.replay import rate_limiters, tables
from pappus.replay.access import Access
from pappus.replay.checkpoint import load, save
from pappus.replay.client import Batch, Client
from pappus.replay.fields import Field, Trajectory, col, concatenate
from pappus.replay.rate_limiters import RateLimiter
from pappus.replay.service import Service
from pappus.replay.tables import FIFO, LIFO, MAX_HEAP, MIN_HEAP, UNIFORM, Selection, Table, prioritized
from pappus.replay.trajectory_writer import TrajectoryWriter
from pappus.types import Array, ArraySpec
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
        self._accesses: list[Access] = []
        self._services: list[Service] = []

    def __call__(self, specs: Sequence[Table] | Table, **options: Any) -> tuple[Client, Service]:
        service = self.serve([specs] if isinstance(specs, Table) else specs, **options)
        self._services.append(service)
        return self.client(service), service

    def client(self, service: Service, name: str = "") -> Client:
        return Client(lambda: self.access(service, name))

    def access(self, service: Service, name: str = "") -> Access:
        self._accesses.append(self.connect(service, name))
        return self._accesses[-1]

    def serve(self, specs: Sequence[Table], **options: Any) -> Service:
        raise NotImplementedError

    def connect(self, service: Service, name: str) -> Access:
        raise NotImplementedError

    def shut(self) -> None:
        """End what serves, if anything does."""

    def close(self) -> None:
        for access in reversed(self._accesses):
            access.close()
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
            windows = table.state().in_order().windows
            np.add.at(holders, service.chunks.spanned(windows.base, windows.span), 1)
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


class DrawingAndDropping:
    """Which item a selector names, as sampler and as remover."""

    @pytest.mark.parametrize(
        ("order", "expected"), [(FIFO, 10), (LIFO, 13), (MIN_HEAP, 12), (MAX_HEAP, 11)], ids=lambda o: str(o)
    )
    def test_a_selector_with_an_order_draws_the_same_item_again_and_again(
        self, make: Way, order: Selection, expected: int
    ) -> None:
        client, _ = make(replay(sampler=order))
        put(client, "t", [10, 11, 12, 13], [3.0, 9.0, 1.0, 2.0])
        batch = client.sample("t", 3)
        assert numbers(batch) == [expected] * 3 and batch.info.probabilities.tolist() == [1.0] * 3

    @pytest.mark.parametrize(
        ("order", "expected"),
        [(FIFO, [0, 1, 2, 3]), (LIFO, [3, 2, 1, 0]), (MIN_HEAP, [2, 3, 0, 1]), (MAX_HEAP, [1, 0, 3, 2])],
        ids=lambda o: o.order if isinstance(o, Selection) else "",
    )
    @pytest.mark.parametrize("count", [1, 4])
    def test_items_that_go_when_sampled_come_in_order_one_by_one_and_in_batches(
        self, make: Way, order: Selection, expected: list[int], count: int
    ) -> None:
        client, _ = make(replay(sampler=order, max_times_sampled=1))
        put(client, "t", range(4), [3.0, 9.0, 1.0, 2.0])
        assert list(itertools.chain(*(drawn(client, "t", count) for _ in range(4 // count)))) == expected

    @pytest.mark.parametrize(("order", "expected"), [(MIN_HEAP, [1, 2, 0]), (MAX_HEAP, [0, 2, 1])])
    def test_a_heap_follows_updates(self, make: Way, order: Selection, expected: list[int]) -> None:
        client, _ = make(replay(sampler=order, max_times_sampled=1))
        put(client, "t", range(3), [1.0, 2.0, 3.0])
        client.update_priorities("t", np.array([0, 1, 2]), np.array([9.0, -5.0, 3.0]))
        assert [drawn(client, "t")[0] for _ in range(3)] == expected

    @pytest.mark.parametrize("order", [MIN_HEAP, MAX_HEAP], ids=lambda o: o.order)
    def test_of_equal_priorities_a_heap_takes_the_oldest(self, make: Way, order: Selection) -> None:
        client, _ = make(replay(sampler=order, max_times_sampled=1))
        put(client, "t", [5, 6, 7], [2.0, 2.0, 2.0])
        assert [drawn(client, "t")[0] for _ in range(3)] == [5, 6, 7]

    def test_a_uniform_sampler_draws_all_alike_whatever_their_priorities(self, make: Way) -> None:
        client, _ = make(replay(sampler=UNIFORM))
        put(client, "t", range(4), [1.0, 0.0, 50.0, 7.0])
        batch = client.sample("t", 8000)
        counts = np.bincount(numbers(batch), minlength=4)
        assert (batch.info.probabilities == 0.25).all()
        assert ((counts - 2000) ** 2 / 2000).sum() < 16.27, "0.999 of a chi-square with 3 degrees of freedom lie below"

    def test_a_prioritized_sampler_draws_in_proportion_to_powers_and_says_so(self, make: Way) -> None:
        client, _ = make(replay(sampler=prioritized(0.5)))
        put(client, "t", range(3), [1.0, 4.0, 9.0])
        batch = client.sample("t", 6000)
        shares = np.array([1.0, 2.0, 3.0]) / 6
        assert np.allclose(batch.info.probabilities, shares[numbers(batch)])
        counts = np.bincount(numbers(batch), minlength=3)
        assert ((counts - 6000 * shares) ** 2 / (6000 * shares)).sum() < 13.82, "0.999, 2 degrees of freedom"

    def test_an_item_of_priority_zero_is_never_drawn(self, make: Way) -> None:
        client, _ = make([replay("flat", sampler=prioritized(0.0)), replay("steep", sampler=prioritized(1.0))])
        for table in ("flat", "steep"):
            put(client, table, range(4), [0.0, 1.0, 0.0, 1e-9])
            assert set(drawn(client, table, 2000)) <= {1, 3}
        assert set(drawn(client, "flat", 100)) == {1, 3}

    def test_an_update_to_zero_hides_an_item_until_it_is_raised_again(self, make: Way) -> None:
        client, _ = make(replay(sampler=prioritized(1.0)))
        put(client, "t", [5, 6])
        keys = keys_of(client, "t")
        client.update_priorities("t", np.array([keys[5]]), np.array([0.0]))
        assert present(client, "t") == {6} and client.info("t")["size"] == 2
        client.update_priorities("t", np.array([keys[5]]), np.array([3.0]))
        assert present(client, "t") == {5, 6}

    def test_of_a_table_of_zero_priorities_nothing_comes_but_a_sentence(self, make: Way) -> None:
        client, _ = make(replay(sampler=prioritized(1.0)))
        put(client, "t", [5, 6], [0.0, 0.0])
        with pytest.raises((UserError, TimeoutError), match="priorit"):
            client.sample("t", 1, timeout=0.05)

    def test_items_that_go_when_sampled_are_drawn_by_priority_until_only_zeros_are_left(self, make: Way) -> None:
        client, _ = make(replay(sampler=prioritized(1.0), max_times_sampled=1))
        put(client, "t", range(4), [0.0, 1.0, 2.0, 0.0])
        assert sorted(drawn(client, "t", 4, timeout=0.05)) == [1, 2], "a batch of what there is"
        assert client.info("t")["size"] == 2

    @pytest.mark.parametrize(
        ("remover", "left"),
        [(FIFO, {2, 3, 4}), (LIFO, {0, 1, 4}), (MIN_HEAP, {0, 1, 4}), (MAX_HEAP, {2, 3, 4})],
        ids=lambda o: o.order if isinstance(o, Selection) else "",
    )
    def test_a_full_table_drops_what_its_remover_names(self, make: Way, remover: Selection, left: set[int]) -> None:
        """Of priorities 8 9 1, then 2 and then 3: the lowest are 1 and 2, the highest 9 and 8."""
        client, _ = make(replay(size=3, remover=remover))
        put(client, "t", range(5), [8.0, 9.0, 1.0, 2.0, 3.0])
        assert present(client, "t") == left and client.info("t")["deletes"] == 2

    def test_a_uniform_remover_drops_any(self, make: Way) -> None:
        client, _ = make(replay(size=3, remover=UNIFORM))
        gone: set[int] = set()
        for turn in range(12):
            client.reset("t")
            put(client, "t", range(4), together=1 + turn % 2)
            here = present(client, "t")
            assert len(here) == 3 and 3 in here, "the one that comes is not the one that goes"
            gone |= set(range(4)) - here
        assert gone == {0, 1, 2}

    def test_a_prioritized_remover_drops_what_weighs_most_and_spares_zeros(self, make: Way) -> None:
        client, _ = make(replay(size=3, remover=prioritized(1.0)))
        put(client, "t", range(3), [0.0, 5.0, 0.0])
        put(client, "t", [3], [4.0])
        put(client, "t", [4], [0.0])
        assert present(client, "t") == {0, 2, 4}

    def test_a_prioritized_remover_among_zeros_still_makes_room(self, make: Way) -> None:
        client, _ = make(replay(size=2, remover=prioritized(1.0)))
        put(client, "t", [0, 1], [0.0, 0.0])
        put(client, "t", [2], [1.0])
        assert client.info("t")["size"] == 2 and 2 in present(client, "t")

    @pytest.mark.parametrize("remover", REMOVERS, ids=lambda o: o.order)
    def test_items_that_come_together_leave_the_table_as_if_they_came_one_by_one(
        self, make: Way, remover: Selection
    ) -> None:
        client, _ = make([replay("single", 3, remover=remover), replay("together", 3, remover=remover)])
        for table, together in (("single", 1), ("together", 2)):
            put(client, table, [5, 6, 7], [5.0, 6.0, 7.0])
            put(client, table, [1, 2], [1.0, 2.0], together=together)
        assert present(client, "single") == present(client, "together")

    @pytest.mark.parametrize("remover", [MIN_HEAP, MAX_HEAP, LIFO], ids=lambda o: o.order)
    def test_several_that_go_at_once_are_those_that_the_remover_names(self, make: Way, remover: Selection) -> None:
        client, _ = make(replay(size=4, remover=remover))
        put(client, "t", range(4), [1.0, 2.0, 3.0, 4.0])
        put(client, "t", [8, 9], [2.5, 2.5], together=2)
        gone = set(range(4)) - present(client, "t")
        assert gone <= ({0, 1} if remover is MIN_HEAP else {2, 3}), "neither of the two at the other end"

    def test_more_items_at_once_than_a_table_holds_leave_the_last_ones(self, make: Way) -> None:
        client, _ = make(replay(size=3), max_steps=64)
        put(client, "t", range(10), together=10, history=10)
        assert present(client, "t") == {7, 8, 9}
        assert client.info("t")["inserts"] == 10 and client.info("t")["deletes"] == 7

    def test_sampler_and_remover_go_their_own_ways(self, make: Way) -> None:
        client, _ = make(replay(size=3, sampler=MAX_HEAP, remover=FIFO))
        put(client, "t", range(3), [9.0, 5.0, 6.0])
        assert drawn(client, "t") == [0]
        put(client, "t", [3], [1.0])
        assert drawn(client, "t") == [2], "the best was the oldest, and went"

    def test_the_same_seed_draws_the_same_items(self, make: Way) -> None:
        found = []
        for seed in (3, 3, 4):
            client, _ = make([replay("a", sampler=prioritized(1.0)), replay("b")], seed=seed)
            for table in ("a", "b"):
                put(client, table, range(8), np.arange(1.0, 9.0).tolist())
            found.append([drawn(client, table, 64) for table in ("a", "b")])
        assert found[0] == found[1] != found[2]


class Waiting:
    """Who waits for what, and what ends it."""

    def test_samples_wait_until_the_table_holds_min_size(self, make: Way) -> None:
        client, service = make(replay(limiter=rate_limiters.min_size(3)))
        put(client, "t", [0, 1])
        sampling = Background(lambda: drawn(make.client(service), "t"))
        waiting(service, "t", "waits to sample", "samples wait for 1 more items: 2 of at least 3 are here")
        assert not sampling.done
        put(client, "t", [2])
        assert sampling.result()[0] in (0, 1, 2)

    def test_a_table_that_shrinks_below_min_size_closes_again(self, make: Way) -> None:
        client, _ = make(replay(limiter=rate_limiters.min_size(2)))
        put(client, "t", [0, 1])
        keys = keys_of(client, "t")
        client.delete("t", np.array([keys[0]]))
        with pytest.raises(TimeoutError):
            client.sample("t", 1, timeout=0)
        put(client, "t", [2])
        assert present(client, "t") == {1, 2}

    def test_where_only_samples_wait_inserts_go_on_for_ever(self, make: Way) -> None:
        client, _ = make(replay(size=4, limiter=rate_limiters.min_size(4)))
        put(client, "t", range(300), together=7, history=16)
        assert client.info("t")["inserts"] == 300 and present(client, "t") == {296, 297, 298, 299}

    def test_the_ratio_holds_inserts_back_at_the_upper_end_of_its_band(self, make: Way) -> None:
        client, service = make(replay(limiter=rate_limiters.sample_to_insert_ratio(2.0, 2, 4.0)))
        inserting = Background(lambda: put(client, "t", range(6)))
        text = waiting(service, "t", "waits to insert")
        assert "inserts wait for 2 more samples: 4 inserts with 0 samples" in text and "balance 8, at most 6" in text
        assert service.info("t")["inserts"] == 4 and not inserting.done
        make.client(service).sample("t", 2)
        eventually(lambda: service.info("t")["inserts"] == 5, SECONDS)
        waiting(service, "t", "waits to insert")
        make.client(service).sample("t", 2)
        inserting.result()
        assert service.info("t")["inserts"] == 6 and service.info("t")["samples"] == 4

    def test_the_ratio_holds_samples_back_at_the_lower_end_of_its_band(self, make: Way) -> None:
        client, service = make(replay(limiter=rate_limiters.sample_to_insert_ratio(2.0, 2, 4.0)))
        put(client, "t", [0, 1])
        assert len(drawn(client, "t", 4)) == 4
        sampling = Background(lambda: drawn(make.client(service), "t"))
        text = waiting(service, "t", "waits to sample")
        assert "samples wait for 1 more inserts: 4 samples of 2 inserts" in text and "at least 1 is needed" in text
        put(client, "t", [2])
        assert len(sampling.result()) == 1 and service.info("t")["samples"] == 5

    def test_less_than_one_sample_per_insert_is_kept_too(self, make: Way) -> None:
        client, service = make(replay(size=32, limiter=rate_limiters.sample_to_insert_ratio(0.25, 4, 1.0)))
        put(client, "t", range(8))
        inserting = Background(lambda: put(client, "t", range(1)))
        waiting(service, "t", "waits to insert", "inserts wait for 1 more samples")
        client.sample("t", 1)
        inserting.result()
        with pytest.raises(TimeoutError):
            drawn(client, "t", 3, timeout=0), drawn(client, "t", 3, timeout=0)
        assert service.info("t")["samples"] == 2, "9 inserts and a band down to 0 allow 2"

    def test_a_batch_larger_than_the_band_is_drawn_as_inserts_come(self, make: Way) -> None:
        client, service = make(replay(size=64, limiter=rate_limiters.sample_to_insert_ratio(1.0, 1, 1.0)))
        sampling = Background(lambda: drawn(make.client(service), "t", 10))
        put(client, "t", range(12))
        assert len(sampling.result()) == 10 and service.info("t")["samples"] == 10

    def test_a_queue_takes_as_many_as_it_holds_and_gives_each_once_in_order(self, make: Way) -> None:
        client, service = make(tables.queue("t", 3, NUMBER))
        inserting = Background(lambda: put(client, "t", range(7)))
        waiting(service, "t", "waits to insert", "inserts wait for 1 more samples")
        assert service.info("t")["size"] == 3 and not inserting.done
        consumer = make.client(service)
        assert [drawn(consumer, "t")[0] for _ in range(7)] == list(range(7))
        inserting.result()
        assert client.info("t")["size"] == 0

    def test_an_empty_queue_keeps_its_consumer_waiting(self, make: Way) -> None:
        client, service = make(tables.queue("t", 3, NUMBER))
        sampling = Background(lambda: drawn(make.client(service), "t", 2))
        waiting(service, "t", "waits to sample")
        put(client, "t", [7])
        assert not sampling.done
        put(client, "t", [8])
        assert sampling.result() == [7, 8]

    def test_a_stack_gives_each_once_the_newest_first_and_holds_inserts_back(self, make: Way) -> None:
        client, service = make(tables.stack("t", 3, NUMBER))
        inserting = Background(lambda: put(client, "t", range(4)))
        waiting(service, "t", "waits to insert")
        consumer = make.client(service)
        assert drawn(consumer, "t") == [2]
        inserting.result()
        assert [drawn(consumer, "t")[0] for _ in range(3)] == [3, 1, 0]
        with pytest.raises(TimeoutError):
            drawn(consumer, "t", timeout=0)

    def test_every_item_of_a_queue_goes_to_one_of_its_consumers(self, make: Way) -> None:
        _client, service = make(tables.queue("t", 4, NUMBER))
        consumers = [Background(lambda: [drawn(own, "t", 2) for own in [make.client(service)] for _ in range(10)])
                     for _ in range(3)]
        producers = [Background(lambda n=n: put(make.client(service), "t", range(30 * n, 30 * n + 30)))
                     for n in range(2)]
        found = [number for consumer in consumers for batch in consumer.result() for number in batch]
        for producer in producers:
            producer.result()
        assert sorted(found) == list(range(60))

    def test_producers_and_consumers_that_race_stay_within_the_band(self, make: Way) -> None:
        limiter = rate_limiters.sample_to_insert_ratio(2.0, 4, 4.0)
        client, service = make(replay(size=16, limiter=limiter))
        producers = [Background(lambda: put(make.client(service), "t", range(24))) for _ in range(2)]
        consumers = [Background(lambda: [len(drawn(own, "t", 4)) for own in [make.client(service)] for _ in range(11)])
                     for _ in range(2)]
        for worker in (*producers, *consumers):
            worker.result()
        info = client.info("t")
        assert (info["inserts"], info["samples"]) == (48, 88) and info["size"] == 16

    def test_time_that_runs_out_is_explained(self, make: Way) -> None:
        client, _ = make([replay("few", limiter=rate_limiters.min_size(3)), replay("other")])
        put(client, "few", [0])
        with pytest.raises(TimeoutError) as raised:
            client.sample("few", 1, timeout=0.05)
        text = str(raised.value)
        assert "nothing could be sampled in 0.05 s" in text and "'few'" in text
        assert "samples wait for 2 more items: 1 of at least 3 are here" in text and "other" not in text

    def test_when_time_runs_out_a_batch_holds_what_there_is(self, make: Way) -> None:
        client, _ = make([
            tables.queue("queue", 8, NUMBER),
            replay("ratio", limiter=rate_limiters.sample_to_insert_ratio(1.0, 2, 2.0)),
        ])
        put(client, "queue", [1, 2, 3])
        assert drawn(client, "queue", 5, timeout=0.05) == [1, 2, 3]
        with pytest.raises(TimeoutError):
            drawn(client, "queue", 5, timeout=0)
        put(client, "ratio", [4, 5])
        assert len(drawn(client, "ratio", 5, timeout=0)) == 2 and client.info("ratio")["samples"] == 2

    def test_time_that_runs_out_with_nothing_takes_nothing(self, make: Way) -> None:
        client, _ = make(replay(limiter=rate_limiters.min_size(2), max_times_sampled=1))
        put(client, "t", [0])
        with pytest.raises(TimeoutError):
            client.sample("t", 1, timeout=0)
        put(client, "t", [1])
        batch = client.sample("t", 1)
        assert batch.info.times_sampled.tolist() == [1] and client.info("t")["samples"] == 1

    def test_whoever_waits_without_a_limit_is_told_why_every_now_and_then(
        self, make: Way, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(pappus.replay.client, "PATIENCE_SECONDS", 0.02)
        client, service = make(replay())
        with caplog.at_level(logging.WARNING, "pappus.replay"):
            sampling = Background(lambda: numbers(make.client(service).sample("t", 1)))
            eventually(lambda: len(caplog.messages) >= 2, SECONDS)
            put(client, "t", [4])
            assert sampling.result() == [4]
        assert "samples wait for 1 more items" in caplog.messages[0]

    def test_a_batch_that_was_begun_is_never_given_up_without_a_limit(
        self, make: Way, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pappus.replay.client, "PATIENCE_SECONDS", 0.02)
        client, service = make(tables.queue("t", 2, NUMBER))
        put(client, "t", [1, 2])
        sampling = Background(lambda: numbers(make.client(service).sample("t", 4)))
        eventually(lambda: service.info("t")["size"] == 0, SECONDS)
        put(client, "t", [3])
        put(client, "t", [4])
        assert sampling.result() == [1, 2, 3, 4]

    def test_consumers_of_a_queue_do_not_wait_for_each_other_s_halves(self, make: Way) -> None:
        client, service = make(tables.queue("t", 2, NUMBER))
        consumers = [Background(lambda: numbers(make.client(service).sample("t", 2))) for _ in range(2)]
        for i in range(4):
            put(client, "t", [i])
        assert sorted(consumer.result() for consumer in consumers) == [[0, 1], [2, 3]]

    def test_somebody_else_s_wait_can_be_explained_and_ended_by_the_same_client(self, make: Way) -> None:
        client, service = make(replay(limiter=rate_limiters.min_size(5)))
        put(client, "t", [3])
        sampling = Background(lambda: drawn(client, "t"))
        waiting(service, "t", "waits to sample")
        assert "samples wait for 4 more items" in client.explain("t")
        client.move_bounds("t", min_size=1)
        assert sampling.result() == [3]

    def test_a_stack_that_a_table_cannot_show_takes_no_item(self, make: Way) -> None:
        client, _ = make(tables.queue("t", 2, NUMBER, lead=1))
        put(client, "t", [3])
        with pytest.raises(UserError, match="lead=1"):
            client.sample("t", 1, Trajectory(x=col("x").stack(3)))
        assert client.info("t")["size"] == 1

    def test_moving_min_size_wakes_whoever_waits_to_sample(self, make: Way) -> None:
        client, service = make(replay(limiter=rate_limiters.min_size(5)))
        put(client, "t", [3])
        sampling = Background(lambda: drawn(make.client(service), "t"))
        waiting(service, "t", "waits to sample")
        client.move_bounds("t", min_size=1)
        assert sampling.result() == [3]

    def test_moving_the_upper_bound_wakes_whoever_waits_to_insert(self, make: Way) -> None:
        client, service = make(replay(limiter=rate_limiters.queue(1)))
        inserting = Background(lambda: put(make.client(service), "t", range(4)))
        waiting(service, "t", "waits to insert")
        client.move_bounds("t", most=3.0)
        eventually(lambda: client.info("t")["inserts"] == 3, SECONDS)
        client.move_bounds("t", most=4.0)
        inserting.result()

    def test_moving_the_lower_bound_wakes_whoever_waits_to_sample(self, make: Way) -> None:
        client, service = make(replay(limiter=rate_limiters.queue(4)))
        put(client, "t", [6])
        assert drawn(client, "t") == [6]
        sampling = Background(lambda: drawn(make.client(service), "t", 2))
        waiting(service, "t", "waits to sample", "samples wait for 1 more inserts")
        client.move_bounds("t", least=-2.0)
        assert sampling.result() == [6, 6]

    @pytest.mark.parametrize(
        "wrong",
        [{"min_size": 0}, {"min_size": 9}, {"least": 5.0}, {"most": -1.0}, {"least": float("nan")},
         {"least": 1.5, "most": 2.0}],
        ids=str,
    )
    def test_a_move_that_would_close_a_table_for_good_changes_nothing(self, make: Way, wrong: dict[str, Any]) -> None:
        client, _ = make(replay(size=8, limiter=rate_limiters.queue(2)))
        with pytest.raises(UserError):
            client.move_bounds("t", **wrong)
        put(client, "t", [1, 2])
        assert len(drawn(client, "t", 2)) == 2

    def test_a_reset_wakes_whoever_waits_to_insert(self, make: Way) -> None:
        client, service = make(tables.queue("t", 2, NUMBER))
        put(client, "t", [0, 1])
        inserting = Background(lambda: put(make.client(service), "t", [2]))
        waiting(service, "t", "waits to insert")
        client.reset("t")
        inserting.result()
        assert drawn(client, "t") == [2]

    def test_a_table_that_is_emptied_by_deletes_takes_items_again(self, make: Way) -> None:
        client, service = make(tables.queue("t", 1, NUMBER))
        put(client, "t", [0])
        inserting = Background(lambda: put(make.client(service), "t", [1]))
        waiting(service, "t", "waits to insert")
        assert client.delete("t", np.array([0])) == 1
        inserting.result()
        assert drawn(client, "t") == [1]

    def test_closing_a_client_ends_its_wait(self, make: Way) -> None:
        _, service = make(replay())
        impatient = make.client(service)
        sampling = Background(lambda: impatient.sample("t", 1))
        waiting(service, "t", "waits to sample")
        impatient.close()
        with pytest.raises(PappusError):
            sampling.result()
        eventually(lambda: "waits to" not in service.explain("t"), SECONDS)

    def test_closing_a_writer_elsewhere_ends_its_wait_for_room(self, make: Way) -> None:
        client, service = make(tables.queue("t", 1, NUMBER))
        put(client, "t", [0])
        access = make.access(service)
        writer = TrajectoryWriter(access, None, 4, 1)
        inserting = Background(lambda: (add(writer, "t", 1), writer.flush()))
        waiting(service, "t", "waits to insert")
        access.close()
        with pytest.raises(PappusError):
            inserting.result()
        chunks_become(client, 1)
        assert client.info("t")["size"] == 1

    def test_an_open_table_says_so(self, make: Way) -> None:
        client, _ = make(replay())
        put(client, "t", [0, 1])
        assert client.explain("t") == "table 't': open: 2 items, balance 2"

    def test_explanations_name_all_who_wait_and_no_others(self, make: Way) -> None:
        client, service = make([
            replay("one", limiter=rate_limiters.min_size(2)), tables.queue("two", 1, NUMBER), replay("three")
        ])
        put(client, "two", [0])
        sampling = [Background(lambda name=name: drawn(make.client(service, name), "one")) for name in ("ann", "bob")]
        inserting = Background(lambda: put(make.client(service, "eve"), "two", [1]))
        text = waiting(service, "one", "ann waits to sample", "bob waits to sample")
        assert "eve" not in text and text.startswith("table 'one': samples wait for 2 more items")
        text = waiting(service, "two", "eve waits to insert")
        assert "ann" not in text and "inserts wait for 1 more samples" in text
        assert "waits to" not in client.explain("three")
        assert client.explain("one").count("waits to sample") == 2, "the same, asked from elsewhere"
        put(client, "one", [0, 1])
        drawn(client, "two")
        for worker in (*sampling, inserting):
            worker.result()
        assert not any("waits to" in client.explain(name) for name in ("one", "two", "three"))

    @pytest.mark.parametrize(
        ("limiter", "sentence"),
        [
            (lambda: RateLimiter(1.0, 10, 9.5, 10.5), "never open"),
            (lambda: RateLimiter(1.0, 1, 5.0, 5.5), "never open"),
            (lambda: RateLimiter(3.0, 2, 7.0, 8.5), "never open"),
            (lambda: RateLimiter(1.0, 1, 2.0, 1.0), "hold nothing"),
            (lambda: RateLimiter(1.0, 0, 0.0, 1.0), "min_size=0"),
            (lambda: RateLimiter(0.0, 1, 0.0, 1.0), "samples_per_insert=0"),
            (lambda: rate_limiters.sample_to_insert_ratio(4.0, 10, 2.0), "use at least 4"),
            (lambda: rate_limiters.sample_to_insert_ratio(0.1, 10, 0.5), "use at least 1"),
            (lambda: rate_limiters.min_size(9), "never opens: it holds max_size=8 items, and samples wait for 9"),
        ],
    )
    def test_what_can_never_open_is_refused_where_it_is_made(
        self, make: Way, limiter: Callable[[], RateLimiter], sentence: str
    ) -> None:
        with pytest.raises(UserError, match=sentence):
            make(replay(size=8, limiter=limiter()))


class Items:
    """What is known of items, and what changes them."""

    @pytest.mark.parametrize("times", [1, 3])
    def test_an_item_goes_when_it_was_sampled_so_often(self, make: Way, times: int) -> None:
        client, _ = make(replay(max_times_sampled=times))
        put(client, "t", range(4))
        found = [drawn(client, "t")[0] for _ in range(4 * times)]
        assert Counter(found) == dict.fromkeys(range(4), times)
        assert client.info("t")["size"] == 0 and client.info("t")["deletes"] == 4
        chunks_become(client, 0)

    @pytest.mark.parametrize("times", [1, 3])
    def test_one_batch_draws_no_item_more_often_than_that(self, make: Way, times: int) -> None:
        client, _ = make(replay(sampler=FIFO, max_times_sampled=times))
        put(client, "t", range(4))
        batch = client.sample("t", 4 * times + 5, timeout=0)
        assert numbers(batch) == [number for number in range(4) for _ in range(times)]
        assert batch.info.times_sampled.tolist() == list(range(1, times + 1)) * 4

    def test_a_batch_says_what_was_drawn(self, make: Way) -> None:
        client, _ = make(replay(size=4, sampler=prioritized(1.0)))
        put(client, "t", range(6), [9.0, 9.0, 1.0, 2.0, 3.0, 4.0])
        batch = client.sample("t", 200)
        found = np.array(numbers(batch))
        priority = np.array([9.0, 9.0, 1.0, 2.0, 3.0, 4.0])[found]
        assert (batch.info.priorities == priority).all() and np.allclose(batch.info.probabilities, priority / 10)
        assert batch.info.table_size == 4 and batch.info.mass == 10.0 and client.weigh("t") == (10.0, 4)
        assert len(set(zip(found.tolist(), batch.keys.tolist(), strict=True))) == 4

    def test_the_age_of_an_item_is_how_many_came_after_it(self, make: Way) -> None:
        client, _ = make(replay(size=4))
        put(client, "t", range(6))
        batch = client.sample("t", 50)
        assert (batch.info.ages == 5 - np.array(numbers(batch))).all()

    def test_times_sampled_counts_this_time_too(self, make: Way) -> None:
        client, _ = make(replay(sampler=FIFO))
        put(client, "t", [0])
        assert [int(client.sample("t", 1).info.times_sampled[0]) for _ in range(3)] == [1, 2, 3]

    def test_info_counts_items_inserts_samples_deletes_and_steps(self, make: Way) -> None:
        client, service = make(replay(size=4), max_steps=16, chunk_length=4)
        put(client, "t", range(6))
        client.sample("t", 5)
        client.delete("t", np.array(list(keys_of(client, "t").values())[:1]))
        chunks_become(client, 2)
        info = client.info("t")
        assert info.items() >= {
            "size": 3, "max_size": 4, "inserts": 6, "samples": 405, "deletes": 3, "mass": 3.0, "steps": 8,
            "max_steps": service.layout.rows, "chunks": 2,
        }.items()

    def test_importance_weights_are_those_of_the_paper(self, make: Way) -> None:
        client, _ = make(replay(sampler=prioritized(1.0)))
        put(client, "t", range(3), [1.0, 2.0, 5.0])
        batch = client.sample("t", 100)
        literal = [(3 * p / 8) ** -0.4 for p in batch.info.priorities.tolist()]
        assert np.allclose(batch.weights(0.4), np.array(literal) / max(literal)) and batch.weights(0.4).max() == 1.0
        assert (batch.weights(0.0) == 1.0).all() and batch.weights(0.4).dtype == np.float32

    def test_keys_never_repeat(self, make: Way) -> None:
        client, _ = make(replay(size=3, sampler=FIFO, max_times_sampled=1))
        seen: list[int] = []
        for turn in range(12):
            put(client, "t", range(5))
            batch = client.sample("t", 1 + turn % 3)
            seen += batch.keys.tolist()
            if turn == 5:
                client.reset("t")
        assert len(set(seen)) == len(seen)

    def test_updates_pass_over_keys_that_are_gone_or_never_were(self, make: Way) -> None:
        client, _ = make(replay(size=2, sampler=prioritized(1.0)))
        put(client, "t", range(3))
        keys = keys_of(client, "t")
        strange = [keys[1], 0, -1, -(2**62), 2**62, keys[2]]
        assert client.update_priorities("t", np.array(strange), np.arange(1.0, 7.0)) == 2
        batch = client.sample("t", 50)
        assert set(zip(numbers(batch), batch.info.priorities.tolist(), strict=True)) == {(1, 1.0), (2, 6.0)}

    def test_of_a_key_that_comes_twice_in_an_update_the_last_one_counts(self, make: Way) -> None:
        client, _ = make([replay("sums", sampler=prioritized(1.0)), replay("heap", sampler=MAX_HEAP)])
        for table in ("sums", "heap"):
            put(client, table, [0, 1])
            client.update_priorities(table, np.array([0, 1, 0]), np.array([50.0, 3.0, 1.0]))
        batch = client.sample("sums", 50)
        assert set(zip(numbers(batch), batch.info.probabilities.tolist(), strict=True)) == {(0, 0.25), (1, 0.75)}
        assert drawn(client, "heap") == [1]

    def test_an_item_named_twice_is_one_item_that_was_still_there(self, make: Way) -> None:
        client, _ = make(replay(sampler=prioritized(1.0)))
        put(client, "t", [0, 1])
        assert client.update_priorities("t", np.array([0, 0, 1]), np.ones(3)) == 2
        assert client.delete("t", np.array([0, 0, 1])) == 2

    @pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, -1.0])
    def test_an_update_with_what_is_no_priority_changes_nothing(self, make: Way, wrong: float) -> None:
        client, _ = make(replay(sampler=prioritized(1.0)))
        put(client, "t", [0, 1])
        with pytest.raises(UserError, match=r"priority=.*'t'"):
            client.update_priorities("t", np.array([0, 1]), np.array([5.0, wrong]))
        assert set(client.sample("t", 50).info.priorities.tolist()) == {1.0}

    @pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0])
    def test_an_item_with_what_is_no_priority_is_refused(self, make: Way, wrong: float) -> None:
        client, _ = make(replay(sampler=prioritized(1.0)))
        with pytest.raises(UserError, match="priority="):
            put(client, "t", [0], [wrong])
        put(client, "t", [1])
        assert present(client, "t") == {1}

    def test_a_heap_takes_negative_priorities_but_none_that_are_not_numbers(self, make: Way) -> None:
        client, _ = make(replay(sampler=MIN_HEAP))
        put(client, "t", [0, 1], [-1.0, -2.0])
        assert drawn(client, "t") == [1]
        with pytest.raises(UserError, match="priority=nan"):
            client.update_priorities("t", np.array([0]), np.array([np.nan]))

    def test_a_priority_whose_power_is_too_large_is_refused_and_leaves_nothing_behind(self, make: Way) -> None:
        client, service = make(replay(sampler=prioritized(2.0)))
        with pytest.raises(UserError), np.errstate(over="ignore"):
            put(client, "t", [0], [1e200])
        put(client, "t", [1])
        with pytest.raises(UserError), np.errstate(over="ignore"):
            client.update_priorities("t", client.sample("t", 1).keys, np.array([1e200]))
        assert set(client.sample("t", 50).info.priorities.tolist()) == {1.0}
        eventually(lambda: only_items_hold_chunks(service), SECONDS)

    @pytest.mark.parametrize("priorities", [[1.0], [1.0, 2.0, 3.0], []])
    def test_an_update_with_more_or_fewer_priorities_than_keys_is_refused(
        self, make: Way, priorities: list[float]
    ) -> None:
        client, _ = make(replay(sampler=prioritized(1.0)))
        put(client, "t", [0, 1])
        with pytest.raises(PappusError):
            client.update_priorities("t", np.array([0, 1]), np.array(priorities))
        assert set(client.sample("t", 50).info.priorities.tolist()) == {1.0}

    def test_what_is_deleted_is_not_drawn_and_counts_once(self, make: Way) -> None:
        client, _ = make(replay())
        put(client, "t", range(4))
        keys = keys_of(client, "t")
        assert client.delete("t", np.array([keys[0], keys[2], 10**9, -3])) == 2
        assert client.delete("t", np.array([keys[0]])) == 0
        assert present(client, "t") == {1, 3} and client.info("t")["deletes"] == 2
        assert client.delete("t", np.array([], np.int64)) == 0

    def test_a_reset_empties_a_table_and_counts_afresh(self, make: Way) -> None:
        client, _ = make([replay("t", limiter=rate_limiters.min_size(2)), replay("other")])
        put(client, "t", range(5))
        put(client, "other", [9])
        client.sample("t", 3)
        client.reset("t")
        info = client.info("t")
        assert [info[name] for name in ("size", "inserts", "samples", "deletes", "mass")] == [0] * 5
        with pytest.raises(TimeoutError):
            client.sample("t", 1, timeout=0)
        put(client, "t", [7, 8])
        assert present(client, "t") == {7, 8} and present(client, "other") == {9}
        chunks_become(client, 2)

    def test_a_table_weighs_nothing_while_nothing_can_be_sampled(self, make: Way) -> None:
        client, _ = make(replay(sampler=prioritized(2.0), limiter=rate_limiters.min_size(2)))
        put(client, "t", [0], [3.0])
        assert client.weigh("t") == (0.0, 0)
        put(client, "t", [1], [1.0])
        assert client.weigh("t") == (10.0, 2)

    def test_a_misspelt_table_is_named_with_the_one_that_was_meant(self, make: Way) -> None:
        client, _ = make(replay("replay"))
        asks: list[Callable[[], Any]] = [
            lambda: client.sample("repaly", 1), lambda: client.info("repaly"), lambda: client.explain("repaly"),
            lambda: client.weigh("repaly"), lambda: client.reset("repaly"),
            lambda: client.delete("repaly", np.array([0])),
            lambda: client.update_priorities("repaly", np.array([0]), np.array([1.0])),
            lambda: client.move_bounds("repaly", min_size=1), lambda: put(client, "repaly", [1]),
        ]
        for ask in asks:
            with pytest.raises(UserError, match="there is no table 'repaly'; did you mean 'replay'"):
                ask()

    @pytest.mark.parametrize("count", [0, -3])
    def test_a_batch_of_nothing_is_refused(self, make: Way, count: int) -> None:
        client, _ = make(replay())
        put(client, "t", [0])
        with pytest.raises(UserError, match=f"a batch of {count} items"):
            client.sample("t", count, timeout=0)

    def test_a_client_knows_the_tables_and_their_columns(self, make: Way) -> None:
        specs = [
            replay("one", 7, prioritized(0.6), LIFO, rate_limiters.sample_to_insert_ratio(4.0, 5, 8.0), lead=2),
            tables.queue("two", 3, STEP), replay("three", sampler=MIN_HEAP, max_times_sampled=3),
        ]
        client, service = make(specs, chunk_length=5)
        assert dict(client.tables) == {table.name: table for table in specs}
        assert client.layout == service.layout and list(client.layout.signature) == ["x", *STEP]

    def test_tables_that_cannot_share_steps_are_refused(self, make: Way) -> None:
        with pytest.raises(UserError, match="column 'x' is int64"):
            make([replay("a"), replay("b", signature={"x": ArraySpec((2,), "int64")})])
        with pytest.raises(UserError, match="different names"):
            make([replay("a"), replay("a")])
        with pytest.raises(UserError, match="at least one table"):
            make([])


class Steps:
    """Where steps are, who holds them, and when they are free."""

    def test_a_chunk_is_free_when_its_last_item_goes(self, make: Way) -> None:
        client, _ = make(replay(), max_steps=16, chunk_length=4)
        put(client, "t", range(6))
        chunks_become(client, 2)
        keys = keys_of(client, "t")
        for number in (0, 1, 2):
            client.delete("t", np.array([keys[number]]))
            assert chunks(client) == 2, "an item of the first chunk is left"
        client.delete("t", np.array([keys[3]]))
        chunks_become(client, 1)
        client.reset("t")
        chunks_become(client, 0)

    def test_a_writer_holds_what_it_may_still_refer_to(self, make: Way) -> None:
        client, _ = make(replay(), max_steps=16, chunk_length=4)
        with client.writer(history=4) as writer:
            add(writer, "t", 1)
            assert writer.flush()
            client.reset("t")
            chunks_become(client, 1)
            writer.create_item("t", 1.0, {"x": writer.history["x"][-1:]})
            assert writer.flush() and drawn(client, "t") == [1]
            client.reset("t")
        chunks_become(client, 0)

    def test_a_writer_holds_its_history_and_a_chunk_or_two(self, make: Way) -> None:
        client, _ = make(replay(), max_steps=40, chunk_length=2)
        with client.writer(history=6) as writer:
            for i in range(100):
                writer.append({"x": i})
                writer.flush()
                assert chunks(client) <= 3 + 2
            assert len(writer.history) >= 6
        chunks_become(client, 0)

    def test_a_sampled_batch_keeps_its_steps_until_it_was_read(self, make: Way) -> None:
        client, service = make(replay(), max_steps=16, chunk_length=4)
        put(client, "t", [41, 42])
        access = make.access(service)
        held = access.sample("t", 4, frozenset(["x"]), 0, SECONDS, True)
        assert held is not None
        client.reset("t")
        put(client, "t", range(200))
        found = Trajectory(x=col("x")).evaluate(held.drawn.windows, held.source, 0)["x"].array[:, 0]
        assert (found == 41 + held.drawn.keys).all()
        access.done(held)
        client.reset("t")
        client.info("t")
        chunks_become(client, 0)

    def test_what_a_client_was_reading_is_free_when_it_is_gone(self, make: Way) -> None:
        client, service = make(replay())
        put(client, "t", [1, 2])
        access = make.access(service)
        assert access.sample("t", 2, frozenset(["x"]), 0, SECONDS, True) is not None
        access.close()
        client.reset("t")
        chunks_become(client, 0)

    def test_overlapping_items_share_their_chunks(self, make: Way) -> None:
        client, _ = make(replay(size=128), max_steps=64, chunk_length=4)
        with client.writer() as writer:
            for i in range(16):
                writer.append({"x": i})
                for length in range(1, min(i, 8) + 1):
                    writer.create_item("t", 1.0, {"x": writer.history["x"][-length:]})
        chunks_become(client, 4)
        assert client.info("t")["size"] == 92
        client.reset("t")
        chunks_become(client, 0)

    @pytest.mark.parametrize("chunk_length", [1, 3, 32])
    def test_items_cross_chunks(self, make: Way, chunk_length: int) -> None:
        client, _ = make(tables.queue("t", 400, NUMBER), chunk_length=chunk_length)
        with client.writer(history=8, max_pending=5) as writer:
            for i in range(35):
                writer.append({"x": i})
                for length in range(1, min(i + 1, 8) + 1):
                    writer.create_item("t", length, {"x": writer.history["x"][-length:]})
        batch = client.sample("t", client.info("t")["size"])
        last = [i for i in range(35) for _ in range(min(i + 1, 8))]
        for row, stop, length in zip(batch.data["x"], last, batch.info.priorities.astype(int), strict=True):
            assert row.tolist() == [*range(stop + 1 - length, stop + 1), *[0] * (8 - length)]
        chunks_become(client, 0)

    @pytest.mark.parametrize("chunk_length", [3, 16])
    def test_compressed_columns_come_back_as_they_were_written(self, make: Way, chunk_length: int) -> None:
        table = tables.queue("t", 64, STEP, lead=2)
        client, service = make(table, max_steps=256, chunk_length=chunk_length, compress=["obs", "reward"])
        with client.writer(history=4) as writer:
            for i in range(70):
                writer.append(step(i))
                if i >= 6:
                    writer.create_item("t", 1.0, {
                        name: writer.history[name][-3:] if name == "obs" else writer.history[name][-3:-1]
                        for name in STEP
                    })
        service.settle()
        batch = client.sample("t", 64, Trajectory(obs=col("obs").stack(3), reward=col("reward"), action=col("action")))
        for n in range(64):
            assert batch.data["action"][n].tolist() == [n + 4, n + 5]
            assert batch.data["reward"][n].tolist() == [(n + 4) / 4, (n + 5) / 4]
            for t in range(3):
                assert batch.data["obs"][n, t, :, 0].tolist() == [n + 2 + t, n + 3 + t, n + 4 + t]
        chunks_become(client, 0)

    def test_whole_episodes_are_items(self, make: Way) -> None:
        client, _ = make(tables.queue("t", 16, STEP), max_steps=256, chunk_length=4)
        lengths = [1, 7, 3, 12, 4]
        with client.writer(history=16) as writer:
            for episode, length in enumerate(lengths):
                for i in range(length):
                    writer.append(step(100 * episode + i))
                history = writer.history
                assert len(history) == length
                writer.create_item("t", 1.0, {name: history[name][:] for name in STEP})
                writer.end_episode()
        batch = client.sample("t", 5)
        for episode, length in enumerate(lengths):
            for i in range(12):
                expected: dict[str, Any] = step(100 * episode + i) if i < length else dict.fromkeys(STEP, 0)
                for name in STEP:
                    assert (batch.data[name][episode, i] == np.asarray(expected[name], STEP[name].dtype)).all()
        assert {name: batch.data[name].dtype for name in STEP} == {name: spec.dtype for name, spec in STEP.items()}
        chunks_become(client, 0)

    def test_steps_are_reused_over_and_over_and_none_is_mixed_up(self, make: Way) -> None:
        client, _ = make(replay(size=6), max_steps=24, chunk_length=2)
        with client.writer(history=4) as writer:
            for i in range(300):
                writer.append({"x": i})
                if i >= 3 and i % 3 == 0:
                    writer.create_item("t", 1.0, {"x": writer.history["x"][-4:]})
                if i % 50 == 49:
                    assert writer.flush()
                    batch = client.sample("t", 60)
                    assert (np.diff(batch.data["x"], axis=1) == 1).all() and batch.data["x"].min() >= i - 24
        client.reset("t")
        chunks_become(client, 0)

    def test_tables_share_steps_and_each_holds_them(self, make: Way) -> None:
        client, _ = make([replay("one"), replay("two", sampler=FIFO), replay("none")], max_steps=16, chunk_length=4)
        with client.writer() as writer:
            for i in range(4):
                writer.append({"x": i})
            writer.create_item("one", 1.0, {"x": writer.history["x"][:2]})
            writer.create_item("two", 1.0, {"x": writer.history["x"][1:]})
        chunks_become(client, 1, "one")
        assert client.sample("one", 1).data["x"].tolist() == [[0, 1]]
        assert client.sample("two", 1).data["x"].tolist() == [[1, 2, 3]]
        client.reset("one")
        assert chunks(client, "one") == 1
        client.reset("two")
        chunks_become(client, 0, "none")

    def test_tables_have_columns_of_their_own(self, make: Way) -> None:
        both = {"x": ArraySpec((), "int64"), "y": ArraySpec((2,), "uint8")}
        client, _ = make([replay("x"), replay("xy", signature=both)])
        with client.writer() as writer:
            writer.append({"x": 1, "y": [2, 3]})
            parts = {name: writer.history[name][-1:] for name in both}
            writer.create_item("xy", 1.0, parts)
            writer.create_item("x", 1.0, {"x": parts["x"]})
        assert set(client.sample("x", 1).data) == {"x"}
        assert client.sample("xy", 1).data["y"].tolist() == [[[2, 3]]]
        with pytest.raises(UserError, match="column 'y' is not in the signature of table 'x'"), \
                client.writer() as writer:
            writer.append({"x": 1, "y": [2, 3]})
            writer.create_item("x", 1.0, {name: writer.history[name][-1:] for name in both})
        assert client.info("x")["size"] == 1

    def test_removal_frees_steps(self, make: Way) -> None:
        client, _ = make(replay(size=4), max_steps=64, chunk_length=1)
        put(client, "t", range(40))
        chunks_become(client, 4)

    def test_where_inserts_never_wait_old_items_make_room_for_steps(self, make: Way) -> None:
        client, service = make(replay(size=1000), max_steps=32, chunk_length=4)
        writing = Background(lambda: put(client, "t", range(200)))
        writing.result()
        size = client.info("t")["size"]
        assert 1 <= size <= service.layout.rows
        assert 199 in set(drawn(client, "t", 2000)) and client.info("t")["deletes"] == 200 - size

    def test_where_a_limiter_waits_old_items_make_room_too_but_for_the_least_that_it_needs(self, make: Way) -> None:
        limiter = rate_limiters.sample_to_insert_ratio(1.0, 6, 500.0)
        client, service = make(replay(size=1000, limiter=limiter), max_steps=32, chunk_length=4)
        writing = Background(lambda: put(client, "t", range(200)))
        writing.result()
        assert 6 <= client.info("t")["size"] <= service.layout.rows and 199 in set(drawn(client, "t", 500))

    def test_a_full_store_keeps_writers_waiting_where_inserts_may_not_push_items_out(self, make: Way) -> None:
        client, service = make(tables.queue("t", 1000, NUMBER), max_steps=8, chunk_length=2)
        writing = Background(lambda: put(make.client(service, "ann"), "t", range(100)))
        text = waiting(service, "t", "waits to write steps")
        assert f"all {service.layout.rows} steps are taken" in text and "raise max_steps" in text and "ann" in text
        assert not writing.done
        found: list[int] = []
        while len(found) < 100:
            found += drawn(client, "t", min(7, 100 - len(found)))
        writing.result()
        assert found == list(range(100))
        chunks_become(client, 0)

    def test_a_writer_that_could_only_wait_for_itself_is_refused(self, make: Way) -> None:
        """Its history alone is more than all chunks: nothing that anybody samples or deletes makes room for it."""
        client, service = make(replay(size=4), max_steps=4, chunk_length=2)
        put(client, "t", [-1])

        def write() -> None:
            with client.writer(history=10 * service.layout.rows) as writer:
                for i in range(2 * service.layout.rows):
                    writer.append({"x": i})

        with pytest.raises(UserError):
            Background(write).result(1.0)

    def test_more_envs_than_chunks_are_refused_with_the_steps_that_they_need(self, make: Way) -> None:
        client, service = make(replay(size=4), max_steps=4, chunk_length=2)
        envs = service.layout.num_chunks + 1
        with pytest.raises(UserError, match="raise max_steps"), client.writer(envs=envs) as writer:
            writer.append({"x": np.arange(envs)})

    def test_the_items_of_a_writer_outlive_it(self, make: Way) -> None:
        client, service = make(replay())
        own = make.client(service)
        put(own, "t", [3])
        own.close()
        assert drawn(client, "t") == [3]


class Writing:
    """How steps get in, and what writers refuse."""

    def test_a_writer_of_one_env_takes_steps_without_an_env_dimension(self, make: Way) -> None:
        client, _ = make(tables.queue("t", 4, STEP))
        with client.writer() as writer:
            writer.append(step(3))
            writer.append(step(4))
            assert writer.steps == 2
            writer.create_item("t", 2.5, {"obs": writer.history["obs"][:], "action": writer.history["action"][0]})
        batch = client.sample("t", 1, Trajectory(obs=col("obs"), action=col("action")))
        assert batch.data["obs"].tolist() == [[[3, 3.5], [4, 4.5]]] and batch.data["action"].tolist() == [[3]]
        assert batch.info.priorities.tolist() == [2.5]

    def test_a_writer_of_many_envs_makes_an_item_of_each(self, make: Way) -> None:
        client, _ = make(tables.queue("t", 64, NUMBER), chunk_length=2)
        with client.writer(envs=3, history=4) as writer:
            for i in range(7):
                writer.append({"x": 100 * np.arange(3) + i})
                if len(writer.history) >= 3:
                    writer.create_item("t", np.array([1.0, 2.0, 3.0]), {"x": writer.history["x"][-3:]})
        batch = client.sample("t", 15)
        for n, row in enumerate(batch.data["x"]):
            assert row.tolist() == [100 * (n % 3) + n // 3 + i for i in range(3)]
        assert batch.info.priorities.tolist() == [1.0, 2.0, 3.0] * 5

    def test_one_env_in_a_vector_keeps_its_dimension(self, make: Way) -> None:
        client, _ = make(tables.queue("t", 4, NUMBER))
        with client.writer(envs=1) as writer:
            writer.append({"x": np.array([5])})
            writer.create_item("t", 1.0, {"x": writer.history["x"][-1]})
            with pytest.raises(UserError, match=r"takes values of shape \(1,\), not \(\)"):
                writer.append({"x": 6})
        assert drawn(client, "t") == [5]

    def test_a_mask_chooses_the_envs_that_make_an_item(self, make: Way) -> None:
        client, _ = make(tables.queue("t", 16, NUMBER))
        with client.writer(envs=4) as writer:
            writer.append({"x": np.arange(4)})
            one = {"x": writer.history["x"][-1:]}
            writer.create_item("t", np.array([9.0, 8.0, 7.0, 6.0]), one, where=np.array([True, False, False, True]))
            writer.create_item("t", 1.0, one, where=np.zeros(4, bool))
            writer.create_item("t", 5.0, one, where=np.array([False, True, False, False]))
        batch = client.sample("t", 3)
        assert numbers(batch) == [0, 3, 1] and batch.info.priorities.tolist() == [9.0, 6.0, 5.0]
        assert client.info("t")["inserts"] == 3

    def test_items_have_starts_and_lengths_of_their_own(self, make: Way) -> None:
        columns = {"x": ArraySpec((), "int64"), "y": ArraySpec((), "int64")}
        client, _ = make(tables.queue("t", 16, columns), chunk_length=2)
        with client.writer(envs=3) as writer:
            for i in range(6):
                writer.append({"x": 10 * np.arange(3) + i, "y": -(10 * np.arange(3) + i)})
            writer.create_items(
                "t", np.array([1.0, 2.0, 3.0, 4.0]), np.array([2, 0, 0, 1]),
                {"x": np.array([0, 1, 3, 5]), "y": np.array([1, 1, 2, 4])},
                {"x": np.array([6, 1, 2, 1]), "y": np.array([2, 4, 1, 2])},
            )
        batch = client.sample("t", 4)
        expected_x = [[20, 21, 22, 23, 24, 25], [1], [3, 4], [15]]
        expected_y = [[-21, -22], [-1, -2, -3, -4], [-2], [-14, -15]]
        for name, expected in (("x", expected_x), ("y", expected_y)):
            width = max(map(len, expected))
            assert batch.data[name].tolist() == [row + [0] * (width - len(row)) for row in expected]

    def test_an_item_further_back_than_the_history_is_refused(self, make: Way) -> None:
        client, _ = make(tables.queue("t", 16, NUMBER), max_steps=64, chunk_length=2)
        with client.writer(history=4) as writer:
            for i in range(20):
                writer.append({"x": i})
            with pytest.raises(UserError, match="give the writer a longer history"):
                writer.create_items(
                    "t", np.ones(1), np.zeros(1, np.int64), {"x": np.array([10])}, {"x": np.array([10])}
                )
            with pytest.raises(UserError, match="is not within the"):
                writer.create_items(
                    "t", np.ones(1), np.zeros(1, np.int64), {"x": np.array([19])}, {"x": np.array([2])}
                )
            writer.create_item("t", 1.0, {"x": writer.history["x"][-4:]})
        assert client.sample("t", 1).data["x"].tolist() == [[16, 17, 18, 19]]

    @pytest.mark.parametrize("chunk_length", [1, 2, 5])
    def test_all_that_the_history_shows_can_become_an_item(self, make: Way, chunk_length: int) -> None:
        client, _ = make(tables.queue("t", 64, NUMBER, lead=3), max_steps=256, chunk_length=chunk_length)
        with client.writer(history=4) as writer:
            for i in range(30):
                writer.append({"x": i})
                assert len(writer.history) >= min(4, i + 1)
                writer.create_item("t", 1.0, {"x": writer.history["x"][:]})
        assert client.info("t")["inserts"] == 30

    def test_a_step_may_leave_out_a_column_that_no_item_has(self, make: Way) -> None:
        client, _ = make(tables.queue("t", 16, STEP))
        with client.writer() as writer:
            for i in range(4):
                writer.append({name: value for name, value in step(i).items() if name != "reward" or i != 1})
            with pytest.raises(UserError, match="column 'reward' was left out of step 1"):
                writer.create_item("t", 1.0, {"reward": writer.history["reward"][:]})
            writer.create_item("t", 1.0, {
                "reward": writer.history["reward"][2:], "action": writer.history["action"][:],
            })
        batch = client.sample("t", 1, Trajectory(reward=col("reward"), action=col("action")))
        assert batch.data["reward"].tolist() == [[0.5, 0.75]] and batch.data["action"].tolist() == [[0, 1, 2, 3]]

    def test_a_column_that_an_item_left_out_cannot_be_shown(self, make: Way) -> None:
        client, _ = make(replay(signature=STEP))
        with client.writer() as writer:
            writer.append(step(1))
            writer.create_item("t", 1.0, {"action": writer.history["action"][-1:]})
        assert client.sample("t", 1, Trajectory(action=col("action"))).data["action"].tolist() == [[1]]
        with pytest.raises(UserError, match="was left out when the items were made"):
            client.sample("t", 1)

    def test_an_unknown_column_is_named_with_the_one_that_was_meant(self, make: Way) -> None:
        client, service = make(replay(signature=STEP))
        with client.writer() as writer:
            with pytest.raises(UserError, match=r"no column 'rewrad' .*did you mean 'reward'"):
                writer.append({"rewrad": 1.0})
            writer.append(step(0))
            with pytest.raises(UserError, match="did you mean 'reward'"):
                writer.history["rewrad"]
            with pytest.raises(UserError, match="did you mean 'reward'"):
                writer.create_items(
                    "t", np.ones(1), np.zeros(1, np.int64), {"rewrad": np.array([0])}, {"rewrad": np.array([1])}
                )
            writer.create_item("t", 1.0, {name: writer.history[name][:] for name in STEP})
        with pytest.raises(UserError, match="there is no column 'rewrad'"):
            client.sample("t", 1, Trajectory(r=col("rewrad")))
        eventually(lambda: only_items_hold_chunks(service), SECONDS)

    def test_a_value_of_the_wrong_shape_is_refused(self, make: Way) -> None:
        client, _ = make(replay(signature=STEP))
        with client.writer() as writer:
            for wrong in (
                {"obs": np.zeros(3, np.float32)}, {"obs": 1.0}, {"action": [1, 2]},
                {"obs": np.zeros((1, 2), np.float32)},
            ):
                with pytest.raises(UserError, match="takes values of shape"):
                    writer.append({**step(0), **wrong})
                assert len(writer.history) == 0

    def test_an_array_of_the_wrong_dtype_is_refused(self, make: Way) -> None:
        client, _ = make(replay(signature=STEP))
        with client.writer() as writer:
            for wrong in (
                {"action": np.array(1.5)}, {"action": np.array(1 + 1j)}, {"obs": np.array(["a", "b"])},
                {"obs": np.array([None, None])},
            ):
                with pytest.raises(UserError, match="does not fit; convert it first"):
                    writer.append({**step(0), **wrong})
            writer.append({**step(0), "obs": np.array([1.0, 2.0], np.float64), "action": np.array(3, np.int8)})
            assert len(writer.history) == 1

    def test_a_number_that_a_column_cannot_hold_is_refused(self, make: Way) -> None:
        columns = {"b": ArraySpec((), "uint8"), "i": ArraySpec((), "int64")}
        client, _ = make(replay(signature=columns))
        with client.writer() as writer:
            for column, value in (("b", 300), ("b", -1), ("b", 1.5), ("i", 1.5), ("i", np.nan)):
                with pytest.raises(UserError):
                    writer.append({"b": 1, "i": 1, column: value})
            assert len(writer.history) == 0

    @pytest.mark.parametrize("wrong", [None, "seven", [], object()], ids=["None", "text", "empty", "object"])
    def test_after_a_step_that_was_refused_a_writer_goes_on_as_if_it_had_not_been(self, make: Way, wrong: Any) -> None:
        client, _ = make(tables.queue("t", 16, NUMBER), chunk_length=2)
        with client.writer() as writer:
            for i in range(4):
                with pytest.raises(UserError):
                    writer.append({"x": wrong})
                add(writer, "t", 10 + i)
        assert drawn(client, "t", 4) == [10, 11, 12, 13]

    def test_after_a_wrong_mask_of_first_steps_a_writer_goes_on_as_if_it_had_not_been(self, make: Way) -> None:
        client, _ = make(tables.queue("t", 16, NUMBER), chunk_length=2)
        with client.writer(envs=2) as writer:
            with pytest.raises(PappusError):
                writer.append({"x": np.array([1, 2])}, first=np.array([True, False, True]))
            writer.append({"x": np.array([3, 4])}, first=np.array([True, True]))
            writer.create_item("t", 1.0, {"x": writer.history["x"][-1:]})
        assert drawn(client, "t", 2) == [3, 4]

    def test_nested_steps_have_columns_with_slashes(self, make: Way) -> None:
        columns = {"obs/left": ArraySpec((), "int64"), "obs/deep/right": ArraySpec((2,), "float32")}
        client, _ = make(tables.queue("t", 4, columns))
        with client.writer() as writer:
            writer.append({"obs": {"left": 1, "deep": {"right": [2.0, 3.0]}}})
            writer.create_item("t", 1.0, {name: writer.history[name][:] for name in columns})
            with pytest.raises(UserError, match="no column 'obs/lefd'"):
                writer.append({"obs": {"lefd": 1}})
        data = client.sample("t", 1).data
        assert data["obs/left"].tolist() == [[1]] and data["obs/deep/right"].tolist() == [[[2.0, 3.0]]]

    def test_a_closed_writer_takes_neither_steps_nor_items(self, make: Way) -> None:
        client, _ = make(replay())
        writer = client.writer()
        add(writer, "t", 1)
        part = {"x": writer.history["x"][-1:]}
        writer.close()
        writer.close()
        with pytest.raises(UserError, match="closed"):
            writer.append({"x": 2})
        with pytest.raises(UserError, match="closed"):
            writer.create_item("t", 1.0, part)
        assert present(client, "t") == {1}

    def test_the_history_begins_with_the_episode(self, make: Way) -> None:
        client, _ = make(tables.queue("t", 16, NUMBER))
        with client.writer() as writer:
            assert len(writer.history) == 0
            for i in range(3):
                writer.append({"x": i})
            assert len(writer.history) == len(writer.history["x"]) == 3
            writer.end_episode()
            assert len(writer.history) == 0
            with pytest.raises(UserError, match=r"x\[-1\] is not among the 0 steps"):
                writer.history["x"][-1]
            writer.append({"x": 10})
            with pytest.raises(UserError, match="holds none; widen it"):
                writer.history["x"][-3:-1]
            writer.create_item("t", 1.0, {"x": writer.history["x"][-3:]})
            writer.append({"x": 20}, first=True)
            assert len(writer.history) == 1
            writer.create_item("t", 1.0, {"x": writer.history["x"][0]})
        assert drawn(client, "t", 2) == [10, 20]

    def test_an_item_that_began_before_its_env_s_episode_is_refused(self, make: Way) -> None:
        client, _ = make(tables.queue("t", 16, NUMBER))
        with client.writer(envs=2) as writer:
            writer.append({"x": np.array([0, 10])}, first=np.array([True, True]))
            writer.append({"x": np.array([1, 11])}, first=np.array([False, True]))
            with pytest.raises(UserError, match="item of env 1 begins 1 steps before its episode"):
                writer.create_item("t", 1.0, {"x": writer.history["x"][-2:]})
            writer.create_item("t", 1.0, {"x": writer.history["x"][-2:]}, where=np.array([True, False]))
            writer.create_item("t", 1.0, {"x": writer.history["x"][-1:]}, where=np.array([False, True]))
        batch = client.sample("t", 2)
        assert batch.data["x"].tolist() == [[0, 1], [11, 0]]

    def test_items_keep_the_names_of_their_columns(self, make: Way) -> None:
        client, _ = make(replay(signature=STEP))
        with client.writer() as writer:
            writer.append(step(1))
            with pytest.raises(UserError, match="column 'obs' is given a slice of 'reward'"):
                writer.create_item("t", 1.0, {"obs": writer.history["reward"][-1:]})
            with pytest.raises(UserError, match="at least one slice"):
                writer.create_item("t", 1.0, {})

    @pytest.mark.parametrize(
        "change",
        [
            {"priorities": np.ones(2)}, {"priorities": np.ones(4)}, {"envs": np.array([0, 1])},
            {"envs": np.array([0, 1, 2])}, {"envs": np.array([0, 1, -3])},
            {"starts": {"x": np.array([0, 0])}}, {"lengths": {"x": np.array([1, 1, 1, 1])}},
            {"lengths": {"x": np.array([1, -1, 1])}}, {"lengths": {"x": np.array([1, 0, 1])}},
            {"starts": {"x": np.array([0, -1, 0])}}, {"lengths": {}}, {"starts": {}, "lengths": {}},
        ],
        ids=lambda change: " ".join(f"{name}={value}" for name, value in change.items()),
    )
    def test_records_that_do_not_fit_together_are_refused_and_leave_nothing_behind(
        self, make: Way, change: dict[str, Any]
    ) -> None:
        client, service = make(replay())
        good: dict[str, Any] = {
            "priorities": np.ones(3), "envs": np.array([0, 1, 0]), "starts": {"x": np.zeros(3, int)},
            "lengths": {"x": np.ones(3, int)},
        }
        with pytest.raises(UserError), client.writer(envs=2) as writer:
            writer.append({"x": np.array([1, 2])})
            writer.create_items("t", **{**good, **change})
            writer.flush()
        assert client.info("t")["inserts"] == 0
        eventually(lambda: only_items_hold_chunks(service), SECONDS)

    def test_priorities_and_masks_have_one_entry_for_every_env(self, make: Way) -> None:
        client, _ = make(replay())
        with client.writer(envs=2) as writer:
            writer.append({"x": np.array([1, 2])})
            one = {"x": writer.history["x"][-1:]}
            with pytest.raises(UserError):
                writer.create_item("t", np.ones(3), one)
            with pytest.raises(UserError):
                writer.create_item("t", 1.0, one, where=np.array([False, False, True]))
        assert client.info("t")["inserts"] == 0

    @pytest.mark.parametrize("wrong", [{"envs": 0}, {"history": 0}, {"max_pending": 0}], ids=str)
    def test_a_writer_of_nothing_is_refused(self, make: Way, wrong: dict[str, int]) -> None:
        client, _ = make(replay())
        with pytest.raises(UserError, match="must be at least 1"):
            client.writer(**wrong)

    def test_items_wait_for_each_other_as_long_as_is_said(self, make: Way) -> None:
        client, _ = make(replay())
        with client.writer(max_pending=3) as writer:
            add(writer, "t", 0)
            add(writer, "t", 1)
            assert client.info("t")["inserts"] == 0
            add(writer, "t", 2)
            eventually(lambda: client.info("t")["inserts"] == 3, SECONDS)
            add(writer, "t", 3)
            assert writer.flush() and client.info("t")["inserts"] == 4
            add(writer, "t", 4)
        assert client.info("t")["inserts"] == 5

    def test_items_that_wait_keep_their_steps(self, make: Way) -> None:
        client, _ = make(tables.queue("t", 64, NUMBER), chunk_length=2)
        put(client, "t", range(40), together=64, history=2)
        assert drawn(client, "t", 40) == list(range(40))

    def test_a_flush_that_a_limiter_holds_up_ends_in_time_and_can_be_repeated(self, make: Way) -> None:
        client, service = make(tables.queue("t", 1, NUMBER))
        put(client, "t", [0])
        writer = client.writer(max_pending=8)
        add(writer, "t", 1)
        assert Background(lambda: writer.flush(0.05)).result(2.0) is False
        again = Background(writer.flush)
        waiting(service, "t", "waits to insert")
        assert drawn(make.client(service), "t") == [0]
        assert again.result() is True
        assert drawn(client, "t") == [1]
        assert writer.flush(0.0) is True
        writer.close()

    def test_an_error_in_a_with_leaves_no_partial_item_and_frees_the_steps(self, make: Way) -> None:
        client, service = make(replay(size=8), max_steps=64, chunk_length=2)
        put(client, "t", [7])
        with pytest.raises(ZeroDivisionError), client.writer(max_pending=100) as writer:
            for i in range(9):
                writer.append({"x": i})
                writer.create_item("t", 1.0, {"x": writer.history["x"][-min(i + 1, 3):]})
            raise ZeroDivisionError
        chunks_become(client, 1)
        assert only_items_hold_chunks(service)
        assert client.info("t")["inserts"] == 1 and present(client, "t") == {7}
        with pytest.raises(UserError, match="closed"):
            writer.append({"x": 1})

    def test_items_that_were_in_before_an_error_stay(self, make: Way) -> None:
        client, service = make(replay(size=8), max_steps=64, chunk_length=2)
        with pytest.raises(ZeroDivisionError), client.writer() as writer:
            for i in range(5):
                add(writer, "t", i)
            writer.flush()
            raise ZeroDivisionError
        eventually(lambda: only_items_hold_chunks(service), SECONDS)
        assert present(client, "t") == {0, 1, 2, 3, 4}

    def test_an_item_that_is_refused_does_not_disturb_those_after_it(self, make: Way) -> None:
        client, _ = make(tables.queue("t", 16, NUMBER))
        with client.writer() as writer:
            add(writer, "t", 0)
            with pytest.raises(UserError, match="priority=nan"):
                add(writer, "t", 1, priority=np.nan)
                writer.flush()
            add(writer, "t", 2)
            assert writer.flush()
        assert drawn(client, "t", 2) == [0, 2]

    def test_the_refusal_of_an_item_is_not_taken_for_the_answer_to_something_else(self, make: Way) -> None:
        """It may come with any later call, which then has not been done; the calls after that are."""
        client, service = make(tables.queue("t", 1, NUMBER), max_steps=16, chunk_length=1)
        writer = client.writer(history=4)
        refusals = 0
        for call in (lambda: add(writer, "t", 0, np.nan), lambda: writer.append({"x": 1}), writer.flush):
            try:
                call()
            except UserError as error:
                refusals += 1
                assert "priority=nan" in str(error)
        assert refusals == 1
        add(writer, "t", 2)
        assert writer.flush() and client.info("t")["size"] == 1
        held_up = Background(lambda: (add(writer, "t", 3), writer.flush(0.1))[1])
        waiting(service, "t", "waits to insert")
        assert not held_up.done or held_up.result() is False
        assert drawn(make.client(service), "t") == [2]
        held_up.result()
        assert writer.flush() and drawn(client, "t") == [3]
        writer.close()


class Ragged:
    """Items of different lengths, known both to a table and to a plain list: `obs` has one step more than the others.

    Every item is over the last steps of an episode so far, with the three steps before it as lead where the episode
    has them.
    """

    LEAD = 3

    def __init__(self, make: Way, lengths: Sequence[int] = (3, 1, 4, 2), chunk_length: int = 2) -> None:
        table = tables.queue("t", 64, STEP, lead=self.LEAD)
        self.client, _ = make(table, max_steps=512, chunk_length=chunk_length)
        self.items: list[dict[str, list[Array]]] = []
        """By column, the item's own steps."""
        self.before: list[dict[str, list[Array]]] = []
        """By column, up to three steps of the episode before them."""
        with self.client.writer(history=16) as writer:
            for episode, length in enumerate(lengths):
                for skipped in range(length + 4):
                    writer.append(step(50 * episode + skipped))
                    if skipped + 1 > length and skipped % 2 == 0:
                        self._make_item(writer, episode, skipped, length)
                writer.end_episode()
        self.count = len(self.items)

    def _make_item(self, writer: TrajectoryWriter, episode: int, newest: int, length: int) -> None:
        history, first = writer.history, newest - length
        writer.create_item("t", 1.0, {
            name: history[name][-length - 1:] if name == "obs" else history[name][-length - 1:-1] for name in STEP
        })
        record = {
            name: [np.asarray(step(50 * episode + i)[name], STEP[name].dtype) for i in range(newest + 1)]
            for name in STEP
        }
        self.items.append({name: v[first:] if name == "obs" else v[first:newest] for name, v in record.items()})
        self.before.append({name: v[max(0, first - self.LEAD):first] for name, v in record.items()})

    def sample(self, **fields: Field) -> dict[str, Array]:
        """All items, from the oldest to the newest."""
        return self.client.sample("t", self.count, Trajectory(**fields), timeout=SECONDS).data

    def column(self, name: str) -> list[list[Array]]:
        return [item[name] for item in self.items]

    def padded(self, rows: Sequence[Sequence[Any]], value: float = 0, length: int | None = None) -> Array:
        """Lists of different lengths as one array."""
        width = max(map(len, rows)) if length is None else length
        shape = np.shape(next(row for row in rows if len(row))[0])
        return np.array([[row[t] if t < len(row) else np.full(shape, value) for t in range(width)] for row in rows])


class Fields:
    """What a batch looks like, against plain loops over the steps that were written."""

    def test_columns_come_as_they_were_written_and_zero_beyond_an_item_s_end(self, make: Way) -> None:
        ragged = Ragged(make)
        data = ragged.sample(**{name: col(name) for name in STEP})
        for name in STEP:
            assert (data[name] == ragged.padded(ragged.column(name))).all() and data[name].dtype == STEP[name].dtype

    def test_without_a_trajectory_every_column_comes_whole(self, make: Way) -> None:
        ragged = Ragged(make)
        data = ragged.client.sample("t", ragged.count, timeout=SECONDS).data
        for name in STEP:
            assert (data[name] == ragged.padded(ragged.column(name))).all()

    @pytest.mark.parametrize("order", [[3, 1, 4, 2], [4, 3, 2, 1], [1, 2, 3, 4], [2, 2, 2, 2]], ids=str)
    def test_the_last_item_of_a_batch_may_be_the_shortest(self, make: Way, order: list[int]) -> None:
        ragged = Ragged(make, order)
        data = ragged.sample(reward=col("reward"), obs=col("obs"))
        assert (data["reward"] == ragged.padded(ragged.column("reward"))).all()
        assert (data["obs"] == ragged.padded(ragged.column("obs"))).all()

    def test_a_slice_is_each_item_s_own(self, make: Way) -> None:
        ragged = Ragged(make)
        keys = [
            slice(1, None), slice(None, -1), slice(-2, None), slice(0, 2), slice(1, 3), slice(-3, -1), slice(None, None)
        ]
        data = ragged.sample(**{f"{name} {key}": col(name)[key] for name in ("obs", "reward") for key in keys})
        for name, key in itertools.product(("obs", "reward"), keys):
            expected = ragged.padded([row[key] for row in ragged.column(name)])
            assert np.array_equal(data[f"{name} {key}"], expected), (name, key)

    def test_an_index_counts_from_each_item_s_own_ends(self, make: Way) -> None:
        ragged = Ragged(make)
        data = ragged.sample(**{
            f"{name} {index}": col(name)[index] for name in ("obs", "action") for index in (0, 1, -1, -2)
        })
        for name, index in itertools.product(("obs", "action"), (0, 1, -1, -2)):
            nearest = [row[max(-len(row), min(index, len(row) - 1))] for row in ragged.column(name)]
            assert np.array_equal(data[f"{name} {index}"], np.array(nearest)), (name, index)

    def test_a_stack_repeats_an_episode_s_first_step_and_never_looks_over_it(self, make: Way) -> None:
        ragged = Ragged(make)

        def stacked(name: str, count: int) -> list[list[Array]]:
            found = []
            for own, before in zip(ragged.items, ragged.before, strict=True):
                row, lead = [*before[name], *own[name]], len(before[name])
                found.append([
                    np.stack([row[max(0, lead + t - back)] for back in reversed(range(count))])
                    for t in range(len(own[name]))
                ])
            return found

        data = ragged.sample(
            **{f"obs {count}": col("obs").stack(count) for count in (1, 2, 4)},
            **{f"first action {count}": col("action").stack(count)[0] for count in (1, 2, 4)},
        )
        for count in (1, 2, 4):
            assert np.array_equal(data[f"obs {count}"], ragged.padded(stacked("obs", count)))
            assert np.array_equal(data[f"first action {count}"], [row[0] for row in stacked("action", count)])

    def test_a_stack_of_a_slice_looks_back_over_the_item_s_own_steps(self, make: Way) -> None:
        ragged = Ragged(make, [4, 3])
        data = ragged.sample(late=col("action")[-1].stack(3), slices=col("action")[1:].stack(2))
        for n, row in enumerate(ragged.column("action")):
            whole = [*ragged.before[n]["action"], *row]
            assert data["late"][n].tolist() == [int(v) for v in whole[-3:]]
            pairs = [[int(row[t - 1]), int(row[t])] for t in range(1, len(row))]
            assert data["slices"][n, :len(pairs)].tolist() == pairs

    def test_stacks_of_many_envs_begin_where_each_env_s_episode_does(self, make: Way) -> None:
        client, _ = make(tables.queue("t", 64, NUMBER, lead=2), chunk_length=2)
        with client.writer(envs=2) as writer:
            for i in range(6):
                writer.append({"x": np.array([i, 10 + i])}, first=np.array([i == 4, i == 2]))
                writer.create_item("t", 1.0, {"x": writer.history["x"][-1:]})
        found = client.sample("t", 12, Trajectory(x=col("x").stack(3)[0])).data["x"].reshape(6, 2, 3)
        assert found[:, 0].tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3], [4, 4, 4], [4, 4, 5]]
        assert found[:, 1].tolist() == [
            [10, 10, 10], [10, 10, 11], [12, 12, 12], [12, 12, 13], [12, 13, 14], [13, 14, 15]
        ]

    def test_a_stack_higher_than_the_table_s_lead_is_refused(self, make: Way) -> None:
        with pytest.raises(UserError, match="make the table with lead=4"):
            Ragged(make).sample(obs=col("obs").stack(5))
        with pytest.raises(UserError, match="stack belongs before any arithmetic"):
            Ragged(make).sample(obs=(col("obs") * 2).stack(2))

    def test_a_discounted_sum_stops_where_discounts_or_items_do(self, make: Way) -> None:
        ragged = Ragged(make)
        sums = [(0.9, None), (0.5, 1), (0.9, 2), (1.0, 3), (0.7, 50)]
        data = ragged.sample(**{f"{gamma} {n}": col("reward").discounted_sum(gamma, n) for gamma, n in sums})
        for gamma, n in sums:
            expected = []
            for item in ragged.items:
                rewards, discounts = [float(r) for r in item["reward"]], [float(d) for d in item["discount"]]
                returns = []
                for t in range(len(rewards)):
                    total, weight = 0.0, 1.0
                    for i in range(t, min(len(rewards), t + (n or len(rewards)))):
                        total += weight * rewards[i]
                        weight *= gamma * discounts[i]
                    returns.append(np.float32(total))
                expected.append(returns)
            found = data[f"{gamma} {n}"]
            assert np.allclose(found, ragged.padded(expected), rtol=1e-5) and found.dtype == np.float32, (gamma, n)

    def test_a_discounted_sum_of_a_slice_takes_the_discounts_of_the_same_steps(self, make: Way) -> None:
        ragged = Ragged(make, [4, 3])
        found = ragged.sample(ret=col("reward")[1:].discounted_sum(0.9)[0])["ret"]
        expected = []
        for item in ragged.items:
            total, weight = 0.0, 1.0
            for reward, discount in zip(item["reward"][1:], item["discount"][1:], strict=True):
                total, weight = total + weight * float(reward), weight * 0.9 * float(discount)
            expected.append(total)
        assert np.allclose(found, expected, rtol=1e-5)

    def test_a_discounted_sum_over_vectors_discounts_every_entry(self, make: Way) -> None:
        ragged = Ragged(make, [2, 2])
        found = ragged.sample(ret=col("obs")[:-1].discounted_sum(0.5)[0])["ret"]
        expected = [
            obs[0] + 0.5 * float(discount[0]) * obs[1]
            for obs, discount in zip(ragged.column("obs"), ragged.column("discount"), strict=True)
        ]
        assert np.allclose(found, expected, rtol=1e-5)

    def test_reductions_over_time_leave_out_what_is_beyond_an_item_s_end(self, make: Way) -> None:
        ragged, shifted = Ragged(make), col("reward") + -3.0
        data = ragged.sample(
            **{f"reward {name}": getattr(shifted, name)() for name in REDUCTIONS},
            **{f"obs {name}": getattr(col("obs"), name)() for name in REDUCTIONS},
            **{f"discount {name}": getattr(col("discount"), name)() for name in REDUCTIONS},
        )
        for name, reduce in REDUCTIONS.items():
            rewards = [[r - 3 for r in row] for row in ragged.column("reward")]
            for column, rows in (("reward", rewards), *((c, ragged.column(c)) for c in ("obs", "discount"))):
                expected = [reduce(row, axis=0) for row in rows]
                assert np.allclose(data[f"{column} {name}"], expected, rtol=1e-5), (column, name)

    def test_reductions_over_another_dimension_are_numpy_s(self, make: Way) -> None:
        ragged = Ragged(make)
        data = ragged.sample(**{name: getattr(col("obs"), name)("d0") for name in REDUCTIONS})
        for name, reduce in REDUCTIONS.items():
            assert np.allclose(data[name], reduce(ragged.padded(ragged.column("obs")), axis=2)), name

    def test_a_cumulative_product_is_of_all_up_to_each(self, make: Way) -> None:
        ragged = Ragged(make)
        found = ragged.sample(p=(col("discount") * 0.9).cumulative_product())["p"]
        expected = [[np.prod([0.9 * float(d) for d in row[:t + 1]]) for t in range(len(row))]
                    for row in ragged.column("discount")]
        assert np.allclose(found, ragged.padded(expected), rtol=1e-5)

    def test_masks_and_padding_show_where_items_end(self, make: Way) -> None:
        ragged = Ragged(make)
        data = ragged.sample(
            mask=col("reward").mask(), late=col("obs")[2:].mask(), padded=col("reward").pad(-7.0),
            wide=col("action").pad(-1, length=6), obs=col("obs")[1:].pad(5.0),
        )
        lengths = [len(row) for row in ragged.column("reward")]
        assert data["mask"].tolist() == [[t < n for t in range(max(lengths))] for n in lengths]
        assert data["late"].tolist() == [[t < n - 1 for t in range(max(lengths) - 1)] for n in lengths]
        assert (data["padded"] == ragged.padded(ragged.column("reward"), -7.0)).all()
        assert (data["wide"] == ragged.padded(ragged.column("action"), -1, 6)).all()
        assert (data["obs"] == ragged.padded([row[1:] for row in ragged.column("obs")], 5.0)).all()
        with pytest.raises(UserError, match=r"pad\(length=2\) is shorter than an item of 4 steps"):
            Ragged(make).sample(short=col("reward").pad(length=2))

    def test_arithmetic_is_done_number_by_number(self, make: Way) -> None:
        ragged = Ragged(make)
        data = ragged.sample(
            twice=col("reward") * 2.0, both=col("reward") * col("discount"), plus=col("reward") + col("discount"),
            last=col("reward")[-1] + 1.0, whole=col("action") * 3, half=col("action") * 0.5,
        )
        reward, discount = ragged.column("reward"), ragged.column("discount")
        pairs = list(zip(reward, discount, strict=True))
        assert np.allclose(data["twice"], ragged.padded([[2 * r for r in row] for row in reward]))
        assert data["twice"].dtype == np.float32 and data["whole"].dtype == np.int64 and data["half"].dtype.kind == "f"
        assert np.allclose(data["both"], ragged.padded([[r * d for r, d in zip(*p, strict=True)] for p in pairs]))
        assert np.allclose(data["plus"], ragged.padded([[r + d for r, d in zip(*p, strict=True)] for p in pairs]))
        assert np.allclose(data["last"], [row[-1] + 1 for row in reward])
        assert (data["whole"] == ragged.padded([[3 * a for a in row] for row in ragged.column("action")])).all()

    def test_whatever_is_added_there_is_nothing_beyond_an_item_s_end(self, make: Way) -> None:
        ragged = Ragged(make)
        found = ragged.sample(plus=col("reward") + 1.0)["plus"]
        assert np.allclose(found, ragged.padded([[r + 1 for r in row] for row in ragged.column("reward")]))

    def test_what_was_computed_is_cut_where_each_item_is_cut(self, make: Way) -> None:
        ragged = Ragged(make)
        data = ragged.sample(front=(col("obs") * 2.0)[:-1], back=(col("obs") * 2.0)[1:], end=(col("obs") * 2.0)[-1])
        obs = ragged.column("obs")
        assert (data["front"] == ragged.padded([[2 * o for o in row[:-1]] for row in obs])).all()
        assert (data["back"] == ragged.padded([[2 * o for o in row[1:]] for row in obs])).all()
        assert (data["end"] == np.array([2 * row[-1] for row in obs])).all()

    def test_what_was_computed_is_padded_like_a_column(self, make: Way) -> None:
        ragged = Ragged(make)
        found = ragged.sample(r=(col("reward") * 2.0).pad(-7.0))["r"]
        assert (found == ragged.padded([[2 * r for r in row] for row in ragged.column("reward")], -7.0)).all()

    def test_transposing_turns_dimensions_by_their_names(self, make: Way) -> None:
        ragged = Ragged(make)
        data = ragged.sample(
            turned=col("obs").transpose("time", "d0", "batch"), stacked=col("action").stack(2).transpose(
                "time", "batch", "stack"), summed=col("reward").transpose("time", "batch").sum(),
        )
        assert (data["turned"] == ragged.padded(ragged.column("obs")).transpose(1, 2, 0)).all()
        assert data["stacked"].shape == (4, ragged.count, 2)
        assert np.allclose(data["summed"], [sum(row) for row in ragged.column("reward")])
        with pytest.raises(UserError, match="must name each of batch, time, d0 once"):
            Ragged(make).sample(turned=col("obs").transpose("time", "batch"))

    def test_concatenating_puts_fields_behind_one_another(self, make: Way) -> None:
        ragged = Ragged(make, [3, 3])
        data = ragged.sample(
            time=concatenate(col("reward"), col("discount")[:2], over="time"),
            wide=concatenate(col("obs"), col("obs") * 2.0, over="d0"),
            mixed=concatenate(col("obs").stack(2)[0], col("obs").stack(3)[-1], over="stack"),
        )
        reward, discount = ragged.column("reward"), ragged.column("discount")
        assert (data["time"] == np.array([[*r, *d[:2]] for r, d in zip(reward, discount, strict=True)])).all()
        obs = ragged.padded(ragged.column("obs"))
        assert (data["wide"] == np.concatenate([obs, 2 * obs], axis=2)).all()
        assert data["mixed"].shape == (ragged.count, 5, 2)
        with pytest.raises(UserError, match="must have no padding"):
            Ragged(make).sample(wrong=concatenate(col("reward"), col("discount"), over="time"))

    def test_dtypes_change_only_when_asked(self, make: Way) -> None:
        ragged = Ragged(make)
        data = ragged.sample(
            f=col("action").astype("float32"), a=col("action")[0], d=(col("discount") * 0.99).product()
        )
        assert data["f"].dtype == np.float32 and data["a"].dtype == np.int64 and data["d"].dtype == np.float32

    @pytest.mark.parametrize("lengths", [[3, 3], [3, 2]], ids=["alike", "ragged"])
    def test_sums_and_products_of_small_numbers_do_not_overflow(self, make: Way, lengths: list[int]) -> None:
        columns = {"b": ArraySpec((), "uint8"), "f": ArraySpec((), "bool")}
        client, _ = make(tables.queue("t", 8, columns))
        with client.writer() as writer:
            for length in lengths:
                for _ in range(length):
                    writer.append({"b": 200, "f": True})
                writer.create_item("t", 1.0, {name: writer.history[name][:] for name in columns})
                writer.end_episode()
        data = client.sample("t", 2, Trajectory(b=col("b").sum(), f=col("f").sum(), p=col("b").product())).data
        assert data["b"].tolist() == [200 * n for n in lengths] and data["f"].tolist() == lengths
        assert data["p"].tolist() == [200**n for n in lengths]

    def test_a_discounted_sum_of_whole_numbers_keeps_its_fraction(self, make: Way) -> None:
        columns = {"r": ArraySpec((), "int8"), "discount": ArraySpec((), "float32")}
        client, _ = make(tables.queue("t", 8, columns))
        with client.writer() as writer:
            writer.append({"r": 1, "discount": 1.0})
            writer.append({"r": 1, "discount": 1.0})
            writer.create_item("t", 1.0, {name: writer.history[name][:] for name in columns})
        found = client.sample("t", 1, Trajectory(ret=col("r").discounted_sum(0.5)[0])).data["ret"]
        assert found.tolist() == [1.5]

    def test_what_cannot_be_computed_is_refused_in_words(self, make: Way) -> None:
        client, _ = make(replay(signature=STEP, lead=3))
        with client.writer() as writer:
            writer.append(step(1))
            writer.append(step(2))
            writer.create_item("t", 1.0, {name: writer.history[name][:] for name in STEP})
        reward, obs = col("reward"), col("obs")
        wrongs: list[Callable[[], Field]] = [
            lambda: reward[0][0], lambda: reward[::2], lambda: reward[0].mask(), lambda: reward[0].pad(1.0),
            lambda: reward.sum("d0"), lambda: obs.stack(0), lambda: reward.discounted_sum(0.9, n=0),
            lambda: obs + reward, lambda: obs[:, 0], lambda: concatenate(over="time"),
            lambda: concatenate(obs, reward, over="time"), lambda: obs.transpose("batch", "batch", "d0"),
        ]
        for wrong in wrongs:
            with pytest.raises(UserError):
                client.sample("t", 1, Trajectory(wrong=wrong()))

    def test_columns_of_different_lengths_do_not_add_up(self, make: Way) -> None:
        ragged = Ragged(make, [3, 2])
        with pytest.raises(UserError):
            ragged.sample(wrong=col("obs").sum("d0") + col("reward"))
        with pytest.raises(UserError, match="shows nothing"):
            Trajectory()

    def test_numbers_of_every_kind_come_back_as_they_went(self, make: Way) -> None:
        kinds = ["bool", "int8", "uint16", "int32", "uint64", "float16", "float64"]
        shapes = {"one": (), "table": (2, 3), "empty": (0,)}
        columns = {f"{kind} {name}": ArraySpec(shape, kind) for kind in kinds for name, shape in shapes.items()}
        client, _ = make(tables.queue("t", 8, columns))
        values = {name: np.resize([1, 0, 1], spec.shape).astype(spec.dtype) for name, spec in columns.items()}
        with client.writer() as writer:
            writer.append(values)
            writer.create_item("t", 1.0, {name: writer.history[name][:] for name in columns})
        data = client.sample("t", 1).data
        for name, value in values.items():
            assert data[name].dtype == value.dtype and np.array_equal(data[name], value[None, None]), name


class FetchingAhead:
    """`Client.sampler`."""

    def test_one_that_fetches_ahead_keeps_the_order_of_a_queue(self, make: Way) -> None:
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

    def test_batches_come_without_end_and_shaped(self, make: Way) -> None:
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

    def test_asking_a_closed_one_is_answered(self, make: Way) -> None:
        client, _ = make(replay())
        put(client, "t", [0])
        sampler = client.sampler("t", 1)
        next(sampler)
        sampler.close()
        asking = Background(lambda: list(itertools.islice(sampler, 4)))
        with contextlib.suppress(PappusError):
            assert len(asking.result(2.0)) < 4, "a closed one has no batches without end"

    def test_closing_wakes_whoever_waits_for_a_batch(self, make: Way) -> None:
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
        with pytest.raises(UserError, match="prefetch=0 fetches nothing"):
            client.sampler("t", 1, prefetch=0)


class Checkpoints:
    """A service on disk, and back."""

    TABLES = (
        replay("uniform", 6), replay("ranked", 6, prioritized(0.7), MIN_HEAP), tables.queue("queue", 8, NUMBER),
        replay("thrice", 6, MAX_HEAP, LIFO, rate_limiters.sample_to_insert_ratio(3.0, 2, 30.0), max_times_sampled=3),
    )

    def filled(self, make: Way) -> tuple[Client, Service]:
        client, service = make(self.TABLES, max_steps=64, chunk_length=4)
        with client.writer(history=8) as writer:
            for i in range(6):
                writer.append({"x": i})
                for table in ("uniform", "ranked", "queue", "thrice"):
                    writer.create_item(table, 1.0 + i % 3, {"x": writer.history["x"][-3:]})
                if i % 4 == 3:
                    writer.end_episode()
        for table in ("uniform", "ranked", "queue", "thrice"):
            client.sample(table, 2)
        return client, service

    def fresh(self, make: Way, **options: Any) -> tuple[Client, Service]:
        return make(self.TABLES, **{"max_steps": 64, "chunk_length": 4, **options})

    def assert_unused(self, client: Client) -> None:
        for table in client.tables:
            info = client.info(table)
            assert [info[name] for name in ("size", "inserts", "samples", "deletes", "chunks")] == [0] * 5

    def assert_alike(self, one: Client, two: Client, table: str, count: int = 3, turns: int = 5) -> None:
        """Equal counts, and from now on equal draws."""
        assert one.info(table) == two.info(table)
        for _ in range(turns):
            first, second = (client.sample(table, count, timeout=SECONDS) for client in (one, two))
            assert first.data["x"].tolist() == second.data["x"].tolist()
            for field in ("keys", "probabilities", "priorities", "times_sampled", "ages"):
                assert getattr(first.info, field).tolist() == getattr(second.info, field).tolist(), field
            assert (first.info.table_size, first.info.mass) == (second.info.table_size, second.info.mass)

    def test_what_was_saved_comes_back_as_it_was(self, make: Way, tmp_path: Path) -> None:
        client, _ = self.filled(make)
        chunks_become(client, 2, "queue")
        path = client.checkpoint(str(tmp_path / "saved"))
        assert sorted(file.name for file in Path(path).iterdir()) == [
            "chunks.bin", "manifest.json", "tables.safetensors"
        ]
        again, service = self.fresh(make)
        load(service, path)
        for table, turns in (("uniform", 5), ("ranked", 5), ("queue", 2), ("thrice", 4)):
            self.assert_alike(client, again, table, count=2, turns=turns)

    def test_draws_are_alike_even_where_items_went_before(self, make: Way, tmp_path: Path) -> None:
        specs = [replay("ranked", 6, prioritized(0.7), MIN_HEAP), replay("old", 6, FIFO, UNIFORM), replay("uniform", 6)]
        client, service = make(specs)
        for table in ("ranked", "old", "uniform"):
            put(client, table, range(15), [3.0, 1.0, 2.0] * 5)
        save(service, tmp_path / "saved")
        again, service = make(specs)
        load(service, tmp_path / "saved")
        for table in ("ranked", "old", "uniform"):
            self.assert_alike(client, again, table, count=8)

    def test_what_comes_after_loading_is_as_it_would_have_been(self, make: Way, tmp_path: Path) -> None:
        client, service = self.filled(make)
        save(service, tmp_path / "saved")
        again, service = self.fresh(make)
        load(service, tmp_path / "saved")
        for one in (client, again):
            put(one, "ranked", [70, 80], [9.0, 0.5])
            put(one, "queue", [70, 80])
        assert client.info("ranked")["size"] == again.info("ranked")["size"] == 6
        for table in ("ranked", "queue"):
            first, second = (one.sample(table, 6) for one in (client, again))
            assert first.data["x"].tolist() == second.data["x"].tolist()
            assert first.info.priorities.tolist() == second.info.priorities.tolist()

    def test_keys_do_not_repeat_after_loading(self, make: Way, tmp_path: Path) -> None:
        client, service = make(replay(size=4, sampler=FIFO, max_times_sampled=1))
        put(client, "t", range(4))
        seen = client.sample("t", 3).keys.tolist()
        save(service, tmp_path / "saved")
        again, service = make(replay(size=4, sampler=FIFO, max_times_sampled=1))
        load(service, tmp_path / "saved")
        put(again, "t", range(3))
        seen += again.sample("t", 4).keys.tolist()
        assert len(set(seen)) == 7

    def test_limiters_go_on_where_they_were(self, make: Way, tmp_path: Path) -> None:
        limiter = rate_limiters.sample_to_insert_ratio(1.0, 1, 2.0)
        client, service = make(replay(limiter=limiter))
        put(client, "t", [0, 1])
        client.sample("t", 3)
        client.move_bounds("t", least=-1.5)
        save(service, tmp_path / "saved")
        again, service = make(replay(limiter=limiter))
        load(service, tmp_path / "saved")
        assert again.explain("t") == client.explain("t")
        with pytest.raises(TimeoutError):
            again.sample("t", 1, timeout=0)
        for one in (client, again):
            put(one, "t", [2])
            assert len(drawn(one, "t", 3, timeout=0)) == 1, "a balance of 0, and a band down to -1.5"

    def test_steps_that_tables_share_are_saved_once_and_shared_again(self, make: Way, tmp_path: Path) -> None:
        two = [replay("a"), replay("b")]
        client, service = make(two, max_steps=32, chunk_length=4)
        with client.writer() as writer:
            for i in range(8):
                writer.append({"x": i})
            for table in ("a", "b"):
                writer.create_item(table, 1.0, {"x": writer.history["x"][2:7]})
        save(service, tmp_path / "saved")
        assert (tmp_path / "saved" / "chunks.bin").stat().st_size == 2 * 4 * 8
        again, service = make(two, max_steps=32, chunk_length=4)
        load(service, tmp_path / "saved")
        assert chunks(again, "a") == 2 and again.sample("b", 1).data["x"].tolist() == [[2, 3, 4, 5, 6]]
        again.reset("a")
        assert chunks(again, "a") == 2
        again.reset("b")
        chunks_become(again, 0, "a")

    def test_an_empty_service_can_be_saved(self, make: Way, tmp_path: Path) -> None:
        client, _ = self.fresh(make)
        path = client.checkpoint(str(tmp_path / "saved"))
        again, service = self.fresh(make)
        load(service, path)
        self.assert_unused(again)
        put(again, "uniform", [1])
        assert drawn(again, "uniform") == [1]

    def test_saving_frees_what_it_held(self, make: Way, tmp_path: Path) -> None:
        client, service = self.filled(make)
        client.checkpoint(str(tmp_path / "saved"))
        eventually(lambda: only_items_hold_chunks(service), SECONDS)
        for table in client.tables:
            client.reset(table)
        chunks_become(client, 0, "queue")

    def test_a_folder_that_exists_is_left_alone(self, make: Way, tmp_path: Path) -> None:
        client, service = self.filled(make)
        (tmp_path / "saved").mkdir()
        (tmp_path / "saved" / "mine").write_text("precious")
        with pytest.raises(UserError, match="exists already; give a new name"):
            client.checkpoint(str(tmp_path / "saved"))
        assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["mine"]
        eventually(lambda: only_items_hold_chunks(service), SECONDS)

    def test_where_nothing_can_be_written_a_sentence_says_so_and_nothing_is_held(
        self, make: Way, tmp_path: Path
    ) -> None:
        client, service = self.filled(make)
        (tmp_path / "file").write_text("")
        with pytest.raises(RunError, match="cannot be written"):
            client.checkpoint(str(tmp_path / "file" / "saved"))
        with pytest.raises(PappusError):
            client.checkpoint(str(tmp_path / ("long" * 100)))
        eventually(lambda: only_items_hold_chunks(service), SECONDS)
        assert present(client, "uniform")
        assert [file.name for file in tmp_path.iterdir() if not file.is_socket()] == ["file"]

    def test_a_service_that_was_used_takes_no_checkpoint(self, make: Way, tmp_path: Path) -> None:
        _, service = self.filled(make)
        save(service, tmp_path / "saved")
        with pytest.raises(UserError, match="a service that nobody has used yet"):
            load(service, tmp_path / "saved")
        client, service = self.fresh(make)
        with client.writer() as writer:
            writer.append({"x": 1})
            writer.flush()
            with pytest.raises(UserError, match="nobody has used yet"):
                load(service, tmp_path / "saved")

    def refused(self, make: Way, path: Path, **options: Any) -> tuple[Client, Service]:
        """A service that would not take a checkpoint, and is as unused as before."""
        client, service = self.fresh(make, **options)
        with pytest.raises(PappusError) as raised:
            load(service, path)
        assert str(path) in str(raised.value)
        self.assert_unused(client)
        return client, service

    @pytest.mark.parametrize("name", ["chunks.bin", "tables.safetensors", "manifest.json"])
    def test_a_damaged_file_is_refused_and_the_service_stays_unused(
        self, make: Way, tmp_path: Path, name: str
    ) -> None:
        _, service = self.filled(make)
        saved = save(service, tmp_path / "saved")
        whole = (saved / name).read_bytes()
        middle = len(whole) // 2
        client, service = self.fresh(make)
        for damaged in (
            whole[:middle], whole[:-1], whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1:], b"",
            whole + b"more", np.random.default_rng(0).bytes(len(whole)), None,
        ):
            if damaged is None:
                (saved / name).unlink()
            else:
                (saved / name).write_bytes(damaged)
            with pytest.raises(PappusError) as raised:
                load(service, saved)
            assert str(saved) in str(raised.value)
            self.assert_unused(client)
        (saved / name).write_bytes(whole)
        load(service, saved)
        assert client.info("uniform")["size"] == 6

    @pytest.mark.parametrize("word", ["counts", "random", "limiter", "table"])
    def test_a_manifest_without_a_word_is_refused_and_the_service_stays_unused(
        self, make: Way, tmp_path: Path, word: str
    ) -> None:
        _, service = self.filled(make)
        saved = save(service, tmp_path / "saved")
        manifest = json.loads((saved / "manifest.json").read_text())
        del manifest["tables"][1][word]
        (saved / "manifest.json").write_text(json.dumps(manifest))
        self.refused(make, saved)

    def test_a_manifest_with_another_number_is_refused(self, make: Way, tmp_path: Path) -> None:
        _, service = self.filled(make)
        saved = save(service, tmp_path / "saved")
        manifest = json.loads((saved / "manifest.json").read_text())
        manifest["tables"][0]["counts"][0] += 1
        (saved / "manifest.json").write_text(json.dumps(manifest, indent=1))
        self.refused(make, saved)

    def test_what_is_no_checkpoint_is_refused(self, make: Way, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        (tmp_path / "file").write_text("{}")
        (tmp_path / "foreign").mkdir()
        (tmp_path / "foreign" / "manifest.json").write_text('{"format": "pappus replay 99"}')
        (tmp_path / "list").mkdir()
        (tmp_path / "list" / "manifest.json").write_text("[1, 2]")
        for name in ("empty", "file", "foreign", "list", "absent"):
            self.refused(make, tmp_path / name)

    @pytest.mark.parametrize(
        "others",
        [
            [replay("other", 6)], [replay("uniform", 6)], [replay("uniform", 7), *TABLES[1:]],
            [*TABLES, replay("fifth")],
            [replay("uniform", 6, signature={"x": ArraySpec((), "float64")}),
             *(replay(t.name, t.max_size, signature={"x": ArraySpec((), "float64")}) for t in TABLES[1:])],
        ],
        ids=["names", "fewer", "size", "more", "columns"],
    )
    def test_a_checkpoint_of_other_tables_is_refused(self, make: Way, tmp_path: Path, others: list[Table]) -> None:
        _, service = self.filled(make)
        save(service, tmp_path / "saved")
        client, service = make(others, max_steps=64, chunk_length=4)
        with pytest.raises(UserError, match="checkpoint"):
            load(service, tmp_path / "saved")
        self.assert_unused(client)

    def test_priorities_that_a_table_cannot_have_are_refused_and_the_service_stays_unused(
        self, make: Way, tmp_path: Path
    ) -> None:
        client, service = make([replay("a"), replay("t", sampler=MIN_HEAP)])
        put(client, "a", [1])
        put(client, "t", [1, 2], [2.0, -1.0])
        save(service, tmp_path / "saved")
        client, service = make([replay("a"), replay("t", sampler=prioritized(1.0))])
        with pytest.raises(PappusError):
            load(service, tmp_path / "saved")
        self.assert_unused(client)
        put(client, "t", [3])
        assert drawn(client, "t") == [3]

    def test_a_checkpoint_that_does_not_fit_is_refused_with_the_steps_that_it_needs(
        self, make: Way, tmp_path: Path
    ) -> None:
        client, service = make(replay(size=60), max_steps=60, chunk_length=1)
        put(client, "t", range(60), together=10, history=10)
        save(service, tmp_path / "saved")
        client, service = make(replay(size=60), max_steps=20, chunk_length=1)
        with pytest.raises(UserError, match="raise max_steps to that"):
            load(service, tmp_path / "saved")
        self.assert_unused(client)
        self.refused(make, self.saved_with(make, tmp_path / "other", chunk_length=2))

    def saved_with(self, make: Way, path: Path, **options: Any) -> Path:
        _, service = self.fresh(make, **options)
        return save(service, path)

    def test_saving_goes_on_beside_inserts_and_samples(self, make: Way, tmp_path: Path) -> None:
        client, service = make(replay(size=64), max_steps=400, chunk_length=4)
        stop = threading.Event()

        def write() -> int:
            with make.client(service).writer(history=4) as writer:
                for i in itertools.count():
                    writer.append({"x": i})
                    if i >= 2:
                        writer.create_item("t", 1.0, {"x": writer.history["x"][-3:]})
                    if stop.is_set():
                        return i - 1
            raise AssertionError

        writing = Background(write)
        eventually(lambda: client.info("t")["inserts"] > 100, SECONDS)
        saved = []
        for turn in range(4):
            saved.append(client.checkpoint(str(tmp_path / f"saved{turn}")))
            client.sample("t", 8)
        stop.set()
        assert writing.result() == client.info("t")["inserts"]
        before = 0
        for path in saved:
            again, fresh = make(replay(size=64), max_steps=400, chunk_length=4)
            load(fresh, path)
            info = again.info("t")
            assert info["size"] == 64 and info["inserts"] >= max(before, 100)
            batch = again.sample("t", 500)
            x = batch.data["x"]
            assert (np.diff(x, axis=1) == 1).all() and x.min() == info["inserts"] - 64
            assert x.max() == info["inserts"] + 1
            before = info["inserts"]


class ReplayContract(
    DrawingAndDropping, Waiting, Items, Steps, Writing, Fields, FetchingAhead, Checkpoints
):
    """All of it. Provide the fixture `make`."""

    @pytest.fixture
    def make(self) -> Iterator[Way]:
        raise NotImplementedError
