"""Updates without a lock: every worker changes the shared weights itself (Mnih et al. 2016, section 4)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pappus.config import OptimizerConfig
from pappus.core import SharedParameters, StepCounter, StepTotal
from pappus.ops.descent import adagrad_step, adam_step, rmsprop_step
from pappus.roles.gradient_step import learning_rate_at
from pappus.roles.role import IDLE, Idle
from pappus.types import Array


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

    The optimizer's statistics are shared, as in the paper. What depends on time (Adam's bias correction, the annealed
    step size) follows the shared counts.
    """

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
        """Updates so far, -1 until there are weights."""
        return self._updates.total() if self._shared.ready() else -1

    def read(self, into: Array) -> int:
        """Copy the weights; changes that others make meanwhile may be in the copy or not."""
        self._read = self._updates.total()
        into[:] = self._shared.rows[0]
        self._shared.moved()
        return self._read

    def full(self) -> Idle | None:
        """None, until the run has all its steps or is told to end."""
        return IDLE if self._shared.resting() or self._steps.total() >= self._total_steps else None

    def send(self, gradient: Array, loss: float) -> int:
        """Change weights and statistics in place; return the updates of others since the weights were read."""
        before = self._updates.total()
        rate = learning_rate_at(self._config, self._steps.total(), self._total_steps)
        descend(self._config, rate, self._weights, self._statistics, torch.from_numpy(gradient), before + 1)
        self._updates.add(1)
        self._shared.moved()
        return before - self._read
