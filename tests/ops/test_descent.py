"""The paper's rules, written out; that they are torch's, tests/roles/test_lock_free.py shows for all settings."""

from __future__ import annotations

import pytest
import torch

from pappus.ops.descent import adagrad_step, adam_step, rmsprop_step

GRADIENT = torch.tensor([2.0])


def test_rmsprop_divides_by_the_root_of_the_average_square() -> None:
    weights, square = torch.tensor([1.0]), torch.tensor([9.0])
    rmsprop_step(weights, GRADIENT, square, None, None, rate=0.5, decay=0.9, momentum=0.0, epsilon=0.1)
    assert square.item() == pytest.approx(0.9 * 9 + 0.1 * 4)
    assert weights.item() == pytest.approx(1 - 0.5 * 2 / (8.5**0.5 + 0.1))


def test_a_mean_makes_the_square_a_variance_and_a_velocity_keeps_going() -> None:
    weights, square, mean, velocity = (torch.tensor([value]) for value in (1.0, 9.0, 1.0, 3.0))
    rmsprop_step(weights, GRADIENT, square, mean, velocity, rate=0.5, decay=0.9, momentum=0.8, epsilon=0.1)
    moved = 0.8 * 3 + 2 / ((8.5 - 1.1**2) ** 0.5 + 0.1)
    assert velocity.item() == pytest.approx(moved) and weights.item() == pytest.approx(1 - 0.5 * moved)


def test_a_mean_that_others_have_moved_beyond_the_square_breaks_no_weight() -> None:
    weights, square, mean = (torch.tensor([value]) for value in (1.0, 0.0, 100.0))
    rmsprop_step(weights, GRADIENT, square, mean, None, rate=0.5, decay=0.9, momentum=0.0, epsilon=0.1)
    assert weights.item() == pytest.approx(1 - 0.5 * 2 / 0.1)


def test_adams_first_step_is_the_rate_itself() -> None:
    weights, mean, square = torch.tensor([1.0]), torch.zeros(1), torch.zeros(1)
    adam_step(
        weights, GRADIENT, mean, square, rate=0.5, mean_decay=0.9, square_decay=0.999, epsilon=0.0, update=1
    )
    assert weights.item() == pytest.approx(0.5)
    assert mean.item() == pytest.approx(0.2) and square.item() == pytest.approx(0.004)


def test_adagrad_divides_by_the_root_of_the_sum_of_squares() -> None:
    weights, total = torch.tensor([1.0]), torch.tensor([5.0])
    adagrad_step(weights, GRADIENT, total, rate=0.5, epsilon=0.0)
    assert total.item() == 9.0 and weights.item() == pytest.approx(1 - 0.5 * 2 / 3)
