"""Drawing in NumPy draws what the distributions in torch draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pappus.ops.distributions import Categorical, Gaussian, MultiCategorical, SquashedGaussian
from pappus.ops.numpy_ops import AHEAD, NoiseAhead, numpy_sampler, uniform

N = 20_000


def drawn(distribution: Any, params: torch.Tensor, seed: int = 0) -> tuple[Any, Any]:
    sampler = numpy_sampler(distribution)
    assert sampler is not None
    return sampler.draw(params.numpy(), NoiseAhead(sampler.noise, torch.Generator().manual_seed(seed)))


def test_actions_are_as_frequent_as_they_are_likely() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0]).repeat(N, 1)
    action, log_prob = drawn(Categorical(3), logits)
    assert action.dtype == np.int64 and log_prob.dtype == np.float32
    frequencies = np.bincount(action, minlength=3) / N
    np.testing.assert_allclose(frequencies, logits[0].softmax(0), atol=0.012)
    expected = Categorical(3).log_prob(logits, torch.from_numpy(action))
    np.testing.assert_allclose(log_prob, expected, atol=1e-5)


def test_a_masked_action_is_never_drawn() -> None:
    action, _ = drawn(Categorical(3), torch.tensor([0.0, -1e9, 0.0]).repeat(N, 1))
    assert set(action) == {0, 2}


@pytest.mark.parametrize("shape", [(2,), (2, 1), ()])
def test_continuous_actions_have_their_mean_and_deviation(shape: tuple[int, ...]) -> None:
    size = int(np.prod(shape))
    mean, log_std = torch.linspace(-1, 1, size), torch.linspace(-3, 5, size)  # 5 is more than is allowed
    policy = Gaussian(shape)
    params = torch.cat([mean, log_std]).repeat(N, 1)
    action, log_prob = drawn(policy, params)
    assert action.shape == (N, *shape) and action.dtype == log_prob.dtype == np.float32
    flat = action.reshape(N, size)
    np.testing.assert_allclose(flat.std(0), log_std.clamp(max=2).exp(), rtol=0.03)
    np.testing.assert_allclose(flat.mean(0), mean, atol=0.03 * float(np.exp(2)))
    np.testing.assert_allclose(log_prob, policy.log_prob(params, torch.from_numpy(action)), atol=1e-4)


def test_what_numpy_cannot_draw_is_left_to_torch() -> None:
    assert numpy_sampler(MultiCategorical((2, 3))) is None and numpy_sampler(SquashedGaussian((2,))) is None


def test_noise_goes_on_where_it_was_saved() -> None:
    noise = NoiseAhead(uniform, torch.Generator().manual_seed(1))
    for _ in range(AHEAD // 100 + 3):
        noise.take(10, 10)
    saved = noise.save()
    expected = [noise.take(10, 10).copy() for _ in range(AHEAD // 50)]
    again = NoiseAhead(uniform, torch.Generator().manual_seed(2))
    again.load(saved)
    assert all(np.array_equal(again.take(10, 10), block) for block in expected)


def test_no_number_is_handed_out_twice() -> None:
    noise = NoiseAhead(uniform, torch.Generator().manual_seed(1))
    blocks = [noise.take(3, 700).ravel().copy() for _ in range(40)]
    wide = noise.take(2, AHEAD).ravel()
    everything = np.concatenate([*blocks, wide])
    assert len(np.unique(everything)) > 0.98 * len(everything), "float32 repeats itself now and then"


def test_noise_that_was_not_asked_for_leaves_its_generator_as_it_is() -> None:
    generator = torch.Generator().manual_seed(1)
    noise = NoiseAhead(uniform, generator)
    torch.rand(5, generator=generator)
    saved = noise.save()
    expected = torch.rand(5, generator=generator)
    other = torch.Generator().manual_seed(2)
    NoiseAhead(uniform, other).load(saved)
    assert torch.equal(torch.rand(5, generator=other), expected)
