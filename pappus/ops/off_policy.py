"""Off-policy estimates: what a policy π earns, from E episodes that another policy b played.

    ρ_t = Π_{k ≤ t} π(a_k | o_k) / b(a_k | o_k),  ρ_{−1} = 1
    IS   1/E Σ_e Σ_t γ^t ρ_t r_t                                     Precup et al. 2000 (per decision)
    WIS  Σ_t γ^t Σ_e ρ_t r_t / Σ_e ρ_t                                self-normalised
    DR   1/E Σ_e Σ_t γ^t (ρ_{t−1} V(o_t) + ρ_t (r_t − Q(o_t, a_t)))   Jiang & Li 2016
    WDR  the same, with ρ_t / Σ_e ρ_t in place of ρ_t / E             Thomas & Brunskill 2016
    FQE  Q = r + γ E_π[Q(o', a')], fitted                             Le et al. 2019

Arrays are time-major and float64: episodes side by side, `[T, E]`, padded by zeros. A zero pads a log-ratio, too: an
episode that has ended keeps its weight, in a state where nothing more is earned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pappus.types import Array


class Sums(NamedTuple):
    """An estimator as a function of sums over episodes: what resampled episodes say is then a product of matrices."""

    rows: Array
    """`[E, K]`: what every episode adds to the K sums."""
    value: Callable[[Array], Array]
    """Sums `[…, K]` → estimates `[…]`."""

    @property
    def estimate(self) -> float:
        """By all episodes, each once."""
        return float(self.value(self.rows.sum(0)))


class Weights(NamedTuple):
    """Importance weights, and how far they carry."""

    rho: Array
    """ρ_t, `[T, E]`."""
    effective: float
    """Effective sample size of the episodes' last weights, (Σ ρ)² / Σ ρ² (Kong 1992); E if all are equal."""
    largest: float
    mean: float
    """Of the last weights: 1 in expectation, where the data has all that the policy does."""
    clipped: float
    """Share of the steps whose weight was cut to the bound."""


def importance_weights(log_ratio: Array, lengths: Array, clip: float = np.inf) -> Weights:
    """Weights of episodes with these lengths `[E]`, from log π − log b `[T, E]`; none is larger than `clip`."""
    assert log_ratio.ndim == 2 and lengths.shape == log_ratio.shape[1:], (log_ratio.shape, lengths.shape)
    assert not np.isnan(log_ratio).any(), "log-ratios must be numbers"
    summed = np.cumsum(log_ratio, 0)
    happened = np.arange(len(summed))[:, None] < lengths
    over = happened & (summed > np.log(clip))
    rho = np.exp(np.minimum(summed, np.log(clip)))
    last = rho[-1]
    effective = float(last.sum() ** 2 / (last**2).sum()) if last.any() else 0.0
    return Weights(rho, effective, float(rho[happened].max()), float(last.mean()), over.sum() / happened.sum())


def discounted_returns(reward: Array, discount: float) -> Array:
    """Σ_t γ^t r_t of every episode, `[E]`."""
    return np.asarray((_powers(discount, len(reward)) * reward).sum(0))


def importance_sampling(rho: Array, reward: Array, discount: float) -> Sums:
    """IS, of ρ and rewards `[T, E]`. With weights of 1 it is the mean return."""
    _check(rho, reward)
    return _mean(discounted_returns(rho * reward, discount))


def weighted_importance_sampling(rho: Array, reward: Array, discount: float) -> Sums:
    """WIS, of ρ and rewards `[T, E]`."""
    _check(rho, reward)
    steps = len(reward)
    gains = _powers(discount, steps) * rho * reward
    return Sums(np.concatenate([gains, rho]).T, lambda sums: _shares(sums[..., :steps], sums[..., steps:]).sum(-1))


def doubly_robust(rho: Array, reward: Array, q: Array, value: Array, discount: float) -> Sums:
    """DR, of ρ, rewards and Q(o_t, a_t) `[T, E]`, and V(o_t) `[T + 1, E]`, whose row T_e is 0 where the
    episode terminated."""
    expected, surprise = _doubly_robust_terms(rho, reward, q, value, discount)
    return _mean(expected.sum(0) + surprise.sum(0))


