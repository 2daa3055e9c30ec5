from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pappus.errors import UserError
from pappus.replay.tables.built_in_selectors import BUILT_IN, Fifo, Prioritized, Uniform
from pappus.replay.tables.heap_selectors import MinHeap
from pappus.replay.tables.selectors import Selector

CAPACITY = 12
MAKE: dict[str, Callable[[], Selector]] = {name: partial(make, CAPACITY, 1.0) for name, make in BUILT_IN.items()}
Model = dict[int, tuple[float, int]]
"""Place → (priority, age), the plain truth."""


def allowed(kind: str, model: Model) -> set[int]:
    """Which places may be drawn."""
    if kind in ("fifo", "lifo"):
        return {(min if kind == "fifo" else max)(model, key=lambda place: model[place][1])}
    if kind in ("min_heap", "max_heap"):
        best = (min if kind == "min_heap" else max)(priority for priority, _ in model.values())
        return {min((place for place in model if model[place][0] == best), key=lambda place: model[place][1])}
    return {place for place, (priority, _) in model.items() if priority > 0 or kind == "uniform"}


@pytest.mark.parametrize("kind", MAKE)
@settings(max_examples=150, deadline=None)
@given(
    turns=st.lists(
        st.tuples(st.sampled_from("iud"), st.lists(st.tuples(st.integers(0, 11), st.integers(0, 5)), max_size=6)),
        max_size=25,
    )
)
def test_a_selector_draws_what_its_rule_says_after_any_history(
    kind: str, turns: list[tuple[str, list[tuple[int, int]]]]
) -> None:
    selector, model, age, rng = MAKE[kind](), Model(), 0, np.random.default_rng(0)
    for turn, entries in turns:
        chosen = {place: float(priority) for place, priority in entries if (place in model) == (turn != "i")}
        places, priorities = np.array(list(chosen), np.int64), np.array(list(chosen.values()))
        if turn == "i":
            selector.insert(places, priorities)
        elif turn == "u":
            selector.update(places, priorities)
        else:
            selector.delete(places)
        for place, priority in chosen.items():
            age += turn == "i"
            if turn == "d":
                del model[place]
            else:
                model[place] = (priority, age if turn == "i" else model[place][1])
        assert len(selector.in_use()) == len(model)
        if model and (choices := allowed(kind, model)):
            drawn, probabilities = selector.sample(8, rng)
            assert set(drawn.tolist()) <= choices and ((probabilities > 0) & (probabilities <= 1)).all()


@pytest.mark.parametrize(("kind", "weights"), [("uniform", [1, 1, 1, 1]), ("prioritized", [1, 2, 3, 6])])
def test_draws_have_the_probabilities_that_are_reported(kind: str, weights: list[int]) -> None:
    selector, count = MAKE[kind](), 100_000
    selector.insert(np.array([3, 5, 7, 11]), np.array(weights, np.float64))
    selector.insert(np.array([2]), np.array([9.0]))
    selector.delete(np.array([2]))
    drawn, probabilities = selector.sample(count, np.random.default_rng(1))
    chi_square = 0.0
    for place, weight in zip((3, 5, 7, 11), weights, strict=True):
        share = weight / sum(weights)
        assert np.allclose(probabilities[drawn == place], share)
        chi_square += ((drawn == place).sum() - count * share) ** 2 / (count * share)
    assert chi_square < 16.27, "0.999 of a chi-square with 3 degrees of freedom lies below"


def test_alpha_bends_priorities() -> None:
    selector = Prioritized(4, 0.5)
    selector.insert(np.array([0, 1]), np.array([1.0, 9.0]))
    drawn, probabilities = selector.sample(100, np.random.default_rng(0))
    assert np.allclose(probabilities, np.where(drawn == 1, 0.75, 0.25))
    flat = Prioritized(4, 0.0)
    flat.insert(np.array([0, 1]), np.array([1.0, 9.0]))
    flat.insert(np.array([2]), np.array([0.0]))
    drawn, probabilities = flat.sample(100, np.random.default_rng(0))
    assert np.allclose(probabilities, 0.5) and 2 not in drawn, "all alike, but for a priority of 0"


