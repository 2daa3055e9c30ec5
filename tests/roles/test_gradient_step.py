"""Updates that the host does not wait for are the same updates, and a broken one is noticed before it is published."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from pappus.config import OptimizerConfig
from pappus.errors import NonFiniteError
from pappus.roles.gradient_step import GradientStep, LearnerSettings
from pappus.telemetry.metrics import Metrics


class Line:
    """y = w · x, and a loss of it for the next of some inputs."""

    def __init__(self, inputs: list[float]) -> None:
        self.inputs = iter(inputs)
        me: Any = self  # algorithm and training in one
        self.gradient = GradientStep(Metrics("learner"), me, LearnerSettings(OptimizerConfig(anneal=False), 100, 1))
        self.gradient.objective = me

    def build_network(self) -> nn.Module:
        return nn.Linear(1, 1)

    def loss(self) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss = self.gradient.network(torch.tensor([next(self.inputs)])).square().sum()
        return loss, {"error": loss.detach().sqrt()}

    def batch(self) -> Any:
        return {}

    def weights(self) -> list[float]:
        found: list[float] = self.gradient.flat.values.tolist()
        return found


def test_updates_without_a_wait_are_those_with_one() -> None:
    waits, hurries = Line([1.0, 2.0, 3.0]), Line([1.0, 2.0, 3.0])
    for _ in range(3):
        waits.gradient.apply(waits.gradient.backward())
    hurries.gradient.backward_and_apply()
    hurries.gradient.backward_and_apply()
    computed = hurries.gradient.backward()
    hurries.gradient.apply(computed)
    assert hurries.weights() == waits.weights() and computed.scalars["error"] > 0
    norms = [line.gradient.metrics.drain()["means"]["learner/gradient_norm"] for line in (waits, hurries)]
    assert norms[0] == pytest.approx(norms[1]) and norms[0][1] == 3


def test_a_broken_update_is_noticed_by_the_next_one_that_waits() -> None:
    line = Line([1.0, math.inf, 1.0])
    line.gradient.backward_and_apply()
    line.gradient.backward_and_apply()
    with pytest.raises(NonFiniteError, match="loss=inf at update 1"):
        line.gradient.backward()
