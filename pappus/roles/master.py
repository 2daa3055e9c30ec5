"""The master of lock-free updates: it computes nothing, but counts, publishes and saves.

    worker 0 ──changes──┐
    worker 1 ──changes──┼──▶ shared parameters ──▶ master ──weights (versioned)──▶ evaluator
      ⋮                 │                  │
    worker N ──changes──┘                  └──▶ checkpoints, counts, the end of the run
"""

from __future__ import annotations

import time

import torch

from pappus.config import OptimizerConfig
from pappus.core import SharedParameters, StepTotal, Waitable, WeightsWriter
from pappus.errors import UserError
from pappus.roles.lock_free import statistics_of
from pappus.roles.role import IDLE, Role
from pappus.types import Nest

LOOK_SECONDS = 0.02
"""How often to look for updates of the workers."""


class Master(Role):
    """Opens the shared parameters, counts, publishes the weights now and then, saves, and ends the run."""

    def __init__(
        self, name: str, initial: torch.Tensor, shared: SharedParameters, weights: WeightsWriter, steps: StepTotal,
        updates: StepTotal, optimizer: OptimizerConfig, total_steps: int,
    ) -> None:
        super().__init__(name)
        self._initial, self._shared, self._weights = initial, shared, weights
        self._counted_steps, self._counted_updates, self._total_steps = steps, updates, total_steps
        self._optimizer, self._statistics = optimizer, statistics_of(optimizer)
        self._published = -1
        self.steps, self.updates = (int(count) for count in shared.counted)
        if shared.ready():  # by a predecessor
            self.metrics.event(f"back; weights and statistics are where they were, at version {updates.total():,}")

    def step(self) -> Waitable | None:
        """Open the shared parameters, or publish what changed there; without changes, look again after a while."""
        if not self._shared.ready():
            self._shared.rows[0] = self._initial.numpy()
            self._shared.open()
        self._count()
        self.finished = self.finished or self.steps >= self._total_steps
        if self._published == self.updates:
            self.wake_at = time.perf_counter() + LOOK_SECONDS
            return IDLE
        self._weights.publish(self._shared.rows[0], self.updates)
        self._published = self.updates
        return None

    def receive(self, command: str, argument: int) -> None:
        """`finish`: workers stop as well, so that the saved weights are the evaluated ones."""
        if command != "finish":
            return super().receive(command, argument)
        self.finished = True
        self._shared.rest()

    def _count(self) -> None:
        steps, updates = self._counted_steps.total(), self._counted_updates.total()
        if updates > self.updates or steps > self.steps:
            self.metrics.count("env_steps", steps - self.steps)
            self.metrics.count("updates", updates - self.updates)
        self.steps, self.updates = steps, updates
        self._shared.counted[:] = steps, updates

    def progress(self) -> tuple[int, int]:
        """Steps and updates."""
        return self.steps, self.updates

    def save(self) -> Nest:
        """Weights, statistics and counts, while workers keep changing them."""
        weights, *statistics = torch.from_numpy(self._shared.rows.copy()).unbind()
        return {
            "weights": weights, "statistics": dict(zip(self._statistics, statistics, strict=True)),
            "steps": self.steps, "updates": self.updates,
        }

    def load(self, state: Nest) -> None:
        """Continue from a checkpoint, unless newer weights are still in shared memory."""
        if not self._shared.ready():
            self._restore(state)
        self.steps, self.updates = (int(count) for count in self._shared.counted)

    def _restore(self, state: Nest) -> None:
        if tuple(state["statistics"]) != self._statistics:
            raise UserError(
                f"optimizer.name={self._optimizer.name} keeps {', '.join(self._statistics)}, but the checkpoint holds "
                f"{', '.join(state['statistics'])}; resume with the optimizer that the run began with"
            )
        for row, saved in zip(self._shared.rows, (state["weights"], *state["statistics"].values()), strict=True):
            row[:] = saved.numpy()
        self._counted_steps.set_total(state["steps"])
        self._counted_updates.set_total(state["updates"])
        self._shared.counted[:] = state["steps"], state["updates"]
        self._shared.open()
