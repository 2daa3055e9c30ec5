"""Action values `[…, A]`, for any leading dimensions `[…]`: errors, losses, rescaling, priorities, exploration."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pappus.types import Array


def taken(q: Tensor, action: Tensor) -> Tensor:
    """Q(x, a) of the actions `[…]` that were taken, `[…]`."""
    assert q.shape[:-1] == action.shape, (q.shape, action.shape)
    return q.gather(-1, action.unsqueeze(-1)).squeeze(-1)


def double_q(target_q: Tensor, online_q: Tensor) -> Tensor:
    """Q'(x, argmax_a Q(x, a)), `[…]`: one network selects, the other evaluates (van Hasselt et al. 2016)."""
    assert target_q.shape == online_q.shape, (target_q.shape, online_q.shape)
    return target_q.gather(-1, online_q.argmax(-1, keepdim=True)).squeeze(-1)


def huber(error: Tensor, delta: float) -> Tensor:
    """½ e² up to |e| = δ, linear beyond."""
    return F.huber_loss(error, torch.zeros_like(error), reduction="none", delta=delta)


class QLoss(NamedTuple):
    """The loss, its gradient by the action values `[B, A]`, the values of the actions taken, and their errors `[B]`."""

    loss: float
    gradient: Array
    q: Array
    error: Array


def huber_q_loss(q: Array, action: Array, goal: Array, weight: Array, delta: float) -> QLoss:
    """mean(weight · huber(goal − Q(o, a))) and its gradient, for arrays: action values
    `[B, A]`, the rest `[B]`."""
    rows = np.arange(len(q))
    taken = q[rows, action]
    error = taken - goal
    near = error.clip(-delta, delta)  # the derivative of huber
    share = weight / np.float32(len(q))
    gradient = np.zeros_like(q)
    gradient[rows, action] = share * near
    return QLoss(float(share @ (near * (error - 0.5 * near))), gradient, taken, np.abs(error))


def quantile_huber(value: Tensor, goal: Tensor, delta: float) -> Tensor:
    """The quantile regression loss of `value [B, K]` for samples `goal [B, J]`, `[B]` (Dabney et al. 2018, eq. 10)."""
    assert value.dim() == goal.dim() == 2 and len(value) == len(goal), (value.shape, goal.shape)
    count = value.shape[1]
    error = goal.unsqueeze(1) - value.unsqueeze(2)
    tau = (torch.arange(count, device=value.device) + 0.5) / count
    weight = (tau.view(1, count, 1) - (error.detach() < 0).to(value.dtype)).abs()
    return (weight * huber(error, delta) / delta).mean(2).sum(1)


def rescale(x: Tensor, epsilon: float) -> Tensor:
    """h(x) = sign(x) (√(|x| + 1) − 1) + ε x: large values on a flatter scale (Pohlen 2018); ε = 0: x itself."""
    if not epsilon:
        return x
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + epsilon * x


def unrescale(x: Tensor, epsilon: float) -> Tensor:
    """h⁻¹(x) = sign(x) (((√(1 + 4 ε (|x| + 1 + ε)) − 1) / 2 ε)² − 1).

    (root − 1) / 2ε is rewritten to avoid the difference of two numbers near 1.
    """
    if not epsilon:
        return x
    size = x.abs() + 1 + epsilon
    return x.sign() * ((2 * size / (torch.sqrt(1 + 4 * epsilon * size) + 1)).square() - 1)


def mixed_priority(error: Tensor, valid: Tensor, eta: float) -> Tensor:
    """η · max |δ| + (1 − η) · mean |δ| over the valid steps of each sequence, `[T, B]` → `[B]` (R2D2, section 2.3)."""
    assert error.shape == valid.shape and error.dim() == 2, (error.shape, valid.shape)
    size = torch.where(valid, error.abs(), 0.0)
    mean = size.sum(0) / valid.sum(0).clamp(min=1)
    return eta * size.amax(0) + (1 - eta) * mean


def ladder(index: Array, count: int, base: float, alpha: float) -> Array:
    """ε_i = base^(1 + α i / (N − 1)) for the i-th of N envs (Horgan et al. 2018): a few explore much, most little."""
    assert count >= 1 and (index >= 0).all() and (index < count).all(), (index, count)
    share = index / (count - 1) if count > 1 else np.zeros(len(index))
    return np.power(base, 1 + alpha * share)


def linear(step: int, start: float, end: float, duration: int) -> float:
    """From `start` to `end` over the first `duration` steps, then `end`."""
    return end + (start - end) * max(0.0, 1.0 - step / max(1, duration))
