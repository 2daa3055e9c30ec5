"""Learners that learn from recorded unrolls, alone or together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pappus.algorithms.vtrace import VTrace, VTraceConfig
from pappus.config import NetworkConfig, OptimizerConfig
from pappus.core import AllReduce
from pappus.edges.all_reduce import AllReduceEdge
from pappus.roles.gradient_learner import LearnerSettings, NoWeights
from pappus.roles.learner import Learner
from pappus.roles.synced_gradient import numbers_beside
from pappus.threads import one_thread
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


def algorithm(reduction: Any = "mean", network: NetworkConfig = NETWORK) -> VTrace:
    return VTrace(VTraceConfig(reduction=reduction), ENV, network)


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


def learner(
    name: str, unrolls: Sequence[Unroll], slots: int, all_reduce: AllReduce | None = None, reduction: str = "mean",
    seed: int = 1, total_steps: int = 10**6, weights: Any = None,
) -> Learner:
    """One that begins with the weights of `seed`; so many unrolls make a batch."""
    settings = LearnerSettings(OptimizerConfig(clip_norm=0.5), total_steps, seed, all_reduce=all_reduce)
    return Learner(name, algorithm(reduction), Recorded(unrolls), weights or NoWeights(), settings, slots)


def weights_of(subject: Learner) -> np.ndarray:
    return subject._flat.values.detach().numpy().copy()


def alone(unrolls: Sequence[Unroll], slots: int, reduction: str = "mean") -> Learner:
    """One learner that has learnt from all of them."""
    subject = learner("learner", unrolls, slots, reduction=reduction)
    with one_thread():
        while subject.step() is None:
            pass
    return subject


class KeepsWeights(Learner):
    """Writes its weights down after so many updates, and is done then."""

    def __init__(self, name: str, incarnation: int, index: int, all_reduce: AllReduce, folder: Path) -> None:
        unrolls = record(all_reduce.members * UPDATES)[all_reduce.member :: all_reduce.members]
        settings = LearnerSettings(OptimizerConfig(clip_norm=0.5), 10**6, 1, all_reduce=all_reduce)
        super().__init__(name, algorithm(), Recorded(unrolls), NoWeights(), settings, 1)
        self._folder = folder

    def _advance(self, steps: int, updates: int = 1, of_all: int | None = None) -> None:
        super()._advance(steps, updates, of_all)
        if self.updates == UPDATES:
            np.save(self._folder / f"{self.name}.npy", weights_of(self))
            self.finished = True
