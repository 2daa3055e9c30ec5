from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pappus.errors import UserError
from pappus.replay.tables.rate_limiters import RateLimiter, min_size, queue, sample_to_insert_ratio


def can_insert(limiter: RateLimiter, count: int = 1) -> bool:
    return limiter.inserts_now(count) == count


def can_sample(limiter: RateLimiter, count: int = 1) -> bool:
    return limiter.samples_now(count) == count


def allowed_by_the_rule(limiter: RateLimiter, samples: int) -> bool:
    return limiter.size >= limiter.min_size and limiter.balance - samples >= limiter.least


def test_min_size_holds_back_samples_and_never_inserts() -> None:
    limiter = min_size(3)
    for inserted in range(10):
        assert can_insert(limiter, 1000) and can_sample(limiter, 1000) == (inserted >= 3)
        limiter.inserts += 1


def test_a_table_that_shrinks_below_its_size_closes_again() -> None:
    limiter = min_size(2)
    limiter.inserts = 2
    assert can_sample(limiter)
    limiter.deletes = 1
    assert not can_sample(limiter) and limiter.explain() == "samples wait for 1 more items: 1 of at least 2 are here"


def test_a_queue_takes_its_size_and_gives_each_item_once() -> None:
    limiter = queue(2)
    assert can_insert(limiter) and not can_sample(limiter)
    limiter.inserts = 2
    assert not can_insert(limiter) and can_sample(limiter, 2) and not can_sample(limiter, 3)
    assert "inserts wait for 1 more samples" in limiter.explain()
    limiter.samples = limiter.deletes = 1
    assert can_insert(limiter) and not can_insert(limiter, 2) and can_sample(limiter)
    limiter.samples = limiter.deletes = 2
    assert not can_sample(limiter) and limiter.explain().startswith("samples wait for 1 more items")


def test_the_ratio_is_kept_within_its_band() -> None:
    limiter = sample_to_insert_ratio(samples_per_insert=4.0, min_size=10, error_buffer=8.0)
    while can_insert(limiter):
        limiter.inserts += 1
    assert limiter.inserts == 12, "min_size, and as many more as the band holds"
    assert limiter.samples_now(100) == 16 and not can_sample(limiter, 17)
    limiter.samples += 16
    assert not can_sample(limiter) and "samples wait for 1 more inserts" in limiter.explain() and can_insert(limiter, 4)


@settings(max_examples=200, deadline=None)
@given(
    ratio=st.sampled_from([0.1, 0.5, 1.0, 3.0, 32.0]), size=st.integers(1, 50), slack=st.floats(1, 4),
    turns=st.lists(st.booleans(), max_size=300),
)
def test_one_side_can_always_move_and_the_balance_never_leaves_its_band(
    ratio: float, size: int, slack: float, turns: list[bool]
) -> None:
    limiter = sample_to_insert_ratio(ratio, size, slack * max(1.0, ratio))
    for inserting in turns:
        assert can_insert(limiter) or can_sample(limiter), limiter.explain()
        if inserting and can_insert(limiter):
            limiter.inserts += 1
        elif not inserting and can_sample(limiter):
            limiter.samples += 1
        if limiter.size > size:
            assert limiter.least <= limiter.balance <= limiter.most


def test_samples_now_is_the_most_that_can_be_sampled() -> None:
    limiter = sample_to_insert_ratio(2.5, 4, 5.0)
    limiter.inserts = 5
    for wanted in range(12):
        now = limiter.samples_now(wanted)
        assert now == 0 or allowed_by_the_rule(limiter, now)
        assert now == wanted or not allowed_by_the_rule(limiter, now + 1)
    assert min_size(1).samples_now(7) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((0.0, 1, 0.0, 1.0), "samples_per_insert=0.0 must be a positive number"),
        ((math.nan, 1, 0.0, 1.0), "samples_per_insert=nan"),
        ((1.0, 0, 0.0, 1.0), "min_size=0 must be at least 1"),
        ((1.0, 1, 5.0, 1.0), "bounds 5.0 … 1.0 hold nothing"),
        ((1.0, 1, math.nan, 1.0), "hold nothing"),
        ((1.0, 10, 9.5, 10.5), "never open again once the balance is 10"),
    ],
)
def test_a_limiter_that_can_never_open_is_refused(arguments: tuple[float, int, float, float], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        RateLimiter(*arguments)


def test_a_band_narrower_than_a_step_is_refused_with_the_least_that_works() -> None:
    with pytest.raises(UserError, match=r"error_buffer=3\.0 is smaller than one step of either side; use at least 8"):
        sample_to_insert_ratio(8.0, 100, 3.0)


def test_bounds_can_move_during_a_wait_and_a_wrong_move_changes_nothing() -> None:
    limiter = queue(1)
    limiter.inserts = 1
    assert not can_insert(limiter)
    limiter.move(most=5.0)
    assert can_insert(limiter, 4) and not can_insert(limiter, 5)
    with pytest.raises(UserError):
        limiter.move(least=6.0)
    assert (limiter.least, limiter.most, limiter.min_size) == (0.0, 5.0, 1)


def test_an_open_limiter_explains_that_it_is_open() -> None:
    limiter = min_size(1)
    limiter.inserts = 3
    assert limiter.explain() == "open: 3 items, balance 3"
