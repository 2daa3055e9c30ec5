"""Learners that learn from recorded unrolls, alone or together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pappus.accelerator import one_thread
from pappus.algorithms.vtrace import VTrace, VTraceConfig
from pappus.config import NetworkConfig, OptimizerConfig
from pappus.core import AllReduce, Source, Waitable
from pappus.edges.all_reduce import AllReduceEdge
from pappus.roles.epoch_training import EpochTraining
from pappus.roles.gradient_step import GradientStep, LearnerSettings
from pappus.roles.gradient_sync import numbers_beside
from pappus.roles.learner import Learner, Publication, UnrollTraining
from pappus.roles.role import Role
from pappus.telemetry.metrics import Metrics
from pappus.types import ArraySpec, DiscreteAction, EnvSpec, Unroll, map_leaves, unroll_spec

T, N, UPDATES = 5, 3, 50
ENV = EnvSpec(ArraySpec((4,), "float32"), DiscreteAction(2))


class Recorded:
    """A source that gives recorded unrolls, and then no more."""

    name = "unrolls"

    def __init__(self, unrolls: Sequence[Unroll]) -> None:
        self._unrolls, self._at, self._taken = unrolls, 0, 0

    def take(self, count: int) -> Sequence[Unroll] | None:
        if self._at + count > len(self._unrolls):
            return None
        self._taken = count
        return self._unrolls[self._at : self._at + count]

    def release(self) -> None:
        self._at += self._taken

    def depth(self) -> int:
        return len(self._unrolls) - self._at

    def explain(self) -> str:
        return "all were taken"

    def fileno(self) -> int:
        return -1

    def clear(self) -> None: ...


NETWORK = NetworkConfig(hidden_sizes=(8,))


def algorithm(reduction: Any = "mean", network: NetworkConfig = NETWORK, epochs: int = 1) -> VTrace:
    return VTrace(VTraceConfig(reduction=reduction, epochs=epochs), ENV, network)


def record(count: int, network_config: NetworkConfig = NETWORK) -> list[Unroll]:
    """Unrolls of which each has another number of valid steps."""
    subject, random = algorithm(network=network_config), np.random.default_rng(3)
    network: Any = subject.build_network()
    spec = unroll_spec(ENV, subject.behaviour, network.state_spec, T, N)
    unrolls: list[Unroll] = [map_leaves(lambda leaf: np.zeros(leaf.shape, leaf.dtype), spec) for _ in range(count)]
    for unroll in unrolls:
        unroll.observation[:] = random.normal(size=unroll.observation.shape)
        unroll.action[:] = random.integers(0, 2, unroll.action.shape)
        unroll.reward[:] = random.normal(size=unroll.reward.shape)
        unroll.discount[:] = 1
        unroll.valid[:] = random.random(unroll.valid.shape) < random.random()
        unroll.behaviour["log_prob"][:] = math.log(0.5)
        unroll.version[:] = -1  # no learner's own network has acted
    return unrolls


def all_reduce_edge(members: int, backend: Any) -> AllReduceEdge:
    parameters = sum(parameter.numel() for parameter in algorithm().build_network().parameters())
    return AllReduceEdge("other learners", members, parameters + numbers_beside(members), backend)


def unroll_learner(
    name: str, subject: Any, source: Source, weights: Any, settings: LearnerSettings, slots: int,
    all_reduce: AllReduce | None = None,
) -> Learner:
    """Composed as builders do it: `slots` unrolls make a batch."""
    gradient = GradientStep(Metrics(name), subject, settings, all_reduce)
    if not hasattr(subject, "prepare"):
        training = UnrollTraining(subject, source, gradient, slots, epochs=getattr(subject, "epochs", 1))
        return Learner(name, gradient, training, Publication(weights))
    synced = None if all_reduce is None else subject.synced()
    return Learner(name, gradient, EpochTraining(subject, source, gradient, slots, synced), Publication(weights))


def learner(
    name: str, unrolls: Sequence[Unroll], slots: int, all_reduce: AllReduce | None = None, reduction: str = "mean",
    seed: int = 1, total_steps: int = 10**6, weights: Any = None, epochs: int = 1,
) -> Learner:
    """One that begins with the weights of `seed`; so many unrolls make a batch."""
    settings = LearnerSettings(OptimizerConfig(clip_norm=0.5), total_steps, seed)
    subject = algorithm(reduction, epochs=epochs)
    return unroll_learner(name, subject, Recorded(unrolls), weights, settings, slots, all_reduce)


def weights_of(subject: Learner) -> np.ndarray:
    """Weights, and running moments behind them."""
    return subject._gradient.flat.values.detach().numpy().copy()


def alone(unrolls: Sequence[Unroll], slots: int, reduction: str = "mean", epochs: int = 1) -> Learner:
    """One learner that has learnt from all of them."""
    subject = learner("learner", unrolls, slots, reduction=reduction, epochs=epochs)
    with one_thread():
        while subject.step() is None:
            pass
    return subject


class KeepsWeights(Role):
    """A learner that writes its weights down after so many updates, and is done then."""

    def __init__(self, name: str, incarnation: int, index: int, all_reduce: AllReduce, folder: Path) -> None:
        super().__init__(name)
        unrolls = record(all_reduce.members * UPDATES)[all_reduce.member :: all_reduce.members]
        self._learner, self._folder = learner(name, unrolls, 1, all_reduce), folder
        self.metrics = self._learner.metrics

    def step(self) -> Waitable | None:
        port = self._learner.step()
        if self._learner.updates == UPDATES and not self.finished:
            np.save(self._folder / f"{self.name}.npy", weights_of(self._learner))
            self.finished = True
        return port
