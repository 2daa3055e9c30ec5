"""V-trace: off-policy corrected value targets (Espeholt et al. 2018, "IMPALA", equation 1 and remarks 1, 2)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from pappus.ops.numpy_ops import reverse_recurrence


class VTraceReturns(NamedTuple):
    """Value targets v_s and policy-gradient advantages, both `[T, B]`; no gradient flows through them."""

    target: Tensor
    pg_advantage: Tensor


@torch.no_grad()
def vtrace(
    value: Tensor, reward: Tensor, discount: Tensor, rho: Tensor, valid: Tensor, *, rho_clip: float = 1.0,
    c_clip: float = 1.0, pg_rho_clip: float | None = 1.0, lam: float = 1.0,
) -> VTraceReturns:
    """V-trace of `value [T+1, B]`; `discount` is γ times the env's, `rho` is π/μ, both `[T, B]`.

    With ρ_t = min(ρ̄, π/μ), c_t = λ·min(c̄, π/μ) and δ_t = ρ_t (r_t + γ V(x_{t+1}) − V(x_t)),
    v_s = V(x_s) + Σ_t γ^{t−s} (Π_{i<t} c_i) δ_t. The advantage is
    min(pg_rho_clip, π/μ) · (r_s + γ·q_{s+1} − V(x_s)), where q = λ·v + (1−λ)·V and q_T = V(x_T). With
    `pg_rho_clip=None` it is not weighted, for a loss that contains π/μ itself.
    An invalid step acts as ρ = 0: its target is its value, its advantage 0, and no return crosses it.
    """
    assert value.dim() == 2 and value.shape[0] == reward.shape[0] + 1, (value.shape, reward.shape)
    assert reward.shape == discount.shape == rho.shape == valid.shape, "reward, discount, rho, valid: [T, B] each"
    rho = torch.where(valid, rho, 0.0)
    value_t = value[:-1]
    td_error = torch.addcmul(reward, discount, value[1:]).sub_(value_t)
    decay = rho.clamp(max=c_clip).mul_(discount).mul_(lam)
    correction = reverse_recurrence(decay, rho.clamp(max=rho_clip).mul_(td_error))
    target = value_t + correction
    correction_next = torch.cat([correction[1:], torch.zeros_like(correction[:1])])
    q_error = torch.addcmul(td_error, discount, correction_next, value=lam)
    weight = valid.to(rho.dtype) if pg_rho_clip is None else rho.clamp_(max=pg_rho_clip)
    return VTraceReturns(target, weight.mul_(q_error))
