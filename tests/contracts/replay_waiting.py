"""A part of the contract of `replay_contract.py`: who waits, for what, and is told so."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pappus.replay.clients.sampler
from pappus.errors import PappusError, UserError
from pappus.replay.clients.writer import TrajectoryWriter
from pappus.replay.sampling.fields import Trajectory, col
from pappus.replay.tables import rate_limiters
from pappus.replay.tables import table as tables
from pappus.replay.tables.rate_limiters import RateLimiter
from tests.contracts.replay_tools import (
    NUMBER,
    SECONDS,
    Background,
    Way,
    add,
    chunks_become,
    drawn,
    keys_of,
    numbers,
    present,
    put,
    replay,
    waiting,
)
from tests.process_tools import eventually


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

    def test_inserts_never_wait_without_an_upper_bound(self, make: Way) -> None:
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

    def test_long_waits_are_explained_in_the_log(
        self, make: Way, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(pappus.replay.clients.sampler, "PATIENCE_SECONDS", 0.02)
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
        monkeypatch.setattr(pappus.replay.clients.sampler, "PATIENCE_SECONDS", 0.02)
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

    def test_a_client_can_explain_and_end_its_own_waiting_sample(self, make: Way) -> None:
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

    def test_moving_min_size_wakes_waiting_samples(self, make: Way) -> None:
        client, service = make(replay(limiter=rate_limiters.min_size(5)))
        put(client, "t", [3])
        sampling = Background(lambda: drawn(make.client(service), "t"))
        waiting(service, "t", "waits to sample")
        client.move_bounds("t", min_size=1)
        assert sampling.result() == [3]

    def test_moving_the_upper_bound_wakes_waiting_inserts(self, make: Way) -> None:
        client, service = make(replay(limiter=rate_limiters.queue(1)))
        inserting = Background(lambda: put(make.client(service), "t", range(4)))
        waiting(service, "t", "waits to insert")
        client.move_bounds("t", most=3.0)
        eventually(lambda: client.info("t")["inserts"] == 3, SECONDS)
        client.move_bounds("t", most=4.0)
        inserting.result()

    def test_moving_the_lower_bound_wakes_waiting_samples(self, make: Way) -> None:
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

    def test_a_reset_wakes_waiting_inserts(self, make: Way) -> None:
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
        session = make.session(service)
        writer = TrajectoryWriter(session, None, 4, 1)
        inserting = Background(lambda: (add(writer, "t", 1), writer.flush()))
        waiting(service, "t", "waits to insert")
        session.close()
        with pytest.raises(PappusError):
            inserting.result()
        chunks_become(client, 1)
        assert client.info("t")["size"] == 1

    def test_an_open_table_explains_that_it_is_open(self, make: Way) -> None:
        client, _ = make(replay())
        put(client, "t", [0, 1])
        assert client.explain("t") == "table 't': open: 2 items, balance 2"

    def test_explanations_name_exactly_the_waiting_clients(self, make: Way) -> None:
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

    def test_writers_that_hold_all_steps_and_no_item_do_not_wait_for_each_other(self, make: Way) -> None:
        client, service = make(replay(size=8), max_steps=17 * 4, chunk_length=4)
        envs = service.layout.num_chunks // 3
        assert service.layout.num_chunks == 3 * envs
        *first, last = (client.writer(envs=envs, history=4) for _ in range(3))

        def write(writer: TrajectoryWriter, steps: int) -> None:
            for _ in range(steps):
                writer.append({"x": np.zeros(envs, np.int64)})
            writer.flush()

        for writer in (*first, last):
            write(writer, 4)
        wait = [Background(lambda writer=writer: write(writer, 1)) for writer in first]
        eventually(lambda: service.explain("t").count("waits to write steps") == 2, SECONDS)
        with pytest.raises(UserError, match=r"would wait forever: it and 2 others hold .* raise max_steps by \d+"):
            write(last, 1)
        last.abandon()
        eventually(lambda: any(one.done for one in wait), SECONDS)
        for writer in first:  # there was room for one of them, and the other waits for it
            writer.abandon()

    def test_a_writer_waits_for_one_that_may_still_give_steps_back(self, make: Way) -> None:
        client, service = make(replay(size=8), max_steps=17 * 4, chunk_length=4)
        chunks = service.layout.num_chunks
        holds, asks = client.writer(envs=chunks, history=1), client.writer(history=1)
        holds.append({"x": np.zeros(chunks, np.int64)})
        holds.flush()

        def ask() -> None:
            asks.append({"x": 1})
            asks.flush()

        waits = Background(ask)
        waiting(service, "t", "waits to write steps")
        assert not waits.done
        holds.abandon()
        waits.result()
        asks.abandon()
