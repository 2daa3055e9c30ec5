from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from pappus.replay import ArraySpec, Client, Service, Trajectory, col
from pappus.replay.sampling import evaluation
from pappus.replay.sampling.evaluation import Copies
from pappus.replay.tables import table as tables
from pappus.types import Array

NUMBER = ArraySpec((), "float32")
SIGNATURE = {"obs": ArraySpec((8,), "float32"), "reward": NUMBER, "discount": NUMBER}


@pytest.fixture(autouse=True)
def many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even small copies are shared."""
    monkeypatch.setattr(evaluation, "WORTH_A_THREAD", 64)
    monkeypatch.setattr(evaluation, "usable_cores", lambda: 4)


def test_copies_are_complete_whichever_thread_made_them() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        copies, asked = Copies(), []
        for _ in range(3):
            values, rows = rng.normal(size=(50, 4, 4)), rng.integers(50, size=(int(rng.integers(1, 40)), 2))
            out = np.full((*rows.shape, 4, 4), np.nan)
            copies.gather(values, rows, out)
            asked.append((values[rows], out))
        copies.complete()
        assert all(np.array_equal(wanted, out) for wanted, out in asked)


@pytest.mark.parametrize("again", [False, True])
def test_an_error_in_a_thread_is_raised_where_the_copies_are_waited_for(
    again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy, failed = evaluation._copy, threading.Event()

    def fail_in_helpers(*block: Any) -> None:
        if threading.current_thread() is not threading.main_thread():
            failed.set()
            raise MemoryError("no more")
        copy(*block)

    monkeypatch.setattr(evaluation, "_copy", fail_in_helpers)
    copies, values, rows = Copies(), np.ones((50, 16)), np.arange(50)
    copies.gather(values, rows, np.empty((50, 16)))
    assert failed.wait(10.0)
    if again:
        copies.gather(values, rows, np.empty((50, 16)))
    with pytest.raises(MemoryError):
        copies.complete()


def test_fields_that_are_copied_and_fields_that_are_worked_out_do_not_mix() -> None:
    client = Client.of(Service([tables.uniform_replay("t", 500, SIGNATURE)], 2000, chunk_length=16))
    rng = np.random.default_rng(1)
    steps: dict[str, Array] = {
        "obs": rng.normal(size=(300, 8)).astype(np.float32), "reward": np.arange(300, dtype=np.float32),
        "discount": np.full(300, 0.5, np.float32),
    }
    with client.writer(history=8) as writer:
        for step in range(300):
            writer.append({name: values[step] for name, values in steps.items()})
            if step >= 5:
                length = 2 + step % 4
                writer.create_item("t", 1.0, {name: writer.history[name][-length:] for name in steps})
    trajectory = Trajectory(
        first=col("obs")[0], all=col("obs"), doubled=col("obs") * 2.0, last=col("obs")[-1],
        ret=col("reward").discounted_sum(1.0)[0], start=col("reward")[0], length=col("reward").mask(),
    )
    for _ in range(30):
        data = client.sample("t", 64, trajectory).data
        for i in range(64):
            begin, length = int(data["start"][i]), int(data["length"][i].sum())
            obs = steps["obs"][begin : begin + length]
            assert np.array_equal(data["first"][i], obs[0]) and np.array_equal(data["last"][i], obs[-1])
            assert np.array_equal(data["all"][i, :length], obs) and not data["all"][i, length:].any()
            assert np.array_equal(data["doubled"][i, :length], obs * 2) and not data["doubled"][i, length:].any()
            assert data["ret"][i] == pytest.approx(sum(0.5**k * (begin + k) for k in range(length)), rel=1e-5)
