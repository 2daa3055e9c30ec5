"""The store of observations on a device, here on the CPU: it grows, and what was written stays where its unroll is."""

from __future__ import annotations

import torch

from pappus.accelerator import Accelerator
from pappus.roles.device_unrolls import ObservationStore
from pappus.types import ArraySpec, DiscreteAction, EnvSpec, Unroll, unroll_spec

ENV = EnvSpec({"a": ArraySpec((2,), "float32"), "b": ArraySpec((), "uint8")}, DiscreteAction(2))


def spec(num_envs: int, length: int = 3) -> Unroll:
    return unroll_spec(ENV, {}, ((), ()), length, num_envs)


def test_every_unroll_has_rows_of_its_own_and_keeps_them_when_the_store_grows() -> None:
    store = ObservationStore(Accelerator("cpu"))
    buffers = [store.add(spec(num_envs), None) for num_envs in (1, 2, 3)]
    for i, buffer in enumerate(buffers):
        buffer.unroll.observation["a"].fill_(i + 1)
        buffer.unroll.observation["b"].fill_(i + 1)
    rows_before = store.spare
    buffers += [store.add(spec(num_envs), None) for num_envs in (2, 5, 4)]
    assert store.spare > rows_before
    for i, buffer in enumerate(buffers[:3]):
        assert (buffer.unroll.observation["a"] == i + 1).all() and (buffer.unroll.observation["b"] == i + 1).all()
        assert buffer.unroll.observation["a"].shape == (4, buffer.num_envs, 2)
    rows = [row for buffer in buffers for row in range(buffer.start, buffer.start + 4 * buffer.num_envs)]
    assert len(rows) == len(set(rows)) and max(rows) < store.spare


def test_a_row_of_the_store_is_a_row_of_the_unroll() -> None:
    store = ObservationStore(Accelerator("cpu"))
    store.add(spec(3), None)
    buffer = store.add(spec(2), None)
    store.observation["a"].index_copy_(0, torch.tensor([buffer.start + 2 * 2 + 1]), torch.tensor([[7.0, 8.0]]))
    assert buffer.unroll.observation["a"][2, 1].tolist() == [7.0, 8.0]
    assert buffer.unroll.observation["a"].count_nonzero() == 2


def test_rows_of_an_unroll_that_is_gone_are_used_again() -> None:
    store = ObservationStore(Accelerator("cpu"))
    first, second = store.add(spec(2), None), store.add(spec(2), None)
    store.remove(first)
    assert store.add(spec(2), None).start == first.start
    assert store.add(spec(2), None).start not in (first.start, second.start)


def test_unrolls_of_all_widths_that_come_and_go_need_no_more_rows_than_the_widest() -> None:
    store = ObservationStore(Accelerator("cpu"))
    for num_envs in range(1, 60):
        store.remove(store.add(spec(num_envs), None))
    assert store.spare <= 2 * 4 * 59


def test_neighbours_that_are_free_hold_a_wider_unroll() -> None:
    store = ObservationStore(Accelerator("cpu"))
    one, two, last = store.add(spec(2), None), store.add(spec(3), None), store.add(spec(1), None)
    store.remove(two)
    store.remove(one)
    wide = store.add(spec(4), None)
    assert wide.start == one.start and store.add(spec(1), None).start == one.start + 4 * 4
    assert last.start == 4 * 5


class Event:
    """Has not happened until somebody waits for it."""

    reached = False

    def synchronize(self) -> None:
        self.reached = True


def test_rows_are_free_only_when_the_last_copy_of_them_is_done() -> None:
    store = ObservationStore(Accelerator("cpu"))
    buffer = store.add(spec(2), None)
    buffer.event = event = Event()
    store.remove(buffer)
    assert event.reached