def weighted_doubly_robust(rho: Array, reward: Array, q: Array, value: Array, discount: float) -> Sums:
    """WDR, of the same."""
    expected, surprise = _doubly_robust_terms(rho, reward, q, value, discount)
    before, steps = _before(rho), len(reward)
    rows = np.concatenate([expected, surprise, before]).T  # before: ρ_{−1} … ρ_{T−1}

    def estimate(sums: Array) -> Array:
        expected, surprise, weight = np.split(sums, [steps + 1, 2 * steps + 1], -1)
        return np.asarray(_shares(expected, weight).sum(-1) + _shares(surprise, weight[..., 1:]).sum(-1))

    return Sums(rows, estimate)


class LinearSystem(NamedTuple):
    """FQE for Q(o, a) = φ(o, a) · θ, whose fixed point solves Φᵀ(Φ − Φ') θ = Φᵀ r; sums by G groups of episodes.

    Φ' has γ E_π[φ(o_{t+1}, ·)], or zeros after a termination.
    """

    matrix: Array
    """`[G, D, D]`."""
    goal: Array
    """`[G, D]`."""
    square: Array
    """Σ |φ|², `[G]`."""

    @classmethod
    def of(cls, feature: Array, reward: Array, next_feature: Array, starts: Array) -> LinearSystem:
        """`feature` and `next_feature` `[N, D]`, `reward [N]`; `starts [G]` are the steps that groups start with."""
        assert feature.shape == next_feature.shape == (*reward.shape, feature.shape[1]), (feature.shape, reward.shape)
        groups = list(zip(np.split(feature, starts[1:]), np.split(reward, starts[1:]), strict=True))
        later = np.split(next_feature, starts[1:])
        return cls(
            np.stack([phi.T @ (phi - then) for (phi, _), then in zip(groups, later, strict=True)]),
            np.stack([phi.T @ gained for phi, gained in groups]), np.array([(phi**2).sum() for phi, _ in groups]),
        )

    def solve(self, ridge: float = 1e-9, towards: Array | float = 0.0) -> Array:
        """θ `[D]` of all groups, held to `towards` by `ridge` times the mean |φ|²: it stays there without data."""
        return _solved(self.matrix.sum(0), self.goal.sum(0), ridge * self.square.sum(), towards)

    def leaving_out(self, ridge: float = 1e-9, towards: Array | float = 0.0) -> Array:
        """θ without each of the groups in turn, `[G, D]`."""
        matrix, goal, square = (total.sum(0) - total for total in self)
        return _solved(matrix, goal, ridge * square, towards)


def _solved(matrix: Array, goal: Array, held: Array, towards: Array | float) -> Array:
    """Solve for θ − towards, with `held / D` added to the diagonal."""
    size = matrix.shape[-1]
    towards = np.broadcast_to(np.asarray(towards, np.float64), (size,))
    more = np.multiply.outer(held / size, np.eye(size))
    return np.asarray(towards + np.linalg.solve(matrix + more, (goal - matrix @ towards)[..., None])[..., 0])


def padded(flat: Array, lengths: Array, extra: int = 0) -> Array:
    """Rows of all episodes one after the other, `[Σ (T_e + extra)]`, as `[T + extra, E]` in float64."""
    rows = lengths + extra
    table = np.zeros((len(rows), rows.max()))
    table[np.arange(rows.max()) < rows[:, None]] = flat
    return np.ascontiguousarray(table.T)


def _doubly_robust_terms(
    rho: Array, reward: Array, q: Array, value: Array, discount: float
) -> tuple[Array, Array]:
    """γ^t ρ_{t−1} V(o_t) `[T + 1, E]` and γ^t ρ_t (r_t − Q(o_t, a_t)) `[T, E]`."""
    _check(rho, reward, q)
    assert value.shape == (len(reward) + 1, reward.shape[1]), (value.shape, reward.shape)
    powers = _powers(discount, len(value))
    return powers * _before(rho) * value, powers[:-1] * rho * (reward - q)


def _before(rho: Array) -> Array:
    """ρ_{−1} … ρ_{T−1}, `[T + 1, E]`."""
    return np.concatenate([np.ones_like(rho[:1]), rho])


def _powers(discount: float, steps: int) -> Array:
    return np.asarray(discount ** np.arange(steps, dtype=np.float64)[:, None])


def _mean(values: Array) -> Sums:
    return Sums(np.stack([values, np.ones_like(values)], -1), lambda sums: sums[..., 0] / sums[..., 1])


def _shares(sums: Array, weights: Array) -> Array:
    """Their quotient, 0 where nothing has weight."""
    return np.divide(sums, weights, out=np.zeros_like(sums), where=weights > 0)


def _check(*arrays: Array) -> None:
    assert arrays[0].ndim == 2 and all(array.shape == arrays[0].shape for array in arrays), "[T, E] each"
