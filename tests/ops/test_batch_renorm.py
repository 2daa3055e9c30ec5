"""Batch renormalisation against the paper's formula, and what it has in common with its special cases."""

from __future__ import annotations

import torch

from pappus.ops.batch_renorm import EPSILON, LARGEST_RATIO, LARGEST_SHIFT, renormalised

M, D = 12, 4
ON, OFF = torch.tensor([True]), torch.tensor([False])


def drawn(scale: float = 1.5) -> list[torch.Tensor]:
    """Rows, gains, offsets, running means and running variances, with gradients for the first three."""
    torch.manual_seed(0)
    rows, vectors = torch.randn(M, D, dtype=torch.float64) * 2 + 1, torch.rand(4, D, dtype=torch.float64)
    learnt = [rows, vectors[0] + 0.5, vectors[1]]
    return [*(one.requires_grad_() for one in learnt), vectors[2] * scale, vectors[3] * scale + 0.5]


def formula(
    x: torch.Tensor, gain: torch.Tensor, offset: torch.Tensor, mean: torch.Tensor, variance: torch.Tensor
) -> torch.Tensor:
    """Ioffe 2017, algorithm 1, in torch's own graph."""
    own, deviation = x.mean(0), (x.var(0, correction=0) + EPSILON).sqrt()
    running = (variance + EPSILON).sqrt()
    ratio = (deviation / running).detach().clamp(1 / LARGEST_RATIO, LARGEST_RATIO)
    shift = ((own - mean) / running).detach().clamp(-LARGEST_SHIFT, LARGEST_SHIFT)
    return gain * ((x - own) / deviation * ratio + shift) + offset


def test_outputs_and_gradients_are_those_of_the_formula() -> None:
    given = drawn()
    y, mean, variance = renormalised(*given, ON)
    expected = formula(*given)
    torch.testing.assert_close(y, expected)
    torch.testing.assert_close(mean, given[0].detach().mean(0))
    torch.testing.assert_close(variance, given[0].detach().var(0, correction=0))
    slope = torch.randn_like(y)
    found, wanted = (torch.autograd.grad(one, given[:3], slope, retain_graph=True) for one in (y, expected))
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_without_corrections_it_is_batch_normalisation() -> None:
    x, gain, offset, mean, variance = drawn()
    y, *_ = renormalised(x, gain, offset, mean, variance, OFF)
    expected = torch.nn.functional.batch_norm(x, None, None, gain, offset, training=True, eps=EPSILON)
    torch.testing.assert_close(y, expected)
    slope = torch.randn_like(y)
    found, wanted = (torch.autograd.grad(one, (x, gain, offset), slope) for one in (y, expected))
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_within_the_bounds_a_batch_is_normalised_as_by_running_moments_alone() -> None:
    x, gain, offset, mean, variance = drawn()
    y, *_ = renormalised(x, gain, offset, mean, variance + 2, ON)
    torch.testing.assert_close(y, gain * (x - mean) / (variance + 2 + EPSILON).sqrt() + offset)


def test_corrections_are_bounded() -> None:
    x, gain, offset, _, variance = drawn()
    far, wide = torch.full_like(gain, 1e6), variance * 1e8
    y, *_ = renormalised(x, gain, offset, far, variance, ON)
    plain, *_ = renormalised(x, gain, offset, far, variance, OFF)
    assert (y - offset).abs().max() < gain.max() * (LARGEST_SHIFT + LARGEST_RATIO * 4) and not torch.equal(y, plain)
    narrow, *_ = renormalised(x, gain, torch.zeros_like(gain), x.detach().mean(0), wide, ON)
    torch.testing.assert_close(narrow.std(0, correction=0) / gain, torch.full_like(gain, 1 / 3), rtol=1e-3, atol=0.0)


def test_the_variance_of_numbers_far_from_zero_is_right() -> None:
    x = (torch.randn(256, D) * 0.1 + 3_000).float()
    _, _, variance = renormalised(x, torch.ones(D), torch.zeros(D), torch.zeros(D), torch.ones(D), OFF)
    torch.testing.assert_close(variance, x.double().var(0, correction=0).float(), rtol=1e-2, atol=0.0)


def test_rows_beyond_what_floats_can_square_are_not_finite_outputs() -> None:
    given = [one.detach().float() for one in drawn()]
    given[0][3, 1] = 1e25
    y, _, variance = renormalised(*given, OFF)
    assert y[:, 1].isnan().all() and variance[1].isnan(), "a batch that looks finite would be learnt from"
    assert y[:, 0].isfinite().all() and variance[0].isfinite()
