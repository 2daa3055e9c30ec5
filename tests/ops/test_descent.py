from __future__ import annotations

import pytest
import torch

from pappus.config import OptimizerConfig
from pappus.ops.descent import descend, statistics_of
from pappus.roles.gradient_learner import make_optimizer

CONFIGS = {
    "adam": OptimizerConfig("adam"),
    "adagrad": OptimizerConfig("adagrad"),
    "rmsprop": OptimizerConfig("rmsprop", momentum=0.0, decay=0.99, epsilon=0.1),
    "with momentum": OptimizerConfig("rmsprop", momentum=0.9),
    "centered": OptimizerConfig("rmsprop", momentum=0.9, centered=True),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_the_rules_are_those_of_torchs_optimizers_and_so_is_what_they_remember(config: OptimizerConfig) -> None:
    generator = torch.Generator().manual_seed(0)
    expected = torch.nn.Parameter(torch.randn(50, generator=generator))
    weights = expected.detach().clone()
    statistics = [torch.zeros(50) for _ in statistics_of(config)]
    optimizer = make_optimizer(config, [expected])
    for update in range(1, 30):
        gradient = torch.randn(50, generator=generator)
        rate = 0.1 / update
        optimizer.param_groups[0]["lr"] = rate
        expected.grad = gradient
        optimizer.step()
        descend(config, rate, weights, statistics, gradient, update)
    torch.testing.assert_close(weights, expected.detach())
    for name, statistic in zip(statistics_of(config), statistics, strict=True):
        torch.testing.assert_close(statistic, optimizer.state[expected][name])


def test_the_paper_s_rule_is_the_literal_one() -> None:
    config = OptimizerConfig("rmsprop", momentum=0.0, decay=0.9, epsilon=0.1)
    weights, square = torch.tensor([1.0]), torch.tensor([4.0])
    descend(config, 0.5, weights, [square], torch.tensor([2.0]), 1)
    assert square.item() == pytest.approx(0.9 * 4 + 0.1 * 4)
    assert weights.item() == pytest.approx(1 - 0.5 * 2 / (2 + 0.1))
