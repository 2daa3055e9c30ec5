from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pappus.algorithms.vtrace import VTrace, VTraceConfig
from pappus.config import NetworkConfig, OptimizerConfig
from pappus.edges.queue import RingQueue
from pappus.edges.weights import FlatWeights
from pappus.errors import NonFiniteError
from pappus.roles.gradient_step import LearnerSettings
from pappus.telemetry.checkpoint import load_state
from pappus.transports.memory import HeapBlock
from pappus.types import ArraySpec, DiscreteAction, EnvSpec, Unroll, leaves_of, unroll_spec
from tests.roles.learner_tools import alone, record, unroll_learner, weights_of

T, N = 5, 3
ENV = EnvSpec(ArraySpec((4,), "float32"), DiscreteAction(2))


class Setup:
    """A learner with a queue that the test fills by hand."""

    def __init__(self, unrolls_per_batch: int = 1, total_steps: int = 10**6, crash_dir: Path | None = None) -> None:
        algorithm = VTrace(VTraceConfig(), ENV, NetworkConfig(hidden_sizes=(8,)))
        spec = unroll_spec(ENV, algorithm.behaviour, algorithm.build_network().state_spec, T, N)
        self.queue = RingQueue("unrolls", spec, 1, 4, HeapBlock(*RingQueue.footprint(spec, 1, 4)))
        size = sum(p.numel() for p in algorithm.build_network().parameters())
        self.weights = FlatWeights("weights", size, HeapBlock(*FlatWeights.footprint(size)))
        settings = LearnerSettings(OptimizerConfig(), total_steps, seed=1, crash_dir=crash_dir)
        self.source, self.algorithm, self.settings = self.queue.source(), algorithm, settings
        self.learner = unroll_learner("learner", algorithm, self.source, self.weights, settings, unrolls_per_batch)
        self._random = np.random.default_rng(0)

        assert self.learner.step() is None and self.weights.version() == 0, "the first step publishes the first weights"

    def put(self, version: int = 0) -> Unroll:
        slot = self.queue.sink(0).acquire()
        assert slot is not None
        slot.observation[:] = self._random.normal(size=slot.observation.shape)
        slot.first[:] = False
        slot.action[:] = self._random.integers(0, 2, slot.action.shape)
        slot.reward[:] = self._random.normal(size=slot.reward.shape)
        slot.discount[:] = 1
        slot.valid[:] = True
        slot.behaviour["log_prob"][:] = math.log(0.5)
        slot.version[:] = version
        self.queue.sink(0).commit()
        return slot

    def flat(self) -> np.ndarray:
        into = np.empty(self.learner._gradient.flat.size, np.float32)
        self.weights.read(into)
        return into


def test_it_waits_for_its_source_until_a_whole_batch_is_there() -> None:
    setup = Setup(unrolls_per_batch=2)
    setup.put()
    assert setup.learner.step() is setup.source
    setup.put()
    assert setup.learner.step() is None and setup.learner.updates == 1


def test_every_update_publishes_a_new_version() -> None:
    setup = Setup()
    before = setup.flat()
    setup.put()
    setup.learner.step()
    assert setup.weights.version() == 1 and not np.array_equal(setup.flat(), before)


def test_an_epoch_is_an_update_from_the_same_batch_with_the_newest_weights() -> None:
    (unroll,) = record(1)
    thrice, again = alone([unroll], 1, epochs=3), alone([unroll] * 3, 1)
    assert np.allclose(weights_of(thrice), weights_of(again), atol=1e-7)
    assert (thrice.updates, thrice.steps) == (3, int(unroll.valid.sum())), "a step counts once"


def test_only_valid_steps_are_counted() -> None:
    setup = Setup()
    setup.put().valid[2, :2] = False
    setup.learner.step()
    assert setup.learner.steps == T * N - 2


