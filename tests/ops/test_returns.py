from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pappus.ops.returns import gae, lambda_returns, n_step_returns

T, B = 8, 3


def stream() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """value, reward, discount, valid; some transitions terminate, some are pseudo-transitions."""
    generator = torch.Generator().manual_seed(1)
    value, reward = (torch.randn(n, B, generator=generator, dtype=torch.float64) for n in (T + 1, T))
    discount = 0.9 * (torch.rand(T, B, generator=generator) > 0.15).double()
    return value, reward, discount, torch.rand(T, B, generator=generator) > 0.15


def literal_n_step(value: Tensor, reward: Tensor, discount: Tensor, valid: Tensor, n: int) -> Tensor:
    """Rewards one after the other until n are summed, the unroll ends, or the step is invalid; then a value."""
    returns = torch.empty_like(reward)
    for b in range(B):
        for start in range(T):
            total, factor, t = 0.0, 1.0, start
            while t < T and t < start + n and bool(valid[t, b]):
                total += factor * float(reward[t, b])
                factor *= float(discount[t, b])
                t += 1
            returns[start, b] = total + factor * float(value[t, b])
    return returns


@pytest.mark.parametrize("n", [1, 2, 5, T, T + 3])
def test_n_step_return_is_the_literal_sum(n: int) -> None:
    arguments = stream()
    torch.testing.assert_close(n_step_returns(*arguments, n=n), literal_n_step(*arguments, n))


@pytest.mark.parametrize("lam", [0.0, 0.6, 1.0])
def test_lambda_return_is_the_weighted_mean_of_n_step_returns(lam: float) -> None:
    arguments = stream()
    n_step = [literal_n_step(*arguments, n) for n in range(1, T + 1)]
    mean = sum((1 - lam) * lam**n * n_step[n] for n in range(T - 1)) + lam ** (T - 1) * n_step[-1]
    torch.testing.assert_close(lambda_returns(*arguments, lam=lam), mean)


@pytest.mark.parametrize("lam", [0.0, 0.8, 1.0])
def test_gae_is_the_literal_sum_of_td_errors_up_to_an_invalid_step(lam: float) -> None:
    value, reward, discount, valid = stream()
    advantage = torch.zeros_like(reward)
    for start in range(T):
        factor = torch.ones(B, dtype=torch.float64)
        for t in range(start, T):
            factor = factor * valid[t]
            advantage[start] += factor * (reward[t] + discount[t] * value[t + 1] - value[t])
            factor = factor * lam * discount[t]
    torch.testing.assert_close(gae(value, reward, discount, valid, lam=lam), advantage)


def test_gae_plus_value_is_the_lambda_return() -> None:
    value, *rest = stream()
    torch.testing.assert_close(gae(value, *rest, lam=0.7) + value[:-1], lambda_returns(value, *rest, lam=0.7))


def test_lambda_one_is_the_longest_n_step_return() -> None:
    arguments = stream()
    torch.testing.assert_close(lambda_returns(*arguments, lam=1.0), n_step_returns(*arguments, n=T))


def episode_end(discount_at_end: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """r = 1 each step; the episode's last transition is t = 1, the pseudo-transition t = 2; V(x_t) = 10 t."""
    value = torch.arange(0.0, 50.0, 10.0).unsqueeze(-1)
    reward = torch.tensor([[1.0], [1.0], [0.0], [1.0]])
    discount = torch.tensor([[1.0], [discount_at_end], [0.0], [1.0]])
    return value, reward, discount, torch.tensor([[True], [True], [False], [True]])


def test_truncated_episode_bootstraps_from_final_observation() -> None:
    returns = n_step_returns(*episode_end(1.0), n=4)
    assert returns.squeeze(-1).tolist() == [22.0, 21.0, 20.0, 41.0]


def test_terminated_episode_does_not_bootstrap() -> None:
    returns = n_step_returns(*episode_end(0.0), n=4)
    assert returns.squeeze(-1).tolist() == [2.0, 1.0, 20.0, 41.0]


def test_advantage_of_an_invalid_step_is_zero() -> None:
    value, reward, discount, valid = stream()
    assert not gae(value, reward, discount, valid, lam=0.9)[~valid].any()


def test_no_gradient_flows_through_returns() -> None:
    value, *rest = stream()
    value.requires_grad_()
    outputs = n_step_returns(value, *rest, n=3), lambda_returns(value, *rest, lam=0.9), gae(value, *rest, lam=0.9)
    assert not any(output.requires_grad for output in outputs)
