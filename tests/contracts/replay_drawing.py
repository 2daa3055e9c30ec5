"""A part of the contract of `replay_contract.py`: which item is drawn and which is dropped."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pappus.errors import UserError
from pappus.replay.tables.table import FIFO, LIFO, MAX_HEAP, MIN_HEAP, UNIFORM, Selection, prioritized
from tests.contracts.replay_tools import (
    REMOVERS,
    Way,
    drawn,
    keys_of,
    numbers,
    present,
    put,
    replay,
)


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
        ids=lambda o: o.name if isinstance(o, Selection) else "",
    )
    @pytest.mark.parametrize("count", [1, 4])
    def test_single_use_items_keep_their_order_one_by_one_and_in_batches(
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

    @pytest.mark.parametrize("order", [MIN_HEAP, MAX_HEAP], ids=lambda o: o.name)
    def test_of_equal_priorities_a_heap_takes_the_oldest(self, make: Way, order: Selection) -> None:
        client, _ = make(replay(sampler=order, max_times_sampled=1))
        put(client, "t", [5, 6, 7], [2.0, 2.0, 2.0])
        assert [drawn(client, "t")[0] for _ in range(3)] == [5, 6, 7]

    def test_a_uniform_sampler_ignores_priorities(self, make: Way) -> None:
        client, _ = make(replay(sampler=UNIFORM))
        put(client, "t", range(4), [1.0, 0.0, 50.0, 7.0])
        batch = client.sample("t", 8000)
        counts = np.bincount(numbers(batch), minlength=4)
        assert (batch.info.probabilities == 0.25).all()
        assert ((counts - 2000) ** 2 / 2000).sum() < 16.27, "0.999 of a chi-square with 3 degrees of freedom lie below"

    def test_a_prioritized_sampler_draws_in_proportion_to_powers_and_reports_the_probabilities(self, make: Way) -> None:
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

    def test_a_table_of_zero_priorities_explains_why_nothing_is_drawn(self, make: Way) -> None:
        client, _ = make(replay(sampler=prioritized(1.0)))
        put(client, "t", [5, 6], [0.0, 0.0])
        with pytest.raises((UserError, TimeoutError), match="priorit"):
            client.sample("t", 1, timeout=0.05)

    def test_single_use_items_are_drawn_by_priority_until_only_zeros_are_left(self, make: Way) -> None:
        client, _ = make(replay(sampler=prioritized(1.0), max_times_sampled=1))
        put(client, "t", range(4), [0.0, 1.0, 2.0, 0.0])
        assert sorted(drawn(client, "t", 4, timeout=0.05)) == [1, 2], "a batch of what there is"
        assert client.info("t")["size"] == 2

    @pytest.mark.parametrize(
        ("remover", "left"),
        [(FIFO, {2, 3, 4}), (LIFO, {0, 1, 4}), (MIN_HEAP, {0, 1, 4}), (MAX_HEAP, {2, 3, 4})],
        ids=lambda o: o.name if isinstance(o, Selection) else "",
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

    @pytest.mark.parametrize("remover", REMOVERS, ids=lambda o: o.name)
    def test_inserting_items_together_equals_inserting_one_by_one(
        self, make: Way, remover: Selection
    ) -> None:
        client, _ = make([replay("single", 3, remover=remover), replay("together", 3, remover=remover)])
        for table, together in (("single", 1), ("together", 2)):
            put(client, table, [5, 6, 7], [5.0, 6.0, 7.0])
            put(client, table, [1, 2], [1.0, 2.0], together=together)
        assert present(client, "single") == present(client, "together")

    @pytest.mark.parametrize("remover", [MIN_HEAP, MAX_HEAP, LIFO], ids=lambda o: o.name)
    def test_removing_several_items_follows_the_remover(self, make: Way, remover: Selection) -> None:
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

    def test_sampler_and_remover_are_independent(self, make: Way) -> None:
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