def test_policy_lag_is_the_updates_between_acting_and_learning() -> None:
    setup = Setup()
    for _ in range(3):
        setup.put(version=0)
        setup.learner.step()
    report = setup.learner.metrics.drain()
    assert report["means"]["learner/policy_lag"] == [0 + 1 + 2, 3] and report["maxima"]["learner/policy_lag_max"] == 2


def test_two_slots_in_one_batch_give_the_gradient_of_both() -> None:
    together, apart = Setup(unrolls_per_batch=2), Setup(unrolls_per_batch=1)
    slots = [together.put(), together.put()]
    training: Any = together.learner._training
    assert training.take() is None
    loss, _ = training.loss()
    singles = []
    for slot in slots:
        for into, leaf in zip(leaves_of(apart.put()), leaves_of(slot), strict=True):
            into[...] = leaf
        part: Any = apart.learner._training
        assert part.take() is None
        singles.append(part.loss()[0])
        part.release()
    assert training.batch()["reward"].shape == (T, 2 * N)
    assert torch.allclose(loss, sum(singles) / 2, atol=1e-6)


@pytest.mark.parametrize(("field", "culprit"), [("reward", "value_loss=nan"), ("log_prob", "value_loss=nan")])
def test_a_non_finite_loss_stops_before_the_weights_change_and_names_what_went_first(
    tmp_path: Path, field: str, culprit: str
) -> None:
    setup = Setup(crash_dir=tmp_path)
    before = setup.flat()
    slot = setup.put()
    (slot.reward if field == "reward" else slot.behaviour["log_prob"])[1, 1] = np.nan
    with pytest.raises(NonFiniteError) as caught:
        setup.learner.step()
    assert culprit in str(caught.value) and "at update 1" in str(caught.value) and "is not finite" in str(caught.value)
    assert np.array_equal(setup.flat(), before)
    kept = load_state(tmp_path, "non_finite_batch")
    assert kept["reward" if field == "reward" else "behaviour"] is not None
    assert (kept["reward"] if field == "reward" else kept["behaviour"]["log_prob"]).isnan().sum() == 1


def test_a_batch_that_cannot_be_kept_does_not_hide_why_it_should_be(tmp_path: Path) -> None:
    setup = Setup(crash_dir=tmp_path / "removed")
    setup.put().reward[1, 1] = np.nan
    with pytest.raises(NonFiniteError, match=r"is not finite.*; the batch is not kept: "):
        setup.learner.step()


def test_the_learning_rate_falls_to_zero_over_the_run_and_the_learner_is_done_then() -> None:
    setup = Setup(total_steps=3 * T * N)
    rates = []
    for _ in range(3):
        rates.append(setup.learner._gradient.learning_rate())
        setup.put()
        setup.learner.step()
    assert np.allclose(rates, [1e-3, 2e-3 / 3, 1e-3 / 3]) and setup.learner._gradient.learning_rate() == 0
    assert setup.learner.finished


def test_a_learner_goes_on_from_its_saved_state_as_if_nothing_had_happened() -> None:
    one, two = Setup(), Setup()
    one.put()
    one.learner.step()
    two.learner.load(one.learner.save())
    assert two.weights.version() == 1
    for setup in (one, two):
        setup._random = np.random.default_rng(7)
        setup.put()
        setup.learner.step()
    assert np.array_equal(one.flat(), two.flat())


def test_a_resumed_learner_never_publishes_untrained_weights() -> None:
    trained = Setup()
    trained.put()
    trained.learner.step()
    spy = Spy()
    fresh = unroll_learner("learner", trained.algorithm, trained.queue.source(), spy, trained.settings, 1)
    fresh.load(trained.learner.save())
    fresh.step()
    assert spy.versions == [1]


class Spy:
    """Remembers which versions were published."""

    def __init__(self) -> None:
        self.versions: list[int] = []

    def publish(self, flat: np.ndarray, version: int) -> None:
        self.versions.append(version)
