"""Updates without a lock: every worker changes the shared weights itself (Mnih et al. 2016, section 4)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from pappus.config import OptimizerConfig
from pappus.core import SharedParameters, StepCounter, StepTotal
from pappus.ops.descent import adagrad_step, adam_step, rmsprop_step
from pappus.roles.gradient_learner import learning_rate_at
from pappus.roles.role import IDLE, Idle
from pappus.types import Array


def statistics_of(config: OptimizerConfig) -> tuple[str, ...]:
    """What the configured optimizer remembers of every weight, by torch's names."""
    if config.name == "rmsprop":
        centered = ("grad_avg",) if config.centered else ()
        return ("square_avg", *centered, *(("momentum_buffer",) if config.momentum > 0 else ()))
    return ("sum",) if config.name == "adagrad" else ("exp_avg", "exp_avg_sq")


def descend(
    config: OptimizerConfig, rate: float, weights: Tensor, statistics: Mapping[str, Tensor], gradient: Tensor,
    update: int,
) -> None:
    """Take one step of size `rate` as configured, in place; `update` counts from 1."""
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
    """One worker's hands on the shared parameters. Its version is the number of updates that all have made together.

    The optimizer's statistics are shared as the paper's are, and what it knows of time (Adam's correction for its
    beginning, the falling step size) comes from the shared counts.
    """

    def __init__(
        self, shared_parameters: SharedParameters, updates: StepCounter, steps: StepTotal, config: OptimizerConfig, total_steps: int
    ) -> None:
        self.name = shared_parameters.name
        self._shared_parameters, self._updates, self._steps = shared_parameters, updates, steps
        self._config, self._total_steps = config, total_steps
        self._weights, *statistics = torch.from_numpy(shared_parameters.rows).unbind()
        self._statistics = dict(zip(statistics_of(config), statistics, strict=True))
        self._read = 0
        self.explain, self.fileno, self.clear = shared_parameters.explain, shared_parameters.fileno, shared_parameters.clear

    def version(self) -> int:
        """Updates so far, -1 until there are weights."""
        return self._updates.total() if self._shared_parameters.ready() else -1

    def read(self, into: Array) -> int:
        """Copy the weights; what others change meanwhile may be in it or not."""
        self._read = self._updates.total()
        into[:] = self._shared_parameters.rows[0]
        self._shared_parameters.moved()
        return self._read

    def full(self) -> Idle | None:
        """It always takes one more, until the run has all its steps or shall end before."""
        return IDLE if self._shared_parameters.resting() or self._steps.total() >= self._total_steps else None

    def send(self, gradient: Array, loss: float) -> int:
        """Change weights and statistics in place; how many updates others made since the weights were read."""
        before = self._updates.total()
        rate = learning_rate_at(self._config, self._steps.total(), self._total_steps)
        descend(self._config, rate, self._weights, self._statistics, torch.from_numpy(gradient), before + 1)
        self._updates.add(1)
        self._shared_parameters.moved()
        return before - self._read
