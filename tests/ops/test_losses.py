from __future__ import annotations

import pytest
import torch

from pappus.ops.losses import (
    actor_critic_loss,
    clipped_surrogate,
    clipped_value_loss,
    masked_mean,
    masked_sum,
    normalised,
    policy_gradient_loss,
    value_loss,
)


def test_policy_gradient_descends_towards_advantageous_actions() -> None:
    log_prob = torch.zeros(2, 1, requires_grad=True)
    policy_gradient_loss(log_prob, torch.tensor([[2.0], [-3.0]])).sum().backward()
    assert log_prob.grad is not None and log_prob.grad.squeeze(-1).tolist() == [-2.0, 3.0]


def test_advantage_and_target_are_constants() -> None:
    constant = torch.ones(2, 1, requires_grad=True)
    assert not policy_gradient_loss(torch.zeros(2, 1), constant).requires_grad
    assert not value_loss(torch.zeros(2, 1), constant).requires_grad


def test_value_loss_is_half_the_squared_error() -> None:
    assert value_loss(torch.tensor([3.0]), torch.tensor([1.0])).item() == 2.0


def test_the_loss_falls_as_entropy_rises_and_counts_valid_steps_only() -> None:
    zero, entropy, valid = torch.zeros(2), torch.tensor([0.5, 7.0]), torch.tensor([True, False])
    costs = {"baseline_cost": 1.0, "entropy_cost": 0.1, "reduction": "sum"}
    loss, parts = actor_critic_loss(zero, zero, entropy, valid, **costs)
    assert loss.item() == pytest.approx(-0.05) and parts["entropy"].item() == 0.5


def test_masked_reductions_count_valid_steps_only() -> None:
    x, valid = torch.tensor([1.0, torch.nan, 5.0]), torch.tensor([True, False, True])
    assert masked_sum(x, valid).item() == 6.0
    assert masked_mean(x, valid).item() == 3.0


def test_masked_mean_of_nothing_is_zero_with_zero_gradient() -> None:
    x = torch.ones(3, requires_grad=True)
    mean = masked_mean(x, torch.zeros(3, dtype=torch.bool))
    mean.backward()
    assert mean.item() == 0.0
    assert x.grad is not None and not x.grad.any()


def test_the_clipped_surrogate_is_the_papers() -> None:
    ratio = torch.tensor([0.5, 0.5, 1.0, 1.5, 1.5])
    advantage = torch.tensor([2.0, -2.0, 3.0, 2.0, -2.0])
    found = clipped_surrogate(ratio.log(), advantage, 0.2)
    torch.testing.assert_close(found, -torch.tensor([1.0, -1.6, 3.0, 2.4, -3.0]))


def test_the_surrogate_has_no_gradient_where_moving_on_gains_nothing() -> None:
    log_ratio = torch.tensor([1.5, 0.5, 1.5, 0.5]).log().requires_grad_()
    clipped_surrogate(log_ratio, torch.tensor([1.0, 1.0, -1.0, -1.0]), 0.2).sum().backward()
    assert log_ratio.grad is not None
    assert (log_ratio.grad != 0).tolist() == [False, True, True, False]


def test_a_clipped_value_loss_is_the_larger_of_two() -> None:
    value, target, before = torch.tensor([1.0, 3.0]), torch.tensor([2.0, 2.0]), torch.tensor([0.0, 0.0])
    found = clipped_value_loss(value, target, before, 0.5)
    torch.testing.assert_close(found, torch.tensor([0.5 * 1.5**2, 0.5 * 1.5**2]))


def test_normalised_values_have_mean_zero_and_deviation_one_over_the_valid_steps() -> None:
    x, valid = torch.tensor([1.0, 1e6, 5.0, 3.0]), torch.tensor([True, False, True, True])
    scaled = normalised(x, valid)
    assert scaled[1] == 0 and scaled[3] == 0
    torch.testing.assert_close(scaled[valid].square().mean(), torch.tensor(1.0))


def test_what_is_the_same_everywhere_is_normalised_to_zero() -> None:
    assert not normalised(torch.full((3,), 7.0), torch.ones(3, dtype=torch.bool)).any()
