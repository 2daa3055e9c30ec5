from __future__ import annotations

import math

import pytest
import torch

from pappus.ops.q_learning import rescale, unrescale

VALUES = torch.tensor([-1e4, -50.0, -1.0, -1e-3, 0.0, 1e-3, 1.0, 50.0, 1e4], dtype=torch.float64)


@pytest.mark.parametrize("epsilon", [1e-3, 1e-2])
def test_rescaling_is_the_papers_formula(epsilon: float) -> None:
    expected = [math.copysign(math.sqrt(abs(x) + 1) - 1, x) + epsilon * x for x in VALUES.tolist()]
    assert rescale(VALUES, epsilon).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("epsilon", [1e-3, 1e-2])
def test_unrescaling_takes_rescaling_back(epsilon: float) -> None:
    torch.testing.assert_close(unrescale(rescale(VALUES, epsilon), epsilon), VALUES)
    torch.testing.assert_close(rescale(unrescale(VALUES, epsilon), epsilon), VALUES)


def test_without_epsilon_values_stay_as_they_are() -> None:
    assert torch.equal(rescale(VALUES, 0.0), VALUES) and torch.equal(unrescale(VALUES, 0.0), VALUES)


def test_single_precision_is_enough() -> None:
    exact = unrescale(VALUES, 1e-3)
    torch.testing.assert_close(unrescale(VALUES.float(), 1e-3).double(), exact, rtol=2e-6, atol=1e-6)
