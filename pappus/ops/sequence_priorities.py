"""R2D2's priority of new sequences, in NumPy: actors compute it for a few envs at a time, where a call to torch costs
more than the sums, and lets another thread have the interpreter. `ops.returns` and `ops.q_learning` have the same for
tensors."""

from __future__ import annotations

import numpy as np

from pappus.types import Array


def n_step_error(
    q: Array, value: Array, reward: Array, discount: Array, valid: Array, *, n: int, rescaling: float
) -> Array:
    """δ_t = h(G_t) − Q(o_t, a_t), all `[T, B]` float32, and 0 where not valid. G_t are n-step returns; `value` and `q`
    are on the scale of h, and `discount` is γ times the env's."""
    values = np.concatenate([unrescale(value, rescaling), np.zeros_like(value[:1])])
    reward, discount = np.where(valid, reward, values[:-1]), np.where(valid, discount, np.float32(0))
    returns = values
    for _ in range(min(n, len(reward))):
        returns = np.concatenate([reward + discount * returns[1:], values[-1:]])
    return np.where(valid, rescale(returns[:-1], rescaling) - q, np.float32(0))


def rescale(x: Array, epsilon: float) -> Array:
    """h(x) = sign(x) (√(|x| + 1) − 1) + ε x; ε = 0: x itself."""
    return np.sign(x) * (np.sqrt(np.abs(x) + 1) - 1) + epsilon * x if epsilon else x


def unrescale(x: Array, epsilon: float) -> Array:
    """h⁻¹(x), without the difference of two numbers near 1."""
    if not epsilon:
        return x
    size = np.abs(x) + (1 + epsilon)
    restored: Array = np.sign(x) * (np.square(2 * size / (np.sqrt(1 + 4 * epsilon * size) + 1)) - 1)
    return restored


def mixed_priority(error: Array, valid: Array, eta: float) -> Array:
    """η · max |δ| + (1 − η) · mean |δ| over the valid steps of each sequence, `[T, B]` → `[B]`; errors are 0 where not
    valid."""
    size = np.abs(error)
    mean = size.sum(0) / np.maximum(np.count_nonzero(valid, axis=0), 1).astype(np.float32)
    priority: Array = eta * size.max(0) + (1 - eta) * mean
    return priority
