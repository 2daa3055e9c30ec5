"""A batch whose loss is not finite is skipped: weights stay, it is counted, and the next one is learned from."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pappus.accelerator import one_thread
from pappus.algorithms.ppo import PPO, PPOConfig
from pappus.config import OptimizerConfig
from pappus.errors import NonFiniteError
from pappus.experience import SMALLEST_PRIORITY
from pappus.roles.epoch_training import EpochTraining
from pappus.roles.gradient_step import GradientStep, LearnerSettings
from pappus.roles.learner import MOST_SKIPPED, Learner, Publication
from pappus.telemetry.metrics import Metrics
from pappus.types import Unroll
from tests.roles.learner_tools import ENV, NETWORK, Recorded, algorithm, record, unroll_learner, weights_of
from tests.roles.replay_tools import random_batch
from tests.roles.test_epoch_training import FakeDevice
from tests.roles.test_gradient_step import Line
from tests.roles.test_many_learners import all_reduce, drive
from tests.roles.test_replay_learner import Setup

SKIPS = LearnerSettings(OptimizerConfig(clip_norm=0.5), 10**6, 1, skips_non_finite=True)


def unrolls_with_a_broken_one(at: int, count: int = 3) -> list[Unroll]:
    unrolls = record(count)
    for unroll in unrolls:
        unroll.valid[:] = True
    unrolls[at].observation[:] = 0.9e15
    unrolls[at].reward[1, 1] = np.nan
    return unrolls


def run(subject: Learner) -> None:
    with one_thread():
        while subject.step() is None:
            pass


def test_a_broken_batch_is_skipped_and_leaves_no_trace_in_the_weights(tmp_path: Path) -> None:
    broken = unrolls_with_a_broken_one(1)
    settings = replace(SKIPS, crash_dir=tmp_path)
    subject = unroll_learner("learner", algorithm(), Recorded(broken), None, settings, 1)
    clean = unroll_learner("learner", algorithm(), Recorded([broken[0], broken[2]]), None, SKIPS, 1)
    run(subject)
    run(clean)
    assert np.array_equal(weights_of(subject), weights_of(clean))
    assert subject.updates == 3 and clean.updates == 2, "the same weights get a new version: actors may wait for it"
    report = subject.metrics.drain()
    assert report["counts"]["batches_skipped"] == 1 and report["counts"]["steps_dropped"] == broken[1].valid.size
    assert report["counts"]["env_steps"] == broken[0].valid.sum() + broken[2].valid.sum()
    (event,) = report["events"]
    assert "value_loss=nan at update 2" in event and event.endswith("the batch is skipped")
    assert (tmp_path / "non_finite_batch.safetensors").exists()


def test_many_broken_batches_in_a_row_stop_the_run() -> None:
    unrolls = [unrolls_with_a_broken_one(0)[0]] * (MOST_SKIPPED + 1)
    subject = unroll_learner("learner", algorithm(), Recorded(unrolls), None, SKIPS, 1)
    with pytest.raises(NonFiniteError, match=rf"is not finite; .*; it was the {MOST_SKIPPED}th batch in a row"):
        run(subject)
    assert subject.metrics.drain()["counts"]["batches_skipped"] == MOST_SKIPPED - 1


def test_good_batches_in_between_start_the_count_anew() -> None:
    good, bad = record(1)[0], unrolls_with_a_broken_one(0)[0]
    subject = unroll_learner("learner", algorithm(), Recorded([bad, good] * MOST_SKIPPED), None, SKIPS, 1)
    run(subject)
    assert subject.metrics.drain()["counts"]["batches_skipped"] == MOST_SKIPPED


def test_learners_that_share_updates_skip_together() -> None:
    unrolls, place = unrolls_with_a_broken_one(1, 4), all_reduce(2)
    many = [
        unroll_learner(f"learner-{i}", algorithm(), Recorded(unrolls[i::2]), None, SKIPS, 1, place.member(i))
        for i in range(2)
    ]
    drive(many)
    assert [one.metrics.drain()["counts"]["batches_skipped"] for one in many] == [1, 1]
    assert np.array_equal(weights_of(many[0]), weights_of(many[1])) and np.isfinite(weights_of(many[0])).all()
    assert many[0].updates == many[1].updates == 2


@pytest.mark.parametrize("before", [0, 2])
def test_updates_that_nobody_waited_for_are_undone(before: int) -> None:
    line = Line([1.0] * before + [1.0, math.inf, 1.0, 2.0])
    line.gradient.settings = replace(line.gradient.settings, skips_non_finite=True)
    for _ in range(before):
        line.gradient.apply(line.gradient.backward())
    weights = line.weights()
    line.gradient.backward_and_apply()
    line.gradient.backward_and_apply()
    with pytest.raises(NonFiniteError):
        line.gradient.backward()
    assert line.weights() == weights
    same = Line([1.0] * before + [2.0])
    for each in (line, same):
        while True:
            try:
                each.gradient.apply(each.gradient.backward())
            except StopIteration:
                break
    assert line.weights() == same.weights(), "its optimizer went back, too"


def test_epochs_on_a_device_go_back_to_the_weights_before_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pappus.accelerator.WARMUP_CALLS", 10**9)
    ppo, broken = PPO(PPOConfig(epochs=2, minibatches=3), ENV, NETWORK), unrolls_with_a_broken_one(0, 1)
    gradient: Any = GradientStep(Metrics("learner"), ppo, SKIPS)
    gradient.accelerator = FakeDevice()
    subject = Learner("learner", gradient, EpochTraining(ppo, Recorded(broken), gradient, 1), Publication(None))
    before = weights_of(subject)
    run(subject)
    assert np.array_equal(weights_of(subject), before) and subject.metrics.drain()["counts"]["batches_skipped"] == 1


def test_items_of_replay_that_are_to_blame_are_hardly_drawn_again() -> None:
    setup = Setup()
    setup.gradient.settings = replace(setup.gradient.settings, skips_non_finite=True)
    setup.learn()
    weights = setup.flat
    batch: Any = random_batch(np.random.default_rng(1))
    batch.items.reward[0] = np.nan
    setup.source.batches.append(batch)
    assert setup.learner.step() is None and torch.equal(setup.flat, weights)
    keys, priorities = setup.source.updates[-1]
    assert keys is batch.keys and priorities[0] == SMALLEST_PRIORITY
    assert np.isfinite(priorities).all() and (priorities[1:] > SMALLEST_PRIORITY).all()
