"""A worker: one unroll, its gradient, fresh weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pappus.algorithms.a2c import A2C, A2CConfig
from pappus.config import EnvOptions, NetworkConfig, OptimizerConfig
from pappus.core import Waitable
from pappus.edges.counters import SharedCounters
from pappus.envs.vector import make_env
from pappus.errors import NonFiniteError
from pappus.networks.flat import FlatParameters
from pappus.roles.acting import Actor, LocalPolicy
from pappus.roles.actor_learner import OwnWeights, UnrollSlot, Worker
from pappus.roles.gradient_step import GradientStep, LearnerSettings
from pappus.roles.learner import Learner, UnrollTraining
from pappus.roles.role import IDLE
from pappus.telemetry.metrics import Metrics
from pappus.transports.memory import HeapBlock
from pappus.types import Array, map_leaves, unroll_spec

LENGTH, ENVS = 6, 2


class FakeGradientChannel:
    """A channel that the test plays."""

    name = "weights"

    def __init__(self, size: int) -> None:
        self.newest = -1
        self.flat = np.random.default_rng(0).normal(0, 0.1, size).astype(np.float32)
        self.port: Waitable | None = None
        self.sent: list[tuple[Array, float]] = []
        self.read_versions: list[int] = []

    def version(self) -> int:
        return self.newest

    def read(self, into: Array) -> int:
        into[:] = self.flat
        self.read_versions.append(self.newest)
        return self.newest

    def full(self) -> Waitable | None:
        return self.port

    def send(self, gradient: Array, loss: float) -> int:
        self.sent.append((gradient.copy(), loss))
        return 3

    def explain(self) -> str:
        return "the test has published none"

    def fileno(self) -> int:
        return -1

    def clear(self) -> None: ...


class Setup:
    """A worker on CartPole and the gradient channel that it holds."""

    def __init__(self, core: Any = "none", crash_dir: Path | None = None, clip_norm: float = 1e6) -> None:
        env = make_env("CartPole-v1", ENVS, 1, EnvOptions())
        self.algorithm = A2C(A2CConfig(), env.spec, NetworkConfig(hidden_sizes=(4,), core=core, core_size=4))
        network: Any = self.algorithm.build_network()
        self.channel = FakeGradientChannel(FlatParameters(network).size)
        self.counters = SharedCounters("steps", 1, HeapBlock(*SharedCounters.footprint(1)))
        spec = unroll_spec(env.spec, self.algorithm.behaviour, network.state_spec, LENGTH, ENVS)
        self.slot = UnrollSlot(spec, self.channel)
        settings = LearnerSettings(OptimizerConfig(clip_norm=clip_norm), 10**6, seed=1, crash_dir=crash_dir)
        gradient = GradientStep(Metrics("worker-0"), self.algorithm, settings, channel=self.channel)
        training = UnrollTraining(self.algorithm, self.slot, gradient, 1, counter=self.counters.counter(0))
        weights = OwnWeights(self.channel, gradient.flat.values.detach().numpy())
        actor = Actor("worker-0", env, LocalPolicy(self.algorithm, weights, ENVS, seed=1), self.slot, LENGTH)
        self.worker = Worker("worker-0", actor, Learner("worker-0", gradient, training), self.slot)

    def act(self) -> Any:
        """One unroll, and a copy of it as tensors."""
        while not self.slot.filled:
            assert self.worker.step() is None
        (unroll,) = self.slot.take(1) or ()
        return map_leaves(lambda leaf: torch.from_numpy(leaf.copy()), unroll)

    def literal(self, weights: Array, unroll: Any) -> tuple[torch.Tensor, float]:
        network = self.algorithm.build_network()
        torch.nn.utils.vector_to_parameters(torch.from_numpy(weights), network.parameters())
        loss, _ = self.algorithm.loss(network, unroll)
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(network.parameters()))]), loss.item()


def test_it_waits_for_the_first_weights() -> None:
    setup = Setup()
    port = setup.worker.step()
    assert port is not None and port.name == "weights" and not setup.channel.read_versions


@pytest.mark.parametrize("core", ["none", "lstm"])
def test_it_sends_the_literal_gradient_of_the_weights_that_acted(core: str) -> None:
    setup = Setup(core)
    for version in range(3):
        setup.channel.newest = version
        acted = setup.channel.flat.copy()
        setup.worker.step()
        setup.channel.flat, setup.channel.newest = setup.channel.flat + 0.05, version + 1  # others are faster
        unroll = setup.act()
        assert setup.worker.step() is None
        sent, loss = setup.channel.sent[-1]
        gradient, expected = setup.literal(acted, unroll)
        torch.testing.assert_close(torch.from_numpy(sent), gradient)
        assert loss == pytest.approx(expected) and set(unroll.version.flatten().tolist()) == {version}
        setup.channel.newest = -1  # never looked at in the middle of an unroll


def test_weights_are_taken_once_per_unroll() -> None:
    setup = Setup()
    for version in range(4):
        setup.channel.newest = version
        setup.act()
        setup.worker.step()
    assert setup.channel.read_versions == [0, 1, 2, 3] and len(setup.channel.sent) == 4


def test_the_next_unroll_waits_until_the_last_gradient_is_taken_care_of() -> None:
    setup = Setup()
    setup.channel.newest = 0
    setup.act()
    setup.worker.step()
    setup.channel.port = setup.channel
    port = setup.worker.step()
    assert port is setup.slot and port.explain() == setup.channel.explain()
    setup.channel.port, setup.channel.newest = None, 1
    setup.act()
    assert setup.channel.read_versions == [0, 1]


def test_it_rests_when_the_run_is_over() -> None:
    setup = Setup()
    setup.channel.newest = 0
    setup.channel.port = IDLE
    port = setup.worker.step()
    assert port is not None and port.fileno() == -1


def test_it_counts_valid_steps_gradients_and_staleness() -> None:
    setup = Setup()
    setup.channel.newest = 0
    valid = 0
    for _ in range(8):
        valid += int(setup.act().valid.sum())
        setup.worker.step()
    report = setup.worker.metrics.drain()
    assert setup.counters.total() == valid < 8 * LENGTH * ENVS, "some rows are resets"
    assert report["role"] == "worker-0" and report["counts"]["gradients"] == 8 and "updates" not in report["counts"]
    assert report["means"]["staleness"] == [24.0, 8.0] and report["maxima"]["staleness_max"] == 3
    assert "losses/entropy" in report["means"] and not report["gauges"]


def test_a_gradient_is_clipped_before_it_is_sent() -> None:
    setup = Setup(clip_norm=0.01)
    setup.channel.newest = 0
    setup.act()
    setup.worker.step()
    assert np.linalg.norm(setup.channel.sent[0][0]) == pytest.approx(0.01, rel=1e-3)


def test_a_gradient_that_is_not_finite_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    setup = Setup(crash_dir=tmp_path)
    setup.channel.newest = 0
    setup.act()
    (unroll,) = setup.slot.take(1) or ()
    unroll.reward[0, 0] = np.nan
    with pytest.raises(NonFiniteError, match=r"value_loss=nan at update 1 \(0 steps\) is not finite; lower"):
        setup.worker.step()
    assert not setup.channel.sent and (tmp_path / "non_finite_batch.safetensors").exists()
