"""Actor-critic losses per step, `[T, B]` in and out, and reductions that skip invalid steps."""

from __future__ import annotations

import torch
from torch import Tensor

NORMALISED_EPSILON = 1e-8
"""Keeps values that are equal at every step at 0."""


def policy_gradient_loss(log_prob: Tensor, advantage: Tensor) -> Tensor:
    """−log π(a|x) · A per step; the advantage is a constant."""
    assert log_prob.shape == advantage.shape, (log_prob.shape, advantage.shape)
    return -log_prob * advantage.detach()


def value_loss(value: Tensor, target: Tensor) -> Tensor:
    """½ (V(x) − target)² per step; the target is a constant."""
    assert value.shape == target.shape, (value.shape, target.shape)
    return 0.5 * (value - target.detach()).square()


def clipped_surrogate(log_ratio: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """−min(r A, clip(r, 1 − ε, 1 + ε) A) per step, with log r given (PPO, equation 7); the advantage is a constant."""
    assert log_ratio.shape == advantage.shape, (log_ratio.shape, advantage.shape)
    ratio = log_ratio.exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


def clipped_value_loss(value: Tensor, target: Tensor, before: Tensor, clip: float) -> Tensor:
    """The larger of ½ (V − target)² and the same for V clipped to `before` ± `clip`; with a clip of 0 the former."""
    loss = value_loss(value, target)
    if not clip:
        return loss
    return torch.maximum(loss, value_loss(before + (value - before).clamp(-clip, clip), target))


def masked_sum(x: Tensor, valid: Tensor) -> Tensor:
    """Sum over the valid steps; values at invalid ones, even NaN, do not count."""
    assert x.shape == valid.shape, (x.shape, valid.shape)
    return torch.where(valid, x, 0.0).sum()


def masked_mean(x: Tensor, valid: Tensor) -> Tensor:
    """Mean over the valid steps, and 0 when none is valid."""
    return masked_sum(x, valid) / valid.sum().clamp(min=1)


def actor_critic_loss(
    actor: Tensor, critic: Tensor, entropy: Tensor, valid: Tensor, *, baseline_cost: float, entropy_cost: float,
    reduction: str,
) -> tuple[Tensor, dict[str, Tensor]]:
    """actor + baseline_cost · critic − entropy_cost · entropy over the valid steps, and these parts to report."""
    reduce = masked_mean if reduction == "mean" else masked_sum
    actor, critic, entropy = (reduce(part, valid) for part in (actor, critic, entropy))
    loss = actor + baseline_cost * critic - entropy_cost * entropy
    return loss, {"value_loss": critic.detach(), "policy_loss": actor.detach(), "entropy": entropy.detach()}


def normalised(x: Tensor, valid: Tensor) -> Tensor:
    """`x` shifted and scaled to mean 0 and deviation 1 over the valid steps; 0 at the others."""
    centred = torch.where(valid, x - masked_mean(x, valid), 0.0)
    return centred / (masked_mean(centred.square(), valid).sqrt() + NORMALISED_EPSILON)
