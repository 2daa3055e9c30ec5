"""Shared parameters, counters and a master, without processes."""

from __future__ import annotations

import numpy as np
import torch

from pappus.config import OptimizerConfig
from pappus.edges.counters import SharedCounters
from pappus.edges.shared_parameters import ParameterMemory
from pappus.edges.weights import FlatWeights
from pappus.roles.lock_free import LockFreeChannel, Master, statistics_of
from pappus.transports.memory import HeapBlock

SIZE, STEPS = 4, 100


class Setup:
    """What a program of lock-free updates connects."""

    def __init__(self, optimizer: OptimizerConfig, workers: int = 1, initial: float = 0.0) -> None:
        rows = 1 + len(statistics_of(optimizer))
        block = HeapBlock(*ParameterMemory.footprint(SIZE, rows))
        self.shared_parameters = ParameterMemory("shared_parameters", SIZE, rows, block)
        self.steps, self.updates = (
            SharedCounters(name, workers, HeapBlock(*SharedCounters.footprint(workers)))
            for name in ("steps", "updates")
        )
        self.weights = FlatWeights("weights", SIZE, HeapBlock(*FlatWeights.footprint(SIZE)))
        self.optimizer, self._initial = optimizer, torch.full((SIZE,), initial)
        self.channels = [
            LockFreeChannel(self.shared_parameters, self.updates.counter(i), self.steps.counter(i), optimizer, STEPS)
            for i in range(workers)
        ]
        self.master = self.new_master()

    def new_master(self) -> Master:
        return Master(
            "master", self._initial, self.shared_parameters, self.weights, self.steps, self.updates, self.optimizer,
            STEPS,
        )

    def read(self, worker: int = 0) -> list[float]:
        into = np.empty(SIZE, np.float32)
        self.channels[worker].read(into)
        return [float(value) for value in into]

    def published(self) -> tuple[int, list[float]]:
        into = np.empty(SIZE, np.float32)
        return self.weights.read(into), [float(value) for value in into]
