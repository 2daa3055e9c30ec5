"""Where steps live, and who holds them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pappus.errors import UserError
from pappus.replay.storage.chunks import LOOPS, NUMPY, Chunks, Kernels, compiled, plan
from pappus.types import ArraySpec

SIGNATURE = {"x": ArraySpec((), "int64")}
KERNELS = {"numpy": lambda: NUMPY, "numba": lambda: compiled(LOOPS)}


def chunks(steps: int, length: int, kernels: Kernels | None = None) -> Chunks:
    return Chunks(plan(SIGNATURE, steps, length), kernels=kernels)


@pytest.mark.parametrize("kind", KERNELS)
@settings(deadline=None)  # the first call compiles
@given(
    length=st.integers(1, 5), order=st.permutations(range(8)), base=st.integers(0, 20),
    positions=st.lists(st.integers(0, 10), min_size=1, max_size=6),
)
def test_rows_are_found_across_chunks(
    kind: str, length: int, order: list[int], base: int, positions: list[int]
) -> None:
    """Against the plain truth: the stream's rows, one by one."""
    store = chunks(8 * length, length, KERNELS[kind]())
    for one, other in itertools.pairwise(order):
        store.following[one] = other
    stream = [chunk * length + i for chunk in order for i in range(length)]
    base %= len(stream)
    asked = [min(position, len(stream) - 1 - base) for position in positions]
    found = store.locate(np.array([stream[base]]), np.array([asked]))
    assert found.tolist() == [[stream[base + position] for position in asked]]
    deep = store.locate(np.array([stream[base]]), np.array([[asked, asked]]))
    assert deep.tolist() == [[found[0].tolist()] * 2]


@pytest.mark.parametrize("kind", KERNELS)
def test_a_chunk_is_free_when_its_last_holder_releases_it(kind: str) -> None:
    store = chunks(20, 5, KERNELS[kind]())
    freed: list[int] = []
    store.on_free = lambda found: freed.extend(found.tolist())
    before = store.num_free
    taken = store.take(2)
    assert taken is not None and store.num_free == before - 2
    one, other = taken.tolist()
    store.hold(np.array([one, one, other]))
    store.release(np.array([one, other]))
    assert freed == [] and store.holders[taken].tolist() == [2, 1]
    store.release(np.array([one, one, other]))
    assert sorted(freed) == sorted([one, other]) and store.num_free == before


def test_more_chunks_than_there_are_are_not_taken() -> None:
    store = chunks(20, 5)
    assert store.take(store.num_free + 1) is None
    everything = store.take(store.num_free)
    assert everything is not None and sorted(everything.tolist()) == list(range(store.layout.num_chunks))


def test_windows_touch_the_chunks_that_they_cross() -> None:
    store = chunks(40, 4)
    store.following[[3, 7]] = [7, 1]
    touched = store.spanned(np.array([3 * 4 + 2, 7 * 4]), np.array([8, 4]))
    assert sorted(touched.tolist()) == [1, 3, 7, 7]


def test_what_holds_nothing_is_refused() -> None:
    with pytest.raises(UserError, match="without columns"):
        plan({}, 10, 2)
    with pytest.raises(UserError, match="max_steps=0"):
        plan(SIGNATURE, 0, 2)
