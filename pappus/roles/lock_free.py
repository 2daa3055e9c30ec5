"""Updates without a lock: every worker changes the shared weights itself (Mnih et al. 2016, section 4).

    worker 0 ──changes──┐
    worker 1 ──changes──┼──▶ shared parameters ──▶ master ──weights (versioned)──▶ evaluator
      ⋮                 │                  │
    worker N ──changes──┘                  └──▶ checkpoints, counts, the end of the run

The master computes nothing: it counts, publishes and saves.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
from torch import Tensor

from pappus.config import OptimizerConfig
from pappus.core import ShardWeights, SharedParameters, StepCounter, StepTotal, Waitable
from pappus.errors import UserError
from pappus.ops.descent import adagrad_step, adam_step, rmsprop_step
from pappus.roles.gradient_step import learning_rate_at
from pappus.roles.role import IDLE, Idle, Role
from pappus.types import Array, Nest

LOOK_SECONDS = 0.02
"""How often the master looks for updates of the workers."""


def statistics_of(config: OptimizerConfig) -> tuple[str, ...]:
    """Names, as in torch, of the statistics that the configured optimizer keeps of every weight."""
    if config.name == "rmsprop":
        centered = ("grad_avg",) if config.centered else ()
        return ("square_avg", *centered, *(("momentum_buffer",) if config.momentum > 0 else ()))
    return ("sum",) if config.name == "adagrad" else ("exp_avg", "exp_avg_sq")


def descend(
    config: OptimizerConfig, rate: float, weights: Tensor, statistics: Mapping[str, Tensor], gradient: Tensor,
    update: int,
) -> None:
    """Take one step of size `rate` in place, as configured; `update` counts from 1."""
    if config.name == "rmsprop":
        mean, velocity = statistics.get("grad_avg"), statistics.get("momentum_buffer")
        rmsprop_step(
            weights, gradient, statistics["square_avg"], mean, velocity, rate=rate, decay=config.decay,
            momentum=config.momentum, epsilon=config.epsilon,
        )
    elif config.name == "adagrad":
        adagrad_step(weights, gradient, statistics["sum"], rate=rate, epsilon=config.epsilon)
    else:
        adam_step(
            weights, gradient, statistics["exp_avg"], statistics["exp_avg_sq"], rate=rate, mean_decay=config.momentum,
            square_decay=config.decay, epsilon=config.epsilon, update=update,
        )


class LockFreeChannel:
    """A gradient channel of one worker into the shared parameters. Its version counts the updates of all workers.
    The optimizer's statistics are shared, as in the paper; Adam's bias correction and the annealed step size follow the
    shared counts."""

    def __init__(
        self, shared: SharedParameters, updates: StepCounter, steps: StepTotal, config: OptimizerConfig,
        total_steps: int,
    ) -> None:
        self.name = shared.name
        self._shared, self._updates, self._steps = shared, updates, steps
        self._config, self._total_steps = config, total_steps
        self._weights, *statistics = torch.from_numpy(shared.rows).unbind()
        self._statistics = dict(zip(statistics_of(config), statistics, strict=True))
        self._read = 0
        self.explain, self.fileno, self.clear = shared.explain, shared.fileno, shared.clear

    def version(self) -> int:
        return self._updates.total() if self._shared.ready() else -1

    def read(self, into: Array) -> int:
        """Copy the weights; changes that others make meanwhile may be in the copy or not."""
        self._read = self._updates.total()
        into[:] = self._shared.rows[0]
        self._shared.moved()
        return self._read

    def full(self) -> Idle | None:
        """None, until the run has all its steps or is asked to finish."""
        return IDLE if self._shared.resting() or self._steps.total() >= self._total_steps else None

    def send(self, gradient: Array, loss: float) -> int:
        """Change weights and statistics in place; return the updates of others since the weights were read."""
        before = self._updates.total()
        rate = learning_rate_at(self._config, self._steps.total(), self._total_steps)
        descend(self._config, rate, self._weights, self._statistics, torch.from_numpy(gradient), before + 1)
        self._updates.add(1)
        self._shared.moved()
        return before - self._read

    def save(self) -> Nest:
        return {"read": self._read}

    def load(self, saved: Nest) -> None:
        """Changes go on, also if they were asked to stop before the checkpoint was written."""
        self._read = saved["read"]
        self._shared.go_on()


class Master(Role):
    """Initialises the shared parameters, counts updates, publishes weights periodically, saves, and ends the run."""

    def __init__(
        self, name: str, initial: torch.Tensor, shared: SharedParameters, weights: ShardWeights, steps: StepTotal,
        updates: StepTotal, optimizer: OptimizerConfig, total_steps: int,
    ) -> None:
        super().__init__(name)
        self._initial, self._shared, self._weights = initial, shared, weights
        self._counted_steps, self._counted_updates, self._total_steps = steps, updates, total_steps
        self._optimizer, self._statistics = optimizer, statistics_of(optimizer)
        self.steps, self.updates = (int(count) for count in shared.counted)
        if shared.ready():  # by a predecessor
            self.metrics.event(f"back; weights and statistics are unchanged, at version {updates.total():,}")

    def step(self) -> Waitable | None:
        """Open the shared parameters, or publish what changed there; without changes, look again after a while."""
        if not self._shared.ready():
            self._shared.rows[0] = self._initial.numpy()
            self._shared.open()
        self._count()
        self.finished = self.finished or self.steps >= self._total_steps
        if self._weights.version() == self.updates:
            self.wake_at = time.perf_counter() + LOOK_SECONDS
            return IDLE
        self._weights.publish(self._shared.rows[0], self.updates)
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
