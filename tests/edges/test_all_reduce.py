"""Sums of several members, in one thread and in processes, through memory and through torch.distributed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pappus.config import SupervisionConfig
from pappus.edges.all_reduce import MemoryAllReduce
from pappus.errors import RoleDied
from pappus.kinds import LEARNER
from pappus.runtimes.local import LocalRuntime
from pappus.topologies.program import Program
from pappus.transports.memory import HeapBlock
from tests.contracts.runtime_contract import FakeController
from tests.roles.learner_tools import UPDATES, KeepsWeights, all_reduce_edge, alone, record, weights_of

BACKENDS = ("memory", "gloo")


def all_reduce(members: int, in_turn: bool = False) -> MemoryAllReduce:
    return MemoryAllReduce("others", members, 4, HeapBlock(*MemoryAllReduce.footprint(members, 4)), in_turn)


def test_all_collect_the_same_sum_of_each_round() -> None:
    place = all_reduce(3)
    members = [place.member(i) for i in range(3)]
    for round in range(5):
        flats = [torch.full((4,), 10.0**i + round) for i in range(3)]
        for member, flat in zip(members, flats, strict=True):
            member.bring(flat)
            assert members[0].ready() is (member is members[-1])
        assert all([member.collect(flat) for member, flat in zip(members, flats, strict=True)])
        assert all(flat.tolist() == [111.0 + 3 * round] * 4 for flat in flats)


def test_a_member_that_is_a_round_ahead_leaves_others_their_sum() -> None:
    place = all_reduce(2)
    fast, slow = place.member(0), place.member(1)
    mine, yours = torch.full((4,), 1.0), torch.full((4,), 2.0)
    fast.bring(mine)
    slow.bring(yours)
    assert fast.collect(mine)
    fast.bring(torch.full((4,), 50.0))
    assert slow.collect(yours) and yours.tolist() == mine.tolist() == [3.0] * 4


def test_members_of_one_thread_collect_in_their_order() -> None:
    place = all_reduce(2, in_turn=True)
    first, second = place.member(0), place.member(1)
    flat = torch.ones(4)
    second.bring(flat)
    first.bring(flat)
    assert not second.collect(flat.clone()), "the first has not yet"
    assert first.collect(flat.clone()) and second.collect(flat)


class UntilWritten(FakeController):
    """Ends the run when all have written their weights down."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def decide(self) -> bool:
        return all((self._folder / f"learner-{i}.npy").exists() for i in range(2))


class Killer(FakeController):
    """Kills the second learner, and waits for what comes of it."""

    def decide(self) -> bool:
        for pid in self.pids.pop("learner-1", []):
            os.kill(pid, signal.SIGKILL)
        return False


def run(backend: str, controller: Any, folder: Path) -> None:
    program = Program("two learners")
    edge = program.connect(all_reduce_edge(2, backend))
    for i in range(2):
        program.add(LEARNER, KeepsWeights, index=i, essential=True, all_reduce=edge.member(i), folder=folder)
    LocalRuntime(program, controller, SupervisionConfig(stop_seconds=5)).run()


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_learners_in_two_processes_equal_one(tmp_path: Path, backend: str) -> None:
    controller = UntilWritten(tmp_path)
    run(backend, controller, tmp_path)
    one = alone(record(2 * UPDATES), 2)
    first, second = (np.load(tmp_path / f"learner-{i}.npy") for i in range(2))
    assert np.array_equal(first, second) and np.abs(weights_of(one) - first).max() < 1e-5
    assert controller.counts["other learners_bytes"] == 2 * UPDATES * 4 * all_reduce_edge(2, backend).size


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_learner_that_dies_is_named_and_the_others_do_not_hang(tmp_path: Path, backend: str) -> None:
    with pytest.raises(RoleDied, match=r"learner-1 died \(SIGKILL\)"):
        run(backend, Killer(), tmp_path)
