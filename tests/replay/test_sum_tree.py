from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pappus.replay.storage.chunks import LOOPS, NUMPY, Kernels, compiled
from pappus.replay.tables.built_in_selectors import SumTree
from pappus.types import Array

HAS_NUMBA = importlib.util.find_spec("numba") is not None
KINDS = [pytest.param("numba", marks=pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed")), "numpy"]


def kernels_of(kind: str) -> Kernels:
    return compiled(LOOPS) if kind == "numba" else NUMPY


def tree_of(kind: str, priorities: list[float] | Array) -> SumTree:
    tree = SumTree(len(priorities), kernels_of(kind))
    tree.update(np.arange(len(priorities)), np.array(priorities, np.float64))
    return tree


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=200, deadline=None)
@given(
    priorities=st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=70).filter(lambda p: sum(p) > 0),
    uniforms=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20),
)
def test_a_draw_is_where_the_plain_running_sum_passes(
    kind: str, priorities: list[float], uniforms: list[float]
) -> None:
    tree = tree_of(kind, priorities)
    places, probabilities = tree.sample(np.array(uniforms))
    ends = np.cumsum(np.array(priorities, np.longdouble))
    assert tree.total == pytest.approx(float(ends[-1]), rel=1e-14)
    for uniform, place, probability in zip(uniforms, places, probabilities, strict=True):
        target, slack = uniform * float(ends[-1]), 1e-12 * float(ends[-1])
        assert priorities[place] > 0
        assert float(ends[place]) - priorities[place] - slack <= target <= float(ends[place]) + slack
        assert probability == pytest.approx(priorities[place] / float(ends[-1]), rel=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None)
@given(
    capacity=st.integers(1, 40),
    batches=st.lists(st.lists(st.tuples(st.integers(0, 39), st.floats(0, 100)), min_size=1, max_size=8), max_size=8),
)
def test_many_updates_give_the_same_tree_as_one(
    kind: str, capacity: int, batches: list[list[tuple[int, float]]]
) -> None:
    tree, plain = SumTree(capacity, kernels_of(kind)), np.zeros(capacity)
    for batch in batches:
        places = np.array([place % capacity for place, _ in batch])
        values = np.array([value for _, value in batch])
        tree.update(places, values)
        for place, value in zip(places, values, strict=True):
            plain[place] = value
    assert np.array_equal(tree._nodes, tree_of(kind, plain)._nodes), "to the bit"
    assert np.array_equal(tree.priorities(np.arange(capacity)), plain)


@pytest.mark.parametrize("kind", KINDS)
def test_places_are_drawn_in_proportion_to_their_priorities(kind: str) -> None:
    priorities = np.array([0.0, 1.0, 0.0, 3.0, 0.5, 0.0, 5.5, 0.0, 2.0])
    tree, draws = tree_of(kind, priorities), 200_000
    places, _ = tree.sample(np.random.default_rng(7).random(draws))
    counts, expected = np.bincount(places, minlength=9), draws * priorities / priorities.sum()
    drawn = priorities > 0
    assert (counts[~drawn] == 0).all(), "a priority of 0 is never drawn"
    chi_square = ((counts - expected)[drawn] ** 2 / expected[drawn]).sum()
    assert chi_square < 18.47, "0.999 of a chi-square with 4 degrees of freedom lies below"


@pytest.mark.parametrize("kind", KINDS)
def test_rounding_never_leads_to_an_empty_place(kind: str) -> None:
    """Numbers of very different size, and targets just below 1, are where a careless walk runs off the edge."""
    priorities = np.zeros(64)
    priorities[[3, 17, 40]] = 1e-300, 1e16, 1.0
    places, _ = tree_of(kind, priorities).sample(np.array([0.0, 0.5, 1 - 1e-16, np.nextafter(1.0, 0.0)]))
    assert set(places.tolist()) <= {3, 17, 40}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, -1e-9])
def test_what_is_no_priority_is_refused_and_changes_nothing(kind: str, wrong: float) -> None:
    tree = tree_of(kind, [1.0, 2.0])
    with pytest.raises(ValueError, match="is not a finite number of at least 0"):
        tree.update(np.array([0, 1]), np.array([5.0, wrong]))
    assert tree.priorities(np.array([0, 1])).tolist() == [1.0, 2.0] and tree.total == 3.0


@pytest.mark.parametrize("kind", KINDS)
def test_the_wrong_place_the_empty_tree_and_the_smallest_one(kind: str) -> None:
    tree = SumTree(5, kernels_of(kind))
    with pytest.raises(ValueError, match="all priorities are 0"):
        tree.sample(np.array([0.5]))
    for places in (np.array([5]), np.array([-1])):
        with pytest.raises(IndexError, match="lie outside 0 … 4"):
            tree.update(places, np.array([1.0]))
    one = tree_of(kind, [4.0])
    assert one.sample(np.array([0.0, 0.9]))[0].tolist() == [0, 0] and one.total == 4.0
    with pytest.raises(ValueError, match="capacity=0"):
        SumTree(0)
    tree.update(np.array([], np.int64), np.array([]))


@pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed")
def test_both_ways_of_computing_give_the_same_tree_and_the_same_draws() -> None:
    rng = np.random.default_rng(3)
    trees = [SumTree(1000, kernels) for kernels in (NUMPY, compiled(LOOPS))]
    for _ in range(20):
        places, values, uniforms = rng.integers(0, 1000, 64), rng.random(64) ** 4, rng.random(64)
        for tree in trees:
            tree.update(places, values)
        one, other = (tree.sample(uniforms)[0] for tree in trees)
        assert np.array_equal(one, other) and np.array_equal(trees[0]._nodes, trees[1]._nodes)
