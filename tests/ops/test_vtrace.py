from __future__ import annotations

import torch
from torch import Tensor

from pappus.ops.losses import masked_mean, policy_gradient_loss
from pappus.ops.numpy_ops import reverse_recurrence
from pappus.ops.returns import lambda_returns, n_step_returns
from pappus.ops.vtrace import VTraceReturns, vtrace

T, B = 9, 4


def stream(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """value, reward, discount, rho, valid of random episodes that end by termination only."""
    generator = torch.Generator().manual_seed(seed)
    value, reward = (torch.randn(n, B, generator=generator, dtype=torch.float64) for n in (T + 1, T))
    discount = 0.9 * (torch.rand(T, B, generator=generator) > 0.2).double()
    rho = torch.rand(T, B, generator=generator, dtype=torch.float64) * 3
    return value, reward, discount, rho, torch.ones(T, B, dtype=torch.bool)


def literal(value: Tensor, reward: Tensor, discount: Tensor, rho: Tensor, rho_bar: float, c_bar: float) -> Tensor:
    """Equation 1 as it is printed: v_s = V(x_s) + sum over t of gamma^(t-s) (c_s … c_(t-1)) delta_t."""
    target = value[:-1].clone()
    for b in range(B):
        for s in range(T):
            for t in range(s, T):
                factor = 1.0
                for i in range(s, t):
                    factor *= float(discount[i, b]) * min(c_bar, float(rho[i, b]))
                error = float(reward[t, b] + discount[t, b] * value[t + 1, b] - value[t, b])
                target[s, b] += factor * min(rho_bar, float(rho[t, b])) * error
    return target


def test_recurrence_is_its_definition() -> None:
    decay, x = torch.rand(T, B, 3), torch.randn(T, B, 3)
    y = torch.zeros(B, 3)
    for t in reversed(range(T)):
        y = x[t] + decay[t] * y
        torch.testing.assert_close(reverse_recurrence(decay, x)[t], y)


def test_recurrence_of_one_step_is_that_step() -> None:
    assert torch.equal(reverse_recurrence(torch.ones(1, B), torch.full((1, B), 3.0)), torch.full((1, B), 3.0))


def test_target_is_the_literal_sum_of_the_paper() -> None:
    value, reward, discount, rho, valid = stream()
    target = vtrace(value, reward, discount, rho, valid, rho_clip=1.3, c_clip=0.8).target
    torch.testing.assert_close(target, literal(value, reward, discount, rho, 1.3, 0.8))


def test_advantage_bootstraps_from_the_next_target() -> None:
    value, reward, discount, rho, valid = stream()
    target, advantage = vtrace(value, reward, discount, rho, valid, pg_rho_clip=1.7)
    bootstrap = torch.cat([target[1:], value[-1:]])
    torch.testing.assert_close(advantage, rho.clamp(max=1.7) * (reward + discount * bootstrap - value[:-1]))


def test_on_policy_target_is_the_discounted_return() -> None:
    value, reward, discount, rho, valid = stream()
    target = vtrace(value, reward, discount, torch.ones_like(rho), valid).target
    torch.testing.assert_close(target, n_step_returns(value, reward, discount, valid, n=T))


def test_on_policy_target_with_lambda_is_the_lambda_return() -> None:
    value, reward, discount, rho, valid = stream()
    target = vtrace(value, reward, discount, torch.ones_like(rho), valid, lam=0.7).target
    torch.testing.assert_close(target, lambda_returns(value, reward, discount, valid, lam=0.7))


def test_lambda_zero_is_td_zero() -> None:
    value, reward, discount, rho, valid = stream()
    target = vtrace(value, reward, discount, torch.ones_like(rho), valid, lam=0.0).target
    torch.testing.assert_close(target, reward + discount * value[1:])


def test_lambda_zero_advantage_bootstraps_from_the_value() -> None:
    value, reward, discount, rho, valid = stream()
    advantage = vtrace(value, reward, discount, torch.ones_like(rho), valid, lam=0.0).pg_advantage
    torch.testing.assert_close(advantage, reward + discount * value[1:] - value[:-1])


def split_at(cut: int) -> tuple[VTraceReturns, VTraceReturns, VTraceReturns, Tensor]:
    """A whole stream with one invalid step, the parts before and after it, and the values."""
    value, reward, discount, rho, valid = stream()
    valid[cut] = False
    whole = vtrace(value, reward, discount, rho, valid, lam=0.9)
    before = vtrace(value[: cut + 1], reward[:cut], discount[:cut], rho[:cut], valid[:cut], lam=0.9)
    after = slice(cut + 1, None)
    rest = vtrace(value[after], reward[after], discount[after], rho[after], valid[after], lam=0.9)
    return whole, before, rest, value


def test_invalid_step_cuts_the_stream_in_two() -> None:
    whole, before, after, _ = split_at(4)
    for joined, left, right in zip(whole, before, after, strict=True):
        torch.testing.assert_close(joined[:4], left)
        torch.testing.assert_close(joined[5:], right)


def test_invalid_step_has_its_value_as_target_and_no_advantage() -> None:
    whole, _, _, value = split_at(4)
    assert torch.equal(whole.target[4], value[4])
    assert torch.equal(whole.pg_advantage[4], torch.zeros(B, dtype=torch.float64))


def test_nothing_at_an_invalid_step_reaches_the_valid_ones() -> None:
    value, reward, discount, rho, valid = stream()
    valid[4] = False
    clean = vtrace(value, reward, discount, rho, valid)
    reward[4], discount[4], rho[4] = 1e6, 1.0, torch.nan
    dirty = vtrace(value, reward, discount, rho, valid)
    torch.testing.assert_close(dirty, clean, rtol=0, atol=0)


def test_no_gradient_flows_through_returns() -> None:
    value, reward, discount, rho, valid = stream()
    returns = vtrace(value.requires_grad_(), reward, discount, rho.requires_grad_(), valid)
    assert not returns.target.requires_grad and not returns.pg_advantage.requires_grad


def test_inputs_are_left_as_they_were() -> None:
    arguments = stream()
    before = [argument.clone() for argument in arguments]
    vtrace(*arguments, pg_rho_clip=0.5, lam=0.5)
    assert all(torch.equal(x, y) for x, y in zip(arguments, before, strict=True))


def test_nothing_waits_for_values_so_that_a_cuda_graph_can_capture_it() -> None:
    # Meta tensors have no values: whatever looks at one raises.
    value, reward, discount, rho, valid = (x.to("meta") for x in stream())
    target, _ = vtrace(value, reward, discount, rho, valid)
    loss = masked_mean(policy_gradient_loss(rho, target), valid)
    assert loss.shape == ()
