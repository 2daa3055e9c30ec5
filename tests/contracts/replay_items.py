"""A part of the contract of `replay_contract.py`: what is known of items, and what changes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pappus.errors import PappusError, UserError
from pappus.replay.tables import rate_limiters
from pappus.replay.tables import table as tables
from pappus.replay.tables.table import FIFO, LIFO, MAX_HEAP, MIN_HEAP, prioritized
from pappus.types import ArraySpec
from tests.contracts.replay_tools import (
    SECONDS,
    STEP,
    Way,
    chunks_become,
    drawn,
    keys_of,
    numbers,
    only_items_hold_chunks,
    present,
    put,
    replay,
)
from tests.process_tools import eventually


class Items:
    """What is known of items, and what changes them."""

    @pytest.mark.parametrize("times", [1, 3])
    def test_an_item_is_removed_after_max_times_sampled(self, make: Way, times: int) -> None:
        client, _ = make(replay(max_times_sampled=times))
        put(client, "t", range(4))
        found = [drawn(client, "t")[0] for _ in range(4 * times)]
        assert Counter(found) == dict.fromkeys(range(4), times)
        assert client.info("t")["size"] == 0 and client.info("t")["deletes"] == 4
        chunks_become(client, 0)

    @pytest.mark.parametrize("times", [1, 3])
    def test_one_batch_respects_max_times_sampled(self, make: Way, times: int) -> None:
        client, _ = make(replay(sampler=FIFO, max_times_sampled=times))
        put(client, "t", range(4))
        batch = client.sample("t", 4 * times + 5, timeout=0)
        assert numbers(batch) == [number for number in range(4) for _ in range(times)]
        assert batch.info.times_sampled.tolist() == list(range(1, times + 1)) * 4

    def test_a_batch_reports_keys_probabilities_and_ages(self, make: Way) -> None:
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

    def test_updates_ignore_keys_of_removed_or_unknown_items(self, make: Way) -> None:
        client, _ = make(replay(size=2, sampler=prioritized(1.0)))
        put(client, "t", range(3))
        keys = keys_of(client, "t")
        strange = [keys[1], 0, -1, -(2**62), 2**62, keys[2]]
        assert client.update_priorities("t", np.array(strange), np.arange(1.0, 7.0)) == 2
        batch = client.sample("t", 50)
        assert set(zip(numbers(batch), batch.info.priorities.tolist(), strict=True)) == {(1, 1.0), (2, 6.0)}

    def test_the_last_priority_of_a_repeated_key_counts(self, make: Way) -> None:
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

    def test_a_reset_empties_a_table_and_its_counts(self, make: Way) -> None:
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

    def test_a_misspelt_table_suggests_the_closest_name(self, make: Way) -> None:
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
