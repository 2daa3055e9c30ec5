"""Epochs of minibatches: what an algorithm, or a subclass of one, defines is what is trained with."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pappus.accelerator import one_thread
from pappus.algorithms.ppo import PPO, PPOConfig
from pappus.config import NetworkConfig, OptimizerConfig
from pappus.errors import NonFiniteError
from pappus.ops.distributions import Categorical
from pappus.roles.epoch_training import EpochTraining
from pappus.roles.gradient_step import GradientStep, LearnerSettings
from pappus.roles.learner import Learner, Publication
from pappus.telemetry.checkpoint import load_state
from pappus.telemetry.metrics import Metrics
from tests.roles.learner_tools import ENV, NETWORK, Recorded, record, unroll_learner, weights_of

CONFIG = PPOConfig(epochs=2, minibatches=3)


class NewLoss(PPO):
    """Counts how often its loss is asked for."""

    asked = 0

    def loss(self, network: Any, steps: Any, report: bool = True) -> tuple[Tensor, dict[str, Tensor]]:
        self.asked += 1
        return super().loss(network, steps, report)


class NewOutput(PPO):
    """Calls the network in its own way."""

    asked = 0

    def _output(self, network: Any, steps: Any) -> Any:
        self.asked += 1
        return super()._output(network, steps)


class NewLossOnBoth(NewLoss):
    """Says that its arrays compute the same."""

    def on_arrays(self, network: Any) -> Any:
        return super().on_arrays(network)


class Own:
    """An algorithm of epochs that is no PPO by class, and offers neither arrays nor a way to share minibatches."""

    def __init__(self, config: PPOConfig, env: Any, network: NetworkConfig) -> None:
        ppo = PPO(config, env, network)
        self.behaviour, self.build_network, self.act = ppo.behaviour, ppo.build_network, ppo.act
        self.check_batch, self.prepare, self.minibatches = ppo.check_batch, ppo.prepare, ppo.minibatches
        self.loss, self.enough = ppo.loss, ppo.enough


def trained(algorithm: Any) -> Learner:
    subject = unroll_learner(
        "learner", algorithm, Recorded(record(4)), None, LearnerSettings(OptimizerConfig(), 10**6, 1), 1
    )
    with one_thread():
        while subject.step() is None:
            pass
    return subject


@pytest.mark.parametrize("kind", [NewLoss, NewOutput])
def test_a_loss_that_a_subclass_overrides_is_the_one_that_is_minimised(kind: type[PPO]) -> None:
    algorithm: Any = kind(CONFIG, ENV, NETWORK)
    subject = trained(algorithm)
    assert subject.updates == algorithm.asked == 4 * 2 * 3
    plain = trained(PPO(CONFIG, ENV, NETWORK))
    torch.testing.assert_close(weights_of(subject), weights_of(plain), rtol=1e-4, atol=1e-5)


def test_a_subclass_that_overrides_the_faster_way_too_has_it_used() -> None:
    algorithm = NewLossOnBoth(CONFIG, ENV, NETWORK)
    assert trained(algorithm).updates == 24 and algorithm.asked == 0


def test_a_distribution_of_another_class_is_not_taken_for_the_one_that_arrays_know() -> None:
    class Sharper(Categorical): ...

    algorithm = PPO(CONFIG, ENV, NETWORK)
    assert algorithm.on_arrays(algorithm.build_network()) is not None
    algorithm.distribution = Sharper(*algorithm.distribution.__dict__.values())
    assert algorithm.on_arrays(algorithm.build_network()) is None


def test_an_algorithm_needs_neither_to_be_ppo_nor_a_faster_way() -> None:
    own, plain = trained(Own(CONFIG, ENV, NETWORK)), trained(PPO(CONFIG, ENV, NETWORK))
    assert own.updates == plain.updates == 24
    torch.testing.assert_close(weights_of(own), weights_of(plain), rtol=1e-4, atol=1e-5)


class FakeDevice:
    """A device for which nothing is captured: what is queued is done at once."""

    real, device = True, torch.device("cpu")

    def on(self, stream: Any) -> Any:
        return nullcontext()

    def wait(self) -> None: ...


def on_a_device(unrolls: Any, crash_dir: Path | None = None) -> Learner:
    algorithm = PPO(CONFIG, ENV, NETWORK)
    settings = LearnerSettings(OptimizerConfig(), 10**6, 1, crash_dir=crash_dir)
    gradient: Any = GradientStep(Metrics("learner"), algorithm, settings)
    gradient.accelerator = FakeDevice()
    return Learner("learner", gradient, EpochTraining(algorithm, Recorded(unrolls), gradient, 1), Publication(None))


def test_updates_on_a_device_do_not_wait_and_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pappus.accelerator.WARMUP_CALLS", 10**9)
    subject, waited = on_a_device(record(4)), []
    look = subject._gradient.backward
    monkeypatch.setattr(subject._gradient, "backward", lambda kind=0: (waited.append(kind), look(kind))[1])
    with one_thread():
        while subject.step() is None:
            pass
    assert subject.updates == 24 and waited == [1] * 4, "it looks at the last minibatch of every batch"
    expected = weights_of(trained(Own(CONFIG, ENV, NETWORK)))
    torch.testing.assert_close(weights_of(subject), expected, rtol=1e-4, atol=1e-5)


def test_a_broken_minibatch_on_a_device_keeps_all_steps_of_its_batch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("pappus.accelerator.WARMUP_CALLS", 10**9)
    unrolls = record(1)
    unrolls[0].valid[:] = True
    unrolls[0].reward[0, 0] = np.nan
    subject = on_a_device(unrolls, tmp_path)
    with pytest.raises(NonFiniteError, match="is not finite"), one_thread():
        while subject.step() is None:
            pass
    assert len(load_state(tmp_path, "non_finite_batch")["action"]) == unrolls[0].action.size
