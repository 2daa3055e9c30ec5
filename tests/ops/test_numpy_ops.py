"""What NumPy computes is what torch computes: samples, losses, gradients and optimizer steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pappus.ops.distributions import Categorical, Gaussian, MultiCategorical, SquashedGaussian, numpy_sampler
from pappus.ops.losses import clipped_surrogate, clipped_value_loss, value_loss
from pappus.ops.numpy_ops import (
    AHEAD,
    NoiseAhead,
    SmallAdam,
    categorical_surrogate,
    uniform,
)

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


M = 200


@pytest.mark.parametrize("actions", [2, 5])
@pytest.mark.parametrize("value_clip", [0.0, 0.3])
def test_the_surrogate_and_its_gradient_are_those_of_autograd(actions: int, value_clip: float) -> None:
    generator = torch.Generator().manual_seed(actions)
    outputs = (2 * torch.randn(M, actions + 1, generator=generator)).requires_grad_()
    action = torch.randint(actions, (M,), generator=generator)
    advantage, target, before, noise = torch.randn(4, M, generator=generator)
    policy = Categorical(actions)
    log_prob = (policy.log_prob(outputs[:, :-1], action) + 0.3 * noise).detach()
    share = torch.rand(M, generator=generator) * (torch.rand(M, generator=generator) > 0.2)
    clip, baseline_cost, entropy_cost = 0.2, 0.7, 0.05

    new, entropy = policy.log_prob_and_entropy(outputs[:, :-1], action)
    actor = clipped_surrogate(new - log_prob, advantage, clip)
    value = outputs[:, -1]
    critic = clipped_value_loss(value, target, before, value_clip) if value_clip else value_loss(value, target)
    loss = (share * (actor + baseline_cost * critic - entropy_cost * entropy)).sum()
    (gradient,) = torch.autograd.grad(loss, outputs)

    arrays = (x.detach().numpy() for x in (outputs, action, log_prob, advantage, target, before, share))
    found = categorical_surrogate(
        *arrays, clip=clip, baseline_cost=baseline_cost, entropy_cost=entropy_cost, value_clip=value_clip
    )
    for own, theirs in ((found.actor, actor), (found.critic, critic), (found.entropy, entropy)):
        np.testing.assert_allclose(own, theirs.detach(), rtol=1e-4, atol=1e-5)
    assert found.loss == pytest.approx(loss.item(), rel=1e-4)
    np.testing.assert_allclose(found.ratio, (new - log_prob).exp().detach(), rtol=1e-4)
    np.testing.assert_allclose(found.gradient, gradient, rtol=1e-4, atol=1e-5)
    clipped = np.abs(found.ratio - 1) > clip
    assert clipped.any() and not clipped.all(), "both sides of the clip must have been seen"


def test_logits_that_are_far_apart_stay_finite() -> None:
    outputs = np.array([[1e4, -1e4, 0.0], [-3e4, 3e4, 1.0]], np.float32)
    nothing = np.zeros(2, np.float32)
    found = categorical_surrogate(
        outputs, np.array([0, 1]), nothing, nothing + 1, nothing, nothing, nothing + 0.5,
        clip=0.2, baseline_cost=0.5, entropy_cost=0.01, value_clip=0.0,
    )
    assert all(np.isfinite(part).all() for part in found)


def test_its_steps_are_those_of_torch_also_after_a_checkpoint_has_changed_hands() -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(50, generator=generator)
    parameters = [torch.nn.Parameter(start.clone()) for _ in range(2)]
    small = SmallAdam(parameters[0], 0.01, (0.9, 0.99), 1e-5)
    theirs = torch.optim.Adam([parameters[1]], 0.01, betas=(0.9, 0.99), eps=1e-5, fused=True)
    optimizers = [small, theirs]
    for update in range(20):
        gradient = torch.randn(50, generator=generator)
        for parameter, optimizer in zip(parameters, optimizers, strict=True):
            parameter.grad = gradient.clone()
            optimizer.step()
        torch.testing.assert_close(parameters[0], parameters[1], rtol=1e-5, atol=1e-6)
        if update == 9:
            one, other = (optimizer.state_dict() for optimizer in optimizers)
            small.load_state_dict(other)
            theirs.load_state_dict(one)
    one, other = (optimizer.state_dict()["state"][0] for optimizer in optimizers)
    assert one["step"] == 20
    torch.testing.assert_close(one["exp_avg_sq"], other["exp_avg_sq"], rtol=1e-5, atol=1e-7)


def test_a_state_that_torch_saved_before_its_first_step_is_a_fresh_one() -> None:
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    fresh = torch.optim.Adam([parameters[0]], 0.1, fused=True).state_dict()
    small = SmallAdam(parameters[1], 0.1, (0.9, 0.999), 1e-8)
    small.load_state_dict(fresh)
    parameters[1].grad = torch.ones(3)
    small.step()
    torch.testing.assert_close(parameters[1].detach(), torch.full((3,), 0.9))
