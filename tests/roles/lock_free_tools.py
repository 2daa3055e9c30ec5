"""Commons, counters and a master, without processes."""

from __future__ import annotations

import numpy as np
import torch

from pappus.config import OptimizerConfig
from pappus.roles.lock_free import LockFreeExchange, statistics_of
from pappus.roles.master import Master
from pappus.transports.commons import SharedCommons
from pappus.transports.memory import HeapBlock
from pappus.transports.tally import Tally
from pappus.transports.weights import FlatWeights

SIZE, STEPS = 4, 100


class Setup:
    """What a program of lock-free updates connects."""

    def __init__(self, optimizer: OptimizerConfig, workers: int = 1, initial: float = 0.0) -> None:
        rows = 1 + len(statistics_of(optimizer))
        self.commons = SharedCommons("commons", SIZE, rows, HeapBlock(*SharedCommons.footprint(SIZE, rows)))
        self.steps, self.updates = (
            Tally(name, workers, HeapBlock(*Tally.footprint(workers))) for name in ("steps", "updates")
        )
        self.weights = FlatWeights("weights", SIZE, HeapBlock(*FlatWeights.footprint(SIZE)))
        self.optimizer, self._initial = optimizer, torch.full((SIZE,), initial)
        self.exchanges = [
            LockFreeExchange(self.commons, self.updates.counter(i), self.steps.counter(i), optimizer, STEPS)
            for i in range(workers)
        ]
        self.master = self.new_master()

    def new_master(self) -> Master:
        return Master(
            "master", self._initial, self.commons, self.weights, self.steps, self.updates, self.optimizer, STEPS
        )

    def read(self, worker: int = 0) -> list[float]:
        into = np.empty(SIZE, np.float32)
        self.exchanges[worker].read(into)
        return [float(value) for value in into]

    def published(self) -> tuple[int, list[float]]:
        into = np.empty(SIZE, np.float32)
        return self.weights.read(into), [float(value) for value in into]
