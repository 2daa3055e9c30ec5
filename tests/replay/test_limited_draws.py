"""Many draws at once are what draw by draw would have been."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pappus.replay import Client, Service
from pappus.replay.service.checkpoint import load, save
from pappus.replay.tables.selectors import draw_at_random, draw_in_order
from pappus.replay.tables.table import FIFO, LIFO, MAX_HEAP, MIN_HEAP, UNIFORM, Selection, prioritized
from tests.contracts.replay_tools import drawn, put, replay

WEIGHTS = np.array([1.0, 2.0, 0.5, 4.0, 1.5])


def literally(
    places: list[int], before: list[int], most: int, spare: int
) -> tuple[list[int], list[float], list[int]]:
    """One draw after the other from what is left; a draw of what is gone is made again."""
    times, here, found = list(before), set(range(len(WEIGHTS))), ([], [], [])
    for place in places:
        if len(WEIGHTS) - len(here) > spare:
            break
        if place not in here:
            continue
        times[place] += 1
        for row, value in zip(found, (place, WEIGHTS[place] / WEIGHTS[list(here)].sum(), times[place]), strict=True):
            row.append(value)
        if times[place] == most:
            here.remove(place)
    return found


@settings(max_examples=300, deadline=None)
@given(
    places=st.lists(st.integers(0, 4), min_size=1, max_size=40), most=st.integers(2, 5), spare=st.integers(0, 5),
    data=st.data(),
)
def test_random_draws_skip_items_that_would_be_removed(
    places: list[int], most: int, spare: int, data: st.DataObject
) -> None:
    before = data.draw(st.lists(st.integers(0, most - 1), min_size=5, max_size=5))
    at = np.array(places)
    found = draw_at_random(at, WEIGHTS[at] / WEIGHTS.sum(), np.array(before)[at], most, spare)
    expected = literally(places, before, most, spare)
    assert found.places.tolist() == expected[0] and found.times.tolist() == expected[2]
    np.testing.assert_allclose(found.probabilities, expected[1])


def test_a_share_that_rounding_swallows_is_still_one() -> None:
    found = draw_at_random(np.array([0, 0, 1]), np.array([1.0, 1.0, 1e-300]), np.zeros(3, np.int64), 2, 5)
    assert found.probabilities.tolist() == [1.0, 1.0, 1.0]


@settings(max_examples=200, deadline=None)
@given(most=st.integers(2, 5), spare=st.integers(0, 5), count=st.integers(1, 30), data=st.data())
def test_draws_in_turn_take_each_as_often_as_it_may(most: int, spare: int, count: int, data: st.DataObject) -> None:
    before = data.draw(st.lists(st.integers(0, most - 1), min_size=5, max_size=5))
    found = draw_in_order(np.arange(5), np.array(before), most, spare, count)
    turns = [(place, time) for place in range(5) for time in range(before[place] + 1, most + 1)]
    expected = [turn for turn in turns if turn[0] <= spare][:count]
    assert list(zip(found.places.tolist(), found.times.tolist(), strict=True)) == expected


@pytest.mark.parametrize("sampler", [UNIFORM, prioritized(0.7), FIFO, LIFO, MIN_HEAP, MAX_HEAP], ids=lambda s: s.name)
def test_a_batch_takes_all_that_there_is_and_no_item_too_often(sampler: Selection) -> None:
    client = Client.of(Service([replay(size=50, sampler=sampler, max_times_sampled=3)]))
    put(client, "t", range(50), [1.0 + number % 7 for number in range(50)])
    batches = [client.sample("t", count, timeout=0) for count in (40, 90, 200)]
    assert [len(batch.keys) for batch in batches] == [40, 90, 20]
    assert set(Counter(np.concatenate([batch.keys for batch in batches]).tolist()).values()) == {3}
    assert ((batch := batches[-1]).info.probabilities <= 1).all() and batch.info.times_sampled.max() == 3


@pytest.mark.parametrize("sampler", [UNIFORM, FIFO], ids=lambda s: s.name)
def test_restored_items_beyond_the_sample_limit_are_removed_after_the_next_draw(
    sampler: Selection, tmp_path: Path
) -> None:
    service = Service([replay(sampler=sampler)])
    put(Client.of(service), "t", [1, 2])
    for _ in range(9):
        drawn(Client.of(service), "t")
    save(service, tmp_path / "saved")
    again = Service([replay(sampler=sampler, max_times_sampled=2)])
    load(again, tmp_path / "saved")
    found = Client.of(again).sample("t", 10, timeout=0)
    assert again.info("t")["size"] == 0 and set(found.info.times_sampled.tolist()) <= {1, 2}
