"""Action values as the papers write them, one number after the other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from pappus.ops.q_learning import double_q, huber, ladder, linear, mixed_priority, quantile_huber, taken


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def literal_huber(error: float, delta: float) -> float:
    return 0.5 * error**2 if abs(error) <= delta else delta * (abs(error) - 0.5 * delta)


def test_the_value_of_an_action_is_found_under_any_leading_dimensions() -> None:
    q, action = numbers(2, 3, 4), torch.tensor([[0, 3, 1], [2, 2, 0]])
    found = taken(q, action)
    assert all(found[i, j] == q[i, j, action[i, j]] for i in range(2) for j in range(3))


def test_one_network_chooses_and_the_other_one_judges() -> None:
    judge, chooser = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[5.0, 7.0, 6.0]])
    assert double_q(judge, chooser).tolist() == [2.0]
    assert double_q(judge, judge).tolist() == [3.0]


@pytest.mark.parametrize("delta", [0.5, 1.0, 2.0])
def test_huber_is_a_parabola_between_straight_lines(delta: float) -> None:
    error = 2 * numbers(50)
    expected = torch.tensor([literal_huber(float(e), delta) for e in error], dtype=torch.float64)
    torch.testing.assert_close(huber(error, delta), expected)


def test_hubers_lines_go_on_where_the_parabola_ends() -> None:
    error = torch.tensor([2.0 - 1e-6, 2.0 + 1e-6], dtype=torch.float64, requires_grad=True)
    below, above = huber(error, 2.0)
    (slope,) = torch.autograd.grad(below + above, error)
    assert slope.tolist() == pytest.approx([2.0, 2.0])
    assert (above - below).item() == pytest.approx(4e-6, rel=1e-3)


@pytest.mark.parametrize(("delta", "goals"), [(1.0, 5), (0.3, 5), (1.0, 2)])
def test_the_quantile_loss_is_the_literal_double_loop(delta: float, goals: int) -> None:
    value, goal = numbers(4, 5), numbers(4, goals, seed=1)
    expected = torch.zeros(4, dtype=torch.float64)
    for b in range(4):
        for i in range(5):
            tau = (2 * i + 1) / 10
            for j in range(goals):
                error = float(goal[b, j] - value[b, i])
                expected[b] += abs(tau - (error < 0)) * literal_huber(error, delta) / delta / goals
    torch.testing.assert_close(quantile_huber(value, goal, delta), expected)


def test_the_quantile_loss_is_least_at_the_quantiles() -> None:
    goal = numbers(1, 1000)
    value = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
    for _ in range(300):
        (gradient,) = torch.autograd.grad(quantile_huber(value, goal, 0.01).sum(), value)
        value = (value - 0.1 * gradient).detach().requires_grad_()
    quantiles = goal.quantile(torch.tensor([0.125, 0.375, 0.625, 0.875], dtype=torch.float64))
    torch.testing.assert_close(value.detach()[0], quantiles, atol=0.05, rtol=0)


@pytest.mark.parametrize("eta", [0.0, 0.9, 1.0])
def test_a_sequences_priority_mixes_its_largest_error_with_the_mean(eta: float) -> None:
    error = torch.tensor([[1.0, -4.0], [-3.0, 100.0], [2.0, -2.0]])
    valid = torch.tensor([[True, True], [True, False], [True, True]])
    expected = [eta * 3 + (1 - eta) * 2, eta * 4 + (1 - eta) * 3]
    assert mixed_priority(error, valid, eta).tolist() == pytest.approx(expected)


def test_a_sequence_without_a_valid_step_has_priority_zero() -> None:
    assert mixed_priority(torch.full((3, 1), 7.0), torch.zeros(3, 1, dtype=torch.bool), 0.9).tolist() == [0.0]


def test_the_ladder_is_that_of_apex() -> None:
    expected = [0.4 ** (1 + 7 * i / 7) for i in range(8)]
    assert ladder(np.arange(8), 8, 0.4, 7.0).tolist() == pytest.approx(expected)


def test_the_ladder_falls_from_base_to_base_to_the_power_of_one_plus_alpha() -> None:
    rungs = ladder(np.arange(256), 256, 0.4, 7.0)
    assert (np.diff(rungs) < 0).all()
    assert (rungs[0], rungs[-1]) == (pytest.approx(0.4), pytest.approx(0.4**8))


def test_a_lone_env_explores_most() -> None:
    assert ladder(np.arange(1), 1, 0.4, 7.0).tolist() == [0.4]


def test_actors_share_one_ladder() -> None:
    whole = ladder(np.arange(12), 12, 0.4, 7.0)
    assert np.array_equal(np.concatenate([ladder(i * 4 + np.arange(4), 12, 0.4, 7.0) for i in range(3)]), whole)


def test_linear_exploration_falls_evenly_and_then_stays() -> None:
    steps = (0, 25, 50, 100, 1000)
    assert [linear(step, 1.0, 0.2, 100) for step in steps] == pytest.approx([1.0, 0.8, 0.6, 0.2, 0.2])


def test_linear_exploration_over_no_steps_is_at_its_end_after_the_first() -> None:
    assert linear(1, 1.0, 0.05, 0) == 0.05
