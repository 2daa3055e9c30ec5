"""On-policy returns, time-major: `value [T+1, B]`, the rest `[T, B]`, `discount` being γ times the env's.

An invalid step (`types.py`) ends every return that reaches it with its own value, so a truncated episode
bootstraps from its final observation. No gradient flows through what these functions return.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pappus.ops.numpy_ops import reverse_recurrence


@torch.no_grad()
def n_step_returns(value: Tensor, reward: Tensor, discount: Tensor, valid: Tensor, *, n: int) -> Tensor:
    """G_t = r_t + γ r_{t+1} + … + γⁿ V(x_{t+n}), `[T, B]`; near the end it bootstraps from the last value."""
    _check(value, reward, discount, valid)
    assert n >= 1, f"n={n} must be at least 1"
    reward = torch.where(valid, reward, value[:-1])
    discount = torch.where(valid, discount, 0.0)
    returns = value
    for _ in range(min(n, reward.shape[0])):
        returns = torch.cat([torch.addcmul(reward, discount, returns[1:]), value[-1:]])
    return returns[:-1]


@torch.no_grad()
def gae(value: Tensor, reward: Tensor, discount: Tensor, valid: Tensor, *, lam: float) -> Tensor:
    """Â_t = Σ_l (γλ)^l δ_{t+l}, `[T, B]` (Schulman et al. 2016, equation 16); 0 at invalid steps."""
    _check(value, reward, discount, valid)
    td_error = torch.addcmul(reward, discount, value[1:]).sub_(value[:-1])
    return reverse_recurrence(torch.where(valid, discount, 0.0).mul_(lam), torch.where(valid, td_error, 0.0))


@torch.no_grad()
def lambda_returns(value: Tensor, reward: Tensor, discount: Tensor, valid: Tensor, *, lam: float) -> Tensor:
    """G_t = r_t + γ ((1−λ) V(x_{t+1}) + λ G_{t+1}), `[T, B]`: `gae` plus the value."""
    return gae(value, reward, discount, valid, lam=lam).add_(value[:-1])


def _check(value: Tensor, reward: Tensor, discount: Tensor, valid: Tensor) -> None:
    assert value.dim() == 2 and value.shape[0] == reward.shape[0] + 1, (value.shape, reward.shape)
    assert reward.shape == discount.shape == valid.shape, "reward, discount, valid: [T, B] each"
