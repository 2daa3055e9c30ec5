"""What learners have in common whose gradients go elsewhere: to parameter servers, or into weights that all share."""

from __future__ import annotations

from typing import Any

import torch

from pappus.core import GradientChannel, Waitable
from pappus.roles.gradient_learner import GradientLearner


class NoOptimizer:
    """For a learner that steps nothing: torch takes a second of a core to make its first optimizer in a process."""

    param_groups: tuple[Any, ...] = ()


class RemoteGradient(GradientLearner):
    """batch ──▶ loss ──gradient──▶ exchange ──weights──▶ here. Mixed into a kind of learner, before it."""

    _gradient_channel: GradientChannel
    _loss_now = 0.0

    def step(self) -> Waitable | None:
        """One gradient, or the port that stands in the way."""
        if self._gradient_channel.version() < 0:
            return self._gradient_channel
        return self._gradient_channel.full() or self._learn()

    def _make_optimizer(self) -> NoOptimizer:
        return NoOptimizer()

    def _compute_gradient(self) -> torch.Tensor:
        reported = super()._compute_gradient()
        self._loss_now = float(reported[0])
        return reported

    def _apply_gradient(self) -> None:
        """Clip it, and send it away."""
        self._clip()
        staleness = self._gradient_channel.send(self._flat.gradient.numpy(), self._loss_now)
        if staleness is not None:
            self.metrics.mean("staleness", staleness)
            self.metrics.maximum("staleness_max", staleness)

    def _advance(self, steps: int, updates: int = 1, of_all: int | None = None) -> None:
        """Updates and steps are counted by whoever applies the gradients."""
        self.steps += steps
        self.updates += updates
        self.metrics.count("gradients", updates)
