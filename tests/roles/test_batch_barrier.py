"""Synchronous batches of an inference server: data of one version of the weights, the newest, in each."""

from __future__ import annotations

import pytest

from pappus.roles.batching import BatchBarrier


def full(batch_size: int, width: int, version: int, ahead: int = 0) -> BatchBarrier:
    """A barrier after one whole batch."""
    barrier = BatchBarrier(batch_size, ahead)
    for _ in range(batch_size // width):
        assert barrier.begins(width, version)
    for _ in range(batch_size // width):
        barrier.ended(width)
    return barrier


def test_unrolls_begin_while_the_batch_has_room_and_no_further() -> None:
    barrier = BatchBarrier(4)
    assert barrier.begins(2, 0) and barrier.begins(2, 0)
    assert not barrier.begins(2, 0), "the batch is reserved, though nothing was delivered yet"


def test_the_next_batch_begins_with_newer_weights_only() -> None:
    barrier = full(4, 2, version=7)
    assert not barrier.begins(2, 7), "the learner has not published what it learnt"
    assert barrier.begins(2, 8)


def test_an_env_group_that_finished_early_waits_for_the_others() -> None:
    barrier = BatchBarrier(4)
    assert barrier.begins(2, 0) and barrier.begins(2, 0)
    barrier.ended(2)
    assert not barrier.begins(2, 0)
    barrier.ended(2)
    assert barrier.begins(2, 1)


def test_few_envs_fill_a_batch_with_several_unrolls_each() -> None:
    barrier = BatchBarrier(6)
    for _ in range(3):
        assert barrier.begins(2, 0)
        barrier.ended(2)
    assert not barrier.begins(2, 0) and barrier.begins(2, 1)


def test_columns_of_envs_that_left_are_free_for_others() -> None:
    barrier = BatchBarrier(4)
    assert barrier.begins(2, 0) and barrier.begins(2, 0)
    barrier.ended(2)
    barrier.left(2)
    assert barrier.begins(2, 0), "a successor takes the place, with the weights of the same batch"
    barrier.ended(2)
    assert not barrier.begins(2, 0)


@pytest.mark.parametrize("width", [1, 2])
def test_a_barrier_continues_from_what_it_saved(width: int) -> None:
    barrier = BatchBarrier(4)
    barrier.begins(width, 3)
    successor = BatchBarrier(4)
    successor.load(barrier.save())
    assert (successor.reserved, successor.delivered, successor.version, successor.unlearnt) == (width, 0, 3, 0)


TILES = [(32, [5, 5]), (16, [8, 8, 5, 5]), (16, [8, 8, 12]), (50, [8, 8]), (4, [10])]


@pytest.mark.parametrize(("batch", "widths"), TILES)
def test_widths_that_do_not_add_up_to_a_batch_do_not_stop_it(batch: int, widths: list[int]) -> None:
    barrier, version, columns, rounds = BatchBarrier(batch), 0, 0, 0
    while version < 5:
        begun = [width for width in widths if barrier.begins(width, version)]
        rounds += 1
        assert rounds < 500, "nobody may begin any more"
        for width in begun:
            barrier.ended(width)
            columns += width
        version = columns // batch  # the learner publishes after every batch


def test_weights_of_a_learner_that_came_back_from_a_checkpoint_are_acted_with() -> None:
    barrier = full(4, 2, version=1000)
    assert barrier.begins(2, 904), "an older number, and other weights than those of the last batch"


def test_one_batch_ahead_begins_with_the_weights_of_the_last_and_no_second_one() -> None:
    barrier = full(2, 2, version=0, ahead=1)
    for version in range(3):
        assert barrier.begins(2, version), "the learner has one whole batch, and learns"
        barrier.ended(2)
        assert not barrier.begins(2, version), "it has two"


def test_ahead_of_a_learner_that_came_back_without_its_batches_as_far_as_before() -> None:
    barrier = full(2, 2, version=1000, ahead=1)
    assert barrier.begins(2, 1000)
    barrier.ended(2)
    for version in (904, 904):
        assert barrier.begins(2, version)
        barrier.ended(2)
    assert not barrier.begins(2, 904)