@pytest.mark.parametrize("wrong", [-1.0, np.nan, np.inf])
def test_what_is_no_priority_or_no_alpha_is_refused(wrong: float) -> None:
    selector = Prioritized(4, 0.6)
    with pytest.raises(UserError, match="negative or not finite"):
        selector.insert(np.array([0]), np.array([wrong]))
    with pytest.raises(UserError, match="alpha="):
        Prioritized(4, wrong)


def test_a_heap_with_many_updates_stays_small() -> None:
    heap = MinHeap(CAPACITY)
    heap.insert(np.arange(10), np.arange(10.0))
    for turn in range(10_000):
        heap.update(np.array([turn % 10]), np.array([float(turn)]))
    assert len(heap._entries) <= 2 * 10 + 64 + 1 and heap.sample(1, np.random.default_rng(0))[0][0] == 0


@pytest.mark.parametrize("kind", MAKE)
def test_distinct_draws_name_places_once_and_leaves_everything_as_it_was(kind: str) -> None:
    selector, rng = MAKE[kind](), np.random.default_rng(3)
    places, priorities = np.arange(8), np.array([3.0, 1.0, 4.0, 1.5, 9.0, 2.0, 6.0, 5.0])
    selector.insert(places, priorities)
    selector.update(np.array([2]), np.array([7.0]))
    selector.update(np.array([2]), np.array([4.0]))
    selector.delete(np.array([6]))
    before = selector.total()
    for count in (1, 3, 7):
        chosen, probabilities = selector.sample(count, rng, distinct=True)
        assert len(set(chosen.tolist())) == count and 6 not in chosen
        assert ((probabilities > 0) & (probabilities <= 1)).all()
    assert len(selector.in_use()) == 7 and selector.total() == pytest.approx(before)


def test_distinct_draws_follow_the_order_of_the_selector() -> None:
    rng, priorities = np.random.default_rng(0), np.array([3.0, 1.0, 2.0])
    expected = {"fifo": [5, 0, 7], "lifo": [7, 0, 5], "min_heap": [0, 7, 5], "max_heap": [5, 7, 0]}
    for kind, order in expected.items():
        selector = MAKE[kind]()
        selector.insert(np.array([5, 0, 7]), priorities)
        assert selector.sample(3, rng, distinct=True)[0].tolist() == order


def test_distinct_prioritized_draws_equal_repeated_draw_and_delete() -> None:
    """The first two of three with weights 1, 2, 5: P(a, b) = w_a / 8 · w_b / (8 − w_a)."""
    selector, rng = Prioritized(CAPACITY, 1.0), np.random.default_rng(1)
    weights = np.array([1.0, 2.0, 5.0])
    selector.insert(np.arange(3), weights)
    seen = np.zeros((3, 3))
    for _ in range(8000):
        (a, b), _likely = selector.sample(2, rng, distinct=True)
        seen[a, b] += 1
    expected = 8000 * weights[:, None] / 8 * weights / (8 - weights[:, None]) * (1 - np.eye(3))
    off = ~np.eye(3, dtype=bool)
    assert seen[~off].sum() == 0
    assert ((seen[off] - expected[off]) ** 2 / expected[off]).sum() < 20.5  # five degrees of freedom, once in 1,000


def test_gaps_do_not_stop_the_order_of_age() -> None:
    selector, rng = Fifo(CAPACITY), np.random.default_rng(0)
    age: list[int] = []
    for step in range(200):
        place = next(p for p in range(CAPACITY) if p not in age)
        selector.insert(np.array([place]), np.ones(1))
        age.append(place)
        if len(age) > 6:
            gone = age.pop((step * 7) % len(age))
            selector.delete(np.array([gone]))
        count = min(4, len(age))
        assert selector.sample(count, rng, distinct=True)[0].tolist() == age[:count]


@settings(max_examples=100, deadline=None)
@given(st.permutations(range(12)), st.integers(0, 12), st.integers(0, 12))
def test_deleting_several_places_keeps_the_others(order: list[int], count: int, gone: int) -> None:
    selector, places = Uniform(12), np.array(order[:count], np.int64)
    selector.insert(places, np.ones(count))
    left = places[gone:]
    selector.delete(np.sort(places[:gone]))
    assert sorted(selector.in_use().tolist()) == sorted(left.tolist())
    selector.delete(left)
    assert len(selector.in_use()) == 0
