"""Fields compute what plain loops over the steps of each item compute, whatever the items are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from pappus.replay.clients.client import Client
from pappus.replay.sampling.fields import Field, Trajectory, col, concatenate
from pappus.replay.service.service import Service
from pappus.replay.tables import table as tables
from pappus.types import Array, ArraySpec

LEAD = 3
SIGNATURE = {
    "obs": ArraySpec((2,), "float32"), "reward": ArraySpec((), "float32"), "discount": ArraySpec((), "float32"),
    "frame": ArraySpec((), "int64"),
}
Steps: TypeAlias = list[Array]
"""The real steps of an item, or what was computed of them."""
relaxed = settings(max_examples=40, deadline=None)


@dataclass(frozen=True)
class Item:
    """A window in an episode of its own: so many steps before it, and so many in it; `obs` and `frame` have `more`."""

    before: int
    length: int
    more: int


class Items:
    """Items in a table, and the same as lists."""

    def __init__(self, shapes: Sequence[Item], chunk_length: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.count = len(shapes)
        self._client = Client.of(Service([tables.queue("t", 16, SIGNATURE, LEAD)], 256, chunk_length))
        self.own: dict[str, list[Steps]] = {name: [] for name in SIGNATURE}
        self.lead: dict[str, list[Steps]] = {name: [] for name in SIGNATURE}
        with self._client.writer(history=16) as writer:
            for shape in shapes:
                steps = [self._step() for _ in range(shape.before + shape.length + shape.more)]
                for step in steps:
                    writer.append(step)
                begin, history, parts = shape.before, writer.history, {}
                for name in SIGNATURE:
                    end = begin + shape.length + (shape.more if name in ("obs", "frame") else 0)
                    parts[name] = history[name][begin:end]
                    self.own[name].append([step[name] for step in steps[begin:end]])
                    self.lead[name].append([step[name] for step in steps[max(0, begin - LEAD) : begin]])
                writer.create_item("t", 1.0, parts)
                writer.end_episode()

    def _step(self) -> dict[str, Array]:
        return {
            "obs": self._rng.integers(-4, 5, 2).astype(np.float32) / 2,
            "reward": np.asarray(self._rng.integers(-8, 9) / 4, np.float32),
            "discount": np.asarray(self._rng.choice([0.0, 0.5, 1.0]), np.float32),
            "frame": np.asarray(self._rng.integers(0, 100)),
        }

    def evaluate(self, field: Field) -> Array:
        return self._client.sample("t", self.count, Trajectory(found=field), timeout=0).data["found"]


ITEM = st.builds(Item, before=st.integers(0, 5), length=st.integers(1, 5), more=st.integers(0, 2))
ITEMS = st.builds(
    lambda shapes, chunk_length, seed: (shapes, chunk_length, seed), st.lists(ITEM, min_size=1, max_size=5),
    st.integers(1, 7), st.integers(0, 1 << 30),
)
KEY = st.builds(slice, st.none() | st.integers(-6, 6), st.none() | st.integers(-6, 6))
COLUMN = st.sampled_from(["obs", "reward", "frame"])


def same(found: Array, expected: Sequence[Steps], beyond: float | None = 0.0) -> None:
    """Real steps are as expected, and so is what is beyond them, unless it is None."""
    assert found.shape[:2] == (len(expected), max(map(len, expected)))
    for row, steps in zip(found, expected, strict=True):
        for t, value in enumerate(steps):
            assert np.allclose(row[t], value, rtol=1e-5, atol=1e-6)
        if beyond is not None:
            assert (row[len(steps) :] == beyond).all()


@relaxed
@given(data=ITEMS, column=COLUMN, key=KEY)
def test_a_slice_takes_the_same_steps_of_every_item(data: Any, column: str, key: slice) -> None:
    items = Items(*data)
    expected = [steps[key] for steps in items.own[column]]
    assume(any(expected))
    same(items.evaluate(col(column)[key]), expected)


@relaxed
@given(data=ITEMS, column=COLUMN, computed=st.booleans(), count=st.integers(1, LEAD + 1))
def test_a_slice_that_leaves_nothing_of_any_item_is_empty(data: Any, column: str, computed: bool, count: int) -> None:
    items = Items(*data)
    field = (col(column) * 2.0)[9:] if computed else col(column).stack(count)[9:]
    stack = () if computed else (count,)
    assert items.evaluate(field).shape == (items.count, 0, *stack, *SIGNATURE[column].shape)


@relaxed
@given(data=ITEMS, column=COLUMN, keys=st.lists(KEY, min_size=2, max_size=3))
def test_slices_of_slices_are_slices_of_each_item(data: Any, column: str, keys: list[slice]) -> None:
    items = Items(*data)
    field, expected = col(column), items.own[column]
    for key in keys:
        field, expected = field[key], [steps[key] for steps in expected]
    assume(any(expected))
    same(items.evaluate(field), expected)


@relaxed
@given(data=ITEMS, column=COLUMN, index=st.integers(-7, 7))
def test_an_index_takes_each_item_s_own_step_or_its_nearest(data: Any, column: str, index: int) -> None:
    items = Items(*data)
    expected = [steps[max(-len(steps), min(index, len(steps) - 1))] for steps in items.own[column]]
    assert np.array_equal(items.evaluate(col(column)[index]), np.array(expected))


def stacked(items: Items, column: str, count: int) -> list[Steps]:
    """Every step of every item with those before it; before what is known, the first again."""
    found = []
    for lead, own in zip(items.lead[column], items.own[column], strict=True):
        known = [*lead, *own]
        found.append([
            np.stack([known[max(0, len(lead) + t - back)] for back in range(count - 1, -1, -1)])
            for t in range(len(own))
        ])
    return found


@relaxed
@given(data=ITEMS, column=COLUMN, count=st.integers(1, LEAD + 1), key=KEY)
def test_a_stack_shows_each_step_with_those_before_it(data: Any, column: str, count: int, key: slice) -> None:
    items = Items(*data)
    expected = [steps[key] for steps in stacked(items, column, count)]
    assume(any(expected))
    same(items.evaluate(col(column).stack(count)[key]), expected)


@relaxed
@given(data=ITEMS, column=COLUMN, count=st.integers(1, LEAD + 1), key=KEY)
def test_a_stack_of_a_slice_is_the_slice_of_a_stack(data: Any, column: str, count: int, key: slice) -> None:
    items = Items(*data)
    expected = [steps[key] for steps in stacked(items, column, count)]
    assume(any(expected))
    same(items.evaluate(col(column)[key].stack(count)), expected)


@relaxed
@given(data=ITEMS, column=COLUMN, count=st.integers(1, LEAD + 1), index=st.integers(-5, 5))
def test_a_stack_of_one_step_is_that_step_of_a_stack(data: Any, column: str, count: int, index: int) -> None:
    items = Items(*data)
    expected = [s[max(-len(s), min(index, len(s) - 1))] for s in stacked(items, column, count)]
    shapes, chunk_length, seed = data
    assert np.array_equal(items.evaluate(col(column).stack(count)[index]), np.array(expected))
    assert np.array_equal(Items(shapes, chunk_length, seed).evaluate(col(column)[index].stack(count)), expected)


def returns(rewards: Steps, discounts: Steps, gamma: float, n: int | None) -> Steps:
    """The literal sum of every step."""
    found = []
    for t in range(len(rewards)):
        total, weight = 0.0, 1.0
        for i in range(t, len(rewards) if n is None else min(len(rewards), t + n)):
            total += weight * float(rewards[i])
            weight *= gamma * float(discounts[i])
        found.append(np.float32(total))
    return found


@relaxed
@given(data=ITEMS, gamma=st.sampled_from([0.0, 0.5, 0.99, 1.0]), n=st.none() | st.integers(1, 7), key=KEY)
def test_a_discounted_sum_is_the_literal_sum(data: Any, gamma: float, n: int | None, key: slice) -> None:
    items = Items(*data)
    pairs = zip(items.own["reward"], items.own["discount"], strict=True)
    expected = [returns(rewards, discounts, gamma, n)[key] for rewards, discounts in pairs]
    same(items.evaluate(col("reward").discounted_sum(gamma, n)[key]), expected, beyond=None)


@relaxed
@given(data=ITEMS, gamma=st.sampled_from([0.5, 1.0]), n=st.none() | st.integers(1, 7), key=KEY)
def test_a_discounted_sum_of_some_steps_takes_the_discounts_of_the_same_ones(
    data: Any, gamma: float, n: int | None, key: slice
) -> None:
    items = Items(*data)
    pairs = zip(items.own["reward"], items.own["discount"], strict=True)
    expected = [returns(rewards[key], discounts[key], gamma, n) for rewards, discounts in pairs]
    same(items.evaluate(col("reward")[key].discounted_sum(gamma, n)), expected)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), n=st.sampled_from([None, 199, 200, 201]))
def test_a_discounted_sum_over_hundreds_of_steps_is_the_literal_sum(seed: int, n: int | None) -> None:
    rng, client = np.random.default_rng(seed), Client.of(Service([tables.queue("t", 2, SIGNATURE)], 1000))
    rewards, discounts = rng.normal(size=(2, 200)), rng.uniform(0.9, 1.0, (2, 200))
    with client.writer(history=200) as writer:
        for item, length in enumerate((200, 31)):
            for t in range(length):
                writer.append({"reward": rewards[item, t], "discount": discounts[item, t]})
            writer.create_item("t", 1.0, {name: writer.history[name][:] for name in ("reward", "discount")})
            writer.end_episode()
    found = client.sample("t", 2, Trajectory(ret=col("reward").discounted_sum(0.997, n))).data["ret"]
    same(found, [returns(rewards[0], discounts[0], 0.997, n), returns(rewards[1, :31], discounts[1, :31], 0.997, n)])


Step: TypeAlias = tuple[Callable[[Field], Field], Callable[[Steps], Steps]]


def _cut(key: slice) -> Step:
    return lambda field: field[key], lambda steps: steps[key]


def _times(number: float) -> Step:
    return lambda field: field * number, lambda steps: [step * number for step in steps]


def _plus(number: float) -> Step:
    return lambda field: field + number, lambda steps: [step + number for step in steps]


def _running(_: None) -> Step:
    def literal(steps: Steps) -> Steps:
        found: Steps = []
        for step in steps:
            found.append(step if not found else found[-1] * step)
        return found

    return lambda field: field.cumulative_product(), literal


NUMBERS = st.sampled_from([-2.0, -0.5, 0.0, 1.0, 3.0])
OPERATIONS = st.lists(
    st.builds(_cut, KEY) | st.builds(_times, NUMBERS) | st.builds(_plus, NUMBERS) | st.builds(_running, st.none()),
    max_size=4,
)


def applied(items: Items, column: str, operations: Sequence[Step]) -> tuple[Field, list[Steps]]:
    field, steps = col(column), items.own[column]
    for on_field, on_steps in operations:
        field, steps = on_field(field), [on_steps(one) for one in steps]
    return field, steps


@settings(max_examples=80, deadline=None)
@given(data=ITEMS, column=st.sampled_from(["obs", "reward"]), operations=OPERATIONS)
def test_operations_in_a_row_do_to_real_steps_what_loops_do(
    data: Any, column: str, operations: Sequence[Step]
) -> None:
    items = Items(*data)
    field, expected = applied(items, column, operations)
    assume(any(expected))
    same(items.evaluate(field), expected, beyond=None)


@settings(max_examples=80, deadline=None)
@given(data=ITEMS, column=st.sampled_from(["obs", "reward"]), operations=OPERATIONS)
@example(data=([Item(0, 1, 0), Item(0, 2, 0)], 4, 0), column="reward", operations=[_plus(1.0)])
@example(data=([Item(0, 1, 0), Item(0, 2, 0)], 4, 0), column="reward", operations=[_times(1.0), _cut(slice(0, -1))])
def test_after_any_operations_there_is_nothing_beyond_an_item_s_end(
    data: Any, column: str, operations: Sequence[Step]
) -> None:
    items = Items(*data)
    field, expected = applied(items, column, operations)
    assume(any(expected))
    same(items.evaluate(field), expected)


@settings(max_examples=60, deadline=None)
@given(data=ITEMS, column=st.sampled_from(["obs", "reward"]), operations=OPERATIONS, value=st.sampled_from([-1.0, 7.0]))
@example(data=([Item(0, 1, 0), Item(0, 2, 0)], 4, 0), column="reward", operations=[_times(2.0)], value=-1.0)
def test_padding_is_the_value_that_was_asked_for(
    data: Any, column: str, operations: Sequence[Step], value: float
) -> None:
    items = Items(*data)
    field, expected = applied(items, column, operations)
    assume(any(expected))
    found = items.evaluate(field.pad(value, length=9))
    assert found.shape[1] == 9
    for row, steps in zip(found, expected, strict=True):
        assert (row[len(steps) :] == value).all()
    same(found[:, : max(map(len, expected))], expected, beyond=value)


REDUCTIONS: dict[str, Callable[..., Any]] = {
    "sum": np.sum, "product": np.prod, "min": np.min, "max": np.max, "mean": np.mean
}


@settings(max_examples=80, deadline=None)
@given(
    data=ITEMS, column=st.sampled_from(["obs", "reward"]), operations=OPERATIONS, name=st.sampled_from([*REDUCTIONS]),
    turned=st.booleans(),
)
def test_reductions_are_of_each_item_s_real_steps(
    data: Any, column: str, operations: Sequence[Step], name: str, turned: bool
) -> None:
    items = Items(*data)
    field, steps = applied(items, column, operations)
    assume(all(steps))
    if turned:
        field = field.transpose(*(("time", "d0", "batch") if column == "obs" else ("time", "batch")))
    found = items.evaluate(getattr(field, name)())
    expected = np.array([REDUCTIONS[name](np.stack(one), axis=0) for one in steps])
    if turned and column == "obs":
        found = found.T
    assert np.allclose(found, expected, rtol=1e-4, atol=1e-5)


@relaxed
@given(data=ITEMS, key=KEY)
def test_the_sum_of_no_steps_is_0_and_their_product_1(data: Any, key: slice) -> None:
    shapes, chunk_length, seed = data
    for name, neutral in (("sum", 0.0), ("product", 1.0)):
        items = Items(shapes, chunk_length, seed)
        found = items.evaluate(getattr(col("reward")[key], name)())
        for value, steps in zip(found, items.own["reward"], strict=True):
            assert steps[key] or value == neutral


@relaxed
@given(data=ITEMS, column=COLUMN, key=KEY)
def test_a_mask_marks_real_steps(data: Any, column: str, key: slice) -> None:
    items = Items(*data)
    lengths = [len(steps[key]) for steps in items.own[column]]
    found = items.evaluate(col(column)[key].mask())
    assert found.tolist() == [[t < length for t in range(max(lengths))] for length in lengths]


@relaxed
@given(data=ITEMS)
def test_two_columns_combine_step_by_step(data: Any) -> None:
    shapes, chunk_length, seed = data
    for operate in (lambda one, two: one * two, lambda one, two: one + two):
        items = Items(shapes, chunk_length, seed)
        expected = [
            [operate(r, d) for r, d in zip(rewards, discounts, strict=True)]
            for rewards, discounts in zip(items.own["reward"], items.own["discount"], strict=True)
        ]
        same(items.evaluate(operate(col("reward"), col("discount"))), expected)


@relaxed
@given(data=ITEMS, count=st.integers(1, LEAD + 1))
def test_concatenated_fields_keep_their_values(data: Any, count: int) -> None:
    shapes, chunk_length, seed = data
    alike = [Item(shape.before, shapes[0].length, 0) for shape in shapes]
    items = Items(alike, chunk_length, seed)
    found = items.evaluate(concatenate(col("reward"), col("discount"), col("reward")[:1], over="time"))
    for row, rewards, discounts in zip(found, items.own["reward"], items.own["discount"], strict=True):
        assert np.array_equal(row, [*rewards, *discounts, rewards[0]])
    items = Items(alike, chunk_length, seed)
    found = items.evaluate(concatenate(col("frame").stack(count), col("frame").stack(1), over="stack"))
    for row, high, low in zip(found, stacked(items, "frame", count), stacked(items, "frame", 1), strict=True):
        assert np.array_equal(row, np.concatenate([np.stack(high), np.stack(low)], axis=1))


@relaxed
@given(data=ITEMS, order=st.permutations(["batch", "time", "stack", "d0"]), count=st.integers(1, 3))
def test_transposing_only_turns(data: Any, order: list[str], count: int) -> None:
    shapes, chunk_length, seed = data
    plain = Items(shapes, chunk_length, seed).evaluate(col("obs").stack(count))
    turned = Items(shapes, chunk_length, seed).evaluate(col("obs").stack(count).transpose(*order))
    assert np.array_equal(turned, plain.transpose([["batch", "time", "stack", "d0"].index(dim) for dim in order]))
