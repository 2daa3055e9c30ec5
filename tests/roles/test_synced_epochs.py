"""Learners of synchronous actors that share every minibatch learn what one learns from all of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from pappus.accelerator import one_thread
from pappus.algorithms.a2c import A2C, A2CConfig
from pappus.algorithms.ppo import PPO, PPOConfig
from pappus.config import NetworkConfig, OptimizerConfig
from pappus.core import AllReduce
from pappus.edges.all_reduce import MemoryAllReduce
from pappus.roles.gradient_step import GradientStep, LearnerSettings
from pappus.roles.gradient_sync import numbers_beside
from pappus.roles.learner import Learner, Publication
from pappus.roles.role import IDLE
from pappus.transports.memory import HeapBlock
from pappus.types import Unroll
from tests.roles.learner_tools import ENV, NETWORK, UPDATES, N, Recorded, T, record, unroll_learner, weights_of

ONCE = PPOConfig(epochs=1, minibatches=1, normalize_advantage=False, normalize_returns=False)
CASES: dict[str, tuple[Any, NetworkConfig]] = {
    "a2c": (A2CConfig(), NETWORK),
    "a2c, observations normalised": (A2CConfig(), NetworkConfig(hidden_sizes=(8,), normalize=True)),
    "ppo, as it is simplest": (ONCE, NETWORK),
    "ppo, several epochs": (PPOConfig(epochs=3, minibatches=1), NETWORK),
    "ppo, all that can be normalised": (
        PPOConfig(epochs=2, minibatches=1), NetworkConfig(hidden_sizes=(8,), normalize=True),
    ),
}


def algorithm_of(config: Any, network: NetworkConfig) -> Any:
    return (PPO if isinstance(config, PPOConfig) else A2C)(config, ENV, network)


def make(
    unrolls: Sequence[Unroll], slots: int, config: Any, network: NetworkConfig, all_reduce: AllReduce | None = None
) -> Learner:
    settings = LearnerSettings(OptimizerConfig(clip_norm=0.5), 10**6, 1)
    name = f"learner-{all_reduce.member if all_reduce else 0}"
    return unroll_learner(name, algorithm_of(config, network), Recorded(unrolls), None, settings, slots, all_reduce)


def together(members: int, unrolls: Sequence[Unroll], config: Any, network: NetworkConfig) -> list[Learner]:
    """Learners that share recorded unrolls, one for each of them in turn."""
    modules = algorithm_of(config, network).build_network()
    size = sum(parameter.numel() for parameter in modules.parameters()) + numbers_beside(members)
    place = MemoryAllReduce(
        "other learners", members, size, HeapBlock(*MemoryAllReduce.footprint(members, size)), in_turn=True
    )
    return [make(unrolls[i::members], 1, config, network, place.member(i)) for i in range(members)]


def drive(learners: Sequence[Learner]) -> None:
    """Round after round, until nobody can go on; all are identical between rounds, to the bit."""
    with one_thread():
        while any([subject.step() is None for subject in learners]):
            assert len({weights_of(subject).tobytes() for subject in learners}) == 1


@pytest.mark.parametrize("members", [2, 3])
@pytest.mark.parametrize("case", CASES)
def test_many_learners_equal_one_with_all_their_batches(members: int, case: str) -> None:
    unrolls = record(members * UPDATES)
    one, many = make(unrolls, members, *CASES[case]), together(members, unrolls, *CASES[case])
    drive([one])
    drive(many)
    assert one.updates == many[0].updates == many[-1].updates >= UPDATES and one.steps == many[0].steps
    assert np.abs(weights_of(one) - weights_of(many[0])).max() < 1e-5


def test_minibatches_are_drawn_apart_and_everybody_stays_the_same() -> None:
    many = together(2, record(20), PPOConfig(epochs=2, minibatches=3), NETWORK)
    drive(many)
    assert [subject.updates for subject in many] == [60, 60]


def test_sequences_of_networks_with_memory_are_shared_too() -> None:
    memory = NetworkConfig(hidden_sizes=(8,), core="lstm", core_size=4)
    unrolls, config = record(20, memory), PPOConfig(epochs=2, minibatches=1)
    one, many = make(unrolls, 2, config, memory), together(2, unrolls, config, memory)
    drive([one])
    drive(many)
    assert one.updates == many[0].updates == 20
    assert np.abs(weights_of(one) - weights_of(many[0])).max() < 1e-5


def test_a_batch_is_left_by_all_or_by_none() -> None:
    """The policies of two parts of a batch lie at different distances from the one that acted: the mean counts."""
    unrolls = record(2)
    for unroll in unrolls:
        unroll.valid[:] = True
    unrolls[1].behaviour["log_prob"][:] = np.log(0.2)

    def updates(target: float) -> list[int]:
        many = together(2, unrolls, PPOConfig(epochs=4, minibatches=1, target_kl=target), NETWORK)
        drive(many)
        return [subject.updates for subject in many]

    near, far = (
        divergence(make([unroll], 1, PPOConfig(epochs=1, minibatches=1), NETWORK))
        for unroll in unrolls
    )
    assert near < 0.3 * far, "or this test says nothing"
    assert updates(0.4 * far) == [1, 1] and updates(0.9 * far) == [4, 4]


def divergence(subject: Learner) -> float:
    drive([subject])
    return float(subject.metrics.drain()["means"]["losses/approx_kl"][0])


def test_steps_are_counted_once_and_updates_by_the_first() -> None:
    unrolls = record(6)
    many = together(2, unrolls, PPOConfig(epochs=2, minibatches=3), NETWORK)
    drive(many)
    valid = [sum(int(unroll.valid.sum()) for unroll in unrolls[i::2]) for i in range(2)]
    counts = [subject.metrics.drain()["counts"] for subject in many]
    assert [count["env_steps"] for count in counts] == valid and [many[0].steps, many[1].steps] == [sum(valid)] * 2
    assert counts[0]["updates"] == 3 * 6 and "updates" not in counts[1]


def test_a_part_without_valid_steps_moves_nothing() -> None:
    unrolls, config, network = record(2), PPOConfig(epochs=2, minibatches=1), NETWORK
    unrolls[0].valid[:], unrolls[1].valid[:] = True, False
    one, many = make(unrolls[:1], 1, config, network), together(2, unrolls, config, network)
    drive([one])
    drive(many)
    assert np.abs(weights_of(one) - weights_of(many[0])).max() < 1e-6


def test_a_checkpoint_within_a_batch_is_that_of_its_beginning() -> None:
    unrolls, config, network = record(8), PPOConfig(epochs=2, minibatches=3), NETWORK
    whole, before = (together(2, part, config, network) for part in (unrolls, unrolls[:4]))
    torch.manual_seed(3)
    drive(whole)
    torch.manual_seed(3)
    with one_thread():
        for _ in range(9):
            for subject in before:
                subject.step()
    state = before[0].save()
    assert before[0]._under_way is not None and state["updates"] == before[0].updates == 0
    after = together(2, unrolls, config, network)
    for subject in after:
        subject.load(state)
    drive(after)
    assert np.array_equal(weights_of(after[0]), weights_of(whole[0]))


class Published:
    """Keeps the newest weights, and their version."""

    flat, version = np.zeros(0), -1

    def publish(self, flat: np.ndarray, version: int) -> None:
        self.flat, self.version = flat.copy(), version


def test_who_finishes_within_a_batch_publishes_and_saves_the_weights_from_before_it() -> None:
    many = together(2, record(4), PPOConfig(epochs=2, minibatches=3), NETWORK)
    published, initial = Published(), weights_of(many[0])
    many[0]._publication = Publication(published)
    with one_thread():
        for _ in range(9):
            for subject in many:
                subject.step()
    assert many[0]._under_way is not None and not np.array_equal(weights_of(many[0]), initial)
    for subject in many:
        subject.receive("finish", 0)
    state = many[0].save()
    assert published.version == state["updates"] == 0 and many[1].save() is None
    assert np.array_equal(published.flat, initial) and np.array_equal(state["weights"].numpy(), initial)
    assert all(subject.finished and subject.step() is IDLE for subject in many)


def test_moments_are_those_of_all_that_was_seen() -> None:
    unrolls, network = record(6), NetworkConfig(hidden_sizes=(8,), normalize=True)
    many = together(2, unrolls, PPOConfig(epochs=1, minibatches=1), network)
    drive(many)
    seen = np.concatenate([unroll.observation[:-1].reshape(-1, 4) for unroll in unrolls])
    moments = many[1]._gradient.network.torso.torsos[0].moments
    assert moments.count == 6 * T * N
    np.testing.assert_allclose(moments.mean, seen.mean(0), atol=1e-5)
    np.testing.assert_allclose(moments.variance, seen.var(0), rtol=1e-4)
    assert many[0]._gradient.network.returns.count == sum(int(unroll.valid.sum()) for unroll in unrolls)


class Replayed:
    """Calls a function once, and gives its first result ever after: what a captured graph is for Python."""

    def __init__(self, step: GradientStep, function: Any) -> None:
        self._function, self._result, self._called = function, None, False

    def __call__(self) -> Any:
        if not self._called:
            self._called, self._result = True, self._function()
        return self._result


@pytest.mark.parametrize("members", [1, 2])
def test_updates_that_report_and_updates_that_do_not_are_told_apart_in_replay(
    monkeypatch: pytest.MonkeyPatch, members: int
) -> None:
    monkeypatch.setattr(GradientStep, "_captured", lambda step, function: Replayed(step, function))
    config, unrolls = PPOConfig(epochs=2, minibatches=3), record(2 * members)
    learners = together(members, unrolls, config, NETWORK) if members > 1 else [make(unrolls, 1, config, NETWORK)]
    drive(learners)
    names = {name for name in learners[0].metrics.drain()["means"] if name.startswith("losses/")}
    assert learners[0].updates == 12 and "losses/approx_kl" in names and "losses/steps" not in names
