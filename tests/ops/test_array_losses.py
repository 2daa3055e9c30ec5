"""Closed forms say what autograd says of the formulas of the papers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pappus.ops.distributions import Categorical
from pappus.ops.losses import clipped_surrogate, clipped_value_loss, value_loss
from pappus.ops.numpy_ops import SurrogateCosts, categorical_surrogate

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
    costs = SurrogateCosts(clip=0.2, baseline=0.7, entropy=0.05, value_clip=value_clip)

    new, entropy = policy.log_prob_and_entropy(outputs[:, :-1], action)
    actor = clipped_surrogate(new - log_prob, advantage, costs.clip)
    value = outputs[:, -1]
    critic = clipped_value_loss(value, target, before, value_clip) if value_clip else value_loss(value, target)
    loss = (share * (actor + costs.baseline * critic - costs.entropy * entropy)).sum()
    (gradient,) = torch.autograd.grad(loss, outputs)

    arrays = (x.detach().numpy() for x in (outputs, action, log_prob, advantage, target, before, share))
    found = categorical_surrogate(*arrays, costs)
    for own, theirs in ((found.actor, actor), (found.critic, critic), (found.entropy, entropy)):
        np.testing.assert_allclose(own, theirs.detach(), rtol=1e-4, atol=1e-5)
    assert found.loss == pytest.approx(loss.item(), rel=1e-4)
    np.testing.assert_allclose(found.ratio, (new - log_prob).exp().detach(), rtol=1e-4)
    np.testing.assert_allclose(found.gradient, gradient, rtol=1e-4, atol=1e-5)
    clipped = np.abs(found.ratio - 1) > costs.clip
    assert clipped.any() and not clipped.all(), "both sides of the clip must have been seen"


def test_logits_that_are_far_apart_stay_finite() -> None:
    outputs = np.array([[1e4, -1e4, 0.0], [-3e4, 3e4, 1.0]], np.float32)
    nothing = np.zeros(2, np.float32)
    found = categorical_surrogate(
        outputs, np.array([0, 1]), nothing, nothing + 1, nothing, nothing, nothing + 0.5,
        SurrogateCosts(0.2, 0.5, 0.01, 0.0),
    )
    assert all(np.isfinite(part).all() for part in found)
