from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from pappus.accelerator import one_thread
from pappus.edges.all_reduce import MemoryAllReduce
from pappus.errors import NonFiniteError, RunError
from pappus.roles.learner import Learner
from pappus.transports.memory import HeapBlock
from tests.roles.learner_tools import UPDATES, N, T, all_reduce_edge, alone, learner, record, weights_of
from tests.roles.test_learner import Spy

BOTH = ("mean", "sum")


def all_reduce(members: int) -> MemoryAllReduce:
    edge = all_reduce_edge(members, "memory")
    block = HeapBlock(*MemoryAllReduce.footprint(members, edge.size))
    return MemoryAllReduce(edge.name, members, edge.size, block, in_turn=True)


def together(
    members: int = 2, updates: int = UPDATES, reduction: str = "mean", total_steps: int = 10**6, epochs: int = 1
) -> list[Learner]:
    """Learners that share recorded unrolls, one for each of them in turn."""
    unrolls, place = record(members * updates), all_reduce(members)
    return [
        learner(
            f"learner-{i}", unrolls[i::members], 1, place.member(i), reduction, total_steps=total_steps, epochs=epochs
        )
        for i in range(members)
    ]


def drive(learners: Sequence[Learner]) -> None:
    """Round after round, until nobody can go on."""
    with one_thread():
        while any([subject.step() is None for subject in learners]):
            assert len({subject.updates for subject in learners}) == 1, "between rounds all have made the same updates"


@pytest.mark.parametrize("reduction", BOTH)
@pytest.mark.parametrize("members", [2, 3])
def test_many_learners_equal_one_with_all_their_batches(members: int, reduction: str) -> None:
    one = alone(record(members * UPDATES), members, reduction)
    many = together(members, reduction=reduction)
    drive(many)
    assert one.updates == many[0].updates == UPDATES and one.steps == many[0].steps
    assert np.abs(weights_of(one) - weights_of(many[0])).max() < 1e-5
    for other in many[1:]:
        assert np.array_equal(weights_of(other), weights_of(many[0])), "to the bit"


def test_epochs_of_many_learners_equal_those_of_one() -> None:
    one, many = alone(record(20), 2, epochs=3), together(updates=10, epochs=3)
    drive(many)
    assert one.updates == many[0].updates == 30 and one.steps == many[0].steps, "a step counts once"
    assert np.abs(weights_of(one) - weights_of(many[0])).max() < 1e-5


def test_a_checkpoint_between_the_epochs_of_a_batch_holds_what_was_before_it() -> None:
    first, second = together(updates=2, epochs=3)
    for subject in (first, second):
        subject.step()
    before = weights_of(first)
    with one_thread():
        while np.array_equal(weights_of(first), before):
            first.step()
            second.step()
    saved: Any = first.save()
    assert np.array_equal(saved["weights"].numpy(), before) and saved["updates"] == 0


def test_a_batch_without_valid_steps_moves_nothing() -> None:
    unrolls, place = record(2), all_reduce(2)
    unrolls[1].valid[:] = False
    many = [learner(f"learner-{i}", unrolls[i : i + 1], 1, place.member(i)) for i in range(2)]
    drive(many)
    assert np.allclose(weights_of(many[0]), weights_of(alone(unrolls[:1], 1)), atol=1e-7)


def test_every_step_is_counted_once_and_every_update_by_the_first() -> None:
    many = together(updates=3)
    valid = [sum(int(unroll.valid.sum()) for unroll in record(6)[i::2]) for i in range(2)]
    drive(many)
    counts = [subject.metrics.drain()["counts"] for subject in many]
    assert [count["env_steps"] for count in counts] == valid
    assert counts[0]["updates"] == 3 and "updates" not in counts[1]
    assert [subject.steps for subject in many] == [sum(valid)] * 2
    assert many[0].progress() == (sum(valid), 3) and many[1].progress() is None


def test_who_has_brought_its_gradient_waits_for_the_others_and_says_so() -> None:
    first, second = together()
    for subject in (first, second):
        subject.step()
    assert first.step() is None, "a gradient is progress"
    port = first.step()
    assert port is not None and (port.name, port.explain()) == ("other learners", "nothing yet from 1 of 2")
    second.step()
    assert first.step() is None and first.updates == 1


def test_all_are_done_at_the_same_update_and_the_first_says_so() -> None:
    first, second = together(total_steps=4 * T * N)
    drive([first, second])
    assert first.steps >= 4 * T * N and first.updates == second.updates < UPDATES
    assert first.finished and not second.finished


def test_only_the_first_publishes_and_saves() -> None:
    spies, place = [Spy(), Spy()], all_reduce(2)
    many = [learner(f"learner-{i}", record(2), 1, place.member(i), weights=spies[i]) for i in range(2)]
    drive(many)
    assert spies[0].versions == [0, 1, 2] and spies[1].versions == []
    assert many[0].save()["updates"] == 2 and many[1].save() is None and not many[1].stateful


def test_learners_that_begin_with_different_weights_are_refused() -> None:
    place = all_reduce(2)
    many = [learner(f"learner-{i}", record(1), 1, place.member(i), seed=i) for i in range(2)]
    with pytest.raises(RunError, match="2 learners that share updates began with different weights"):
        drive(many)


def test_a_checkpoint_of_one_learner_is_gone_on_from_by_many() -> None:
    unrolls = record(4 + 2 * UPDATES)
    one, before = alone(unrolls, 2), alone(unrolls[:4], 2)
    place = all_reduce(2)
    many = [learner(f"learner-{i}", unrolls[4 + i :: 2], 1, place.member(i)) for i in range(2)]
    for subject in many:
        subject.load(before.save())
    drive(many)
    assert many[1].updates == one.updates and np.abs(weights_of(one) - weights_of(many[1])).max() < 1e-5


def test_a_loss_that_is_not_finite_is_named_by_its_learner_and_reaches_no_other() -> None:
    unrolls, place = record(2), all_reduce(2)
    unrolls[1].valid[:], unrolls[1].reward[1, 1] = True, np.nan
    many = [learner(f"learner-{i}", unrolls[i : i + 1], 1, place.member(i)) for i in range(2)]
    before = weights_of(many[0])
    with pytest.raises(NonFiniteError, match="value_loss=nan"):
        drive(many)
    assert many[0].step() is not None and np.array_equal(weights_of(many[0]), before)
