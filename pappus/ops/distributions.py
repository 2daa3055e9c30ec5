"""Action distributions without state: every method takes the parameter tensor `[..., P]` a network computed.

Actions carry no gradient (`sample`, `mode`, `sample_with_log_prob`); `log_prob`, `entropy` and `kl` do.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from pappus.types import ActionSpec, DiscreteAction, MultiDiscreteAction

MASKED_LOGIT = -1e9
"""Finite, so that p·log p stays 0 and not NaN, and too low for the sampling noise (−5 to 17) to make up for."""

PADDED_LOGIT = -1e30
"""Below `MASKED_LOGIT`: a choice whose values are all masked still takes one of its own values."""

LOG_STD_RANGE = (-10.0, 2.0)
"""Standard deviations from 5e-5 to 7.4, in actions' normalised units where the bounds are ±1."""

NEAREST_TO_BOUND = 1 - 1e-6
"""Squashed actions are clipped to this magnitude before atanh; float32 resolves 6e-8 near 1."""

LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)

QUADRATURE_NODES = 16
"""The entropy of a squashed policy is then exact to 1 % up to a deviation of 1, and to a few percent beyond."""


class Distribution(Protocol):
    """A distribution, as algorithms and actors use it; `[...]` are the leading dimensions of the parameters."""

    @property
    def parameter_size(self) -> int: ...
    def sample(self, params: Tensor, generator: Generator | None = None) -> Tensor: ...
    def sample_with_log_prob(self, params: Tensor, generator: Generator | None = None) -> tuple[Tensor, Tensor]: ...
    def mode(self, params: Tensor) -> Tensor: ...
    def log_prob(self, params: Tensor, action: Tensor) -> Tensor: ...
    def entropy(self, params: Tensor) -> Tensor: ...
    def log_prob_and_entropy(self, params: Tensor, action: Tensor) -> tuple[Tensor, Tensor]: ...
    def kl(self, p: Tensor, q: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class Categorical:
    """One choice of `n`; the parameters are logits `[..., n]`, actions int64 `[...]`."""

    n: int

    @property
    def parameter_size(self) -> int:
        return self.n

    def sample(self, params: Tensor, generator: Generator | None = None) -> Tensor:
        """An action per row."""
        return self.sample_with_log_prob(params, generator)[0]

    def sample_with_log_prob(self, params: Tensor, generator: Generator | None = None) -> tuple[Tensor, Tensor]:
        """An action per row, by the exponential race (argmax of log p − log E, E ~ Exp(1)), and its log-probability."""
        log_p = params.detach().log_softmax(-1)
        action = (log_p - log_exponential(log_p.shape, generator, log_p.device)).argmax(-1, keepdim=True)
        return action.squeeze(-1), log_p.gather(-1, action).squeeze(-1)

    def mode(self, params: Tensor) -> Tensor:
        """The most probable action."""
        return params.argmax(-1)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """log π(action)."""
        return params.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, params: Tensor) -> Tensor:
        """−Σ p log p, in nats."""
        log_p = params.log_softmax(-1)
        return -(log_p.exp() * log_p).sum(-1)

    def log_prob_and_entropy(self, params: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Both from one softmax."""
        log_p = params.log_softmax(-1)
        return log_p.gather(-1, action.unsqueeze(-1)).squeeze(-1), -(log_p.exp() * log_p).sum(-1)

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        """KL(p ‖ q), in nats."""
        log_p = p.log_softmax(-1)
        return (log_p.exp() * (log_p - q.log_softmax(-1))).sum(-1)


@dataclass(frozen=True)
class MultiCategorical:
    """Independent choices of `nvec` values; the parameters are their concatenated logits, actions int64 `[..., k]`."""

    nvec: tuple[int, ...]

    @property
    def parameter_size(self) -> int:
        return sum(self.nvec)

    def sample(self, params: Tensor, generator: Generator | None = None) -> Tensor:
        """An action per choice."""
        return self._choice.sample(self._table(params), generator)

    def sample_with_log_prob(self, params: Tensor, generator: Generator | None = None) -> tuple[Tensor, Tensor]:
        """An action per choice and their joint log-probability."""
        action, log_prob = self._choice.sample_with_log_prob(self._table(params), generator)
        return action, log_prob.sum(-1)

    def mode(self, params: Tensor) -> Tensor:
        """The most probable action of every choice."""
        return self._choice.mode(self._table(params))

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """log π of the joint action."""
        return self._choice.log_prob(self._table(params), action).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        """Entropy of the joint distribution, in nats."""
        return self._choice.entropy(self._table(params)).sum(-1)

    def log_prob_and_entropy(self, params: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Both from one softmax."""
        log_prob, entropy = self._choice.log_prob_and_entropy(self._table(params), action)
        return log_prob.sum(-1), entropy.sum(-1)

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        """KL(p ‖ q) of the joint distributions, in nats."""
        return self._choice.kl(self._table(p), self._table(q)).sum(-1)

    @property
    def _choice(self) -> Categorical:
        return Categorical(max(self.nvec))

    def _table(self, params: Tensor) -> Tensor:
        """One row per choice, `[..., k, max(nvec)]`, so that all choices share each kernel."""
        widest = max(self.nvec)
        if len(self.nvec) * widest == params.shape[-1]:
            return params.reshape(*params.shape[:-1], len(self.nvec), widest)
        choices = torch.split(params, list(self.nvec), -1)
        rows = [F.pad(choice, (0, widest - choice.shape[-1]), value=PADDED_LOGIT) for choice in choices]
        return torch.stack(rows, -2)


@dataclass(frozen=True)
class Gaussian:
    """Independent normals; the parameters are mean ++ log std, both flattened, actions float32 `[..., *shape]`.

    The log standard deviation is clamped to `LOG_STD_RANGE`.
    """

    shape: tuple[int, ...]

    @property
    def parameter_size(self) -> int:
        return 2 * math.prod(self.shape)

    def sample(self, params: Tensor, generator: Generator | None = None) -> Tensor:
        """An action per row."""
        return self.sample_with_log_prob(params, generator)[0]

    def sample_with_log_prob(self, params: Tensor, generator: Generator | None = None) -> tuple[Tensor, Tensor]:
        """An action per row and its log-density."""
        mean, log_std = self._split(params.detach())
        noise = torch.empty_like(mean).normal_(generator=generator)
        action = torch.addcmul(mean, noise, log_std.exp())
        return self._shaped(action), self._log_density(noise, log_std)

    def mode(self, params: Tensor) -> Tensor:
        """The mean."""
        return self._shaped(self._split(params.detach())[0])

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """Log-density of the action."""
        mean, log_std = self._split(params)
        return self._log_density((action.reshape(mean.shape) - mean) * (-log_std).exp(), log_std)

    def entropy(self, params: Tensor) -> Tensor:
        """Differential entropy, in nats."""
        log_std = self._split(params)[1]
        return log_std.sum(-1) + log_std.shape[-1] * 0.5 * math.log(2 * math.pi * math.e)

    def log_prob_and_entropy(self, params: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Both, as the discrete distributions give them together."""
        return self.log_prob(params, action), self.entropy(params)

    def kl(self, p: Tensor, q: Tensor) -> Tensor:
        """KL(p ‖ q), in nats."""
        (mean_p, log_std_p), (mean_q, log_std_q) = self._split(p), self._split(q)
        variances = (2 * log_std_p).exp() + (mean_p - mean_q).square()
        return (log_std_q - log_std_p + 0.5 * (variances * (-2 * log_std_q).exp() - 1)).sum(-1)

    def _split(self, params: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = params.chunk(2, -1)
        return mean, log_std.clamp(*LOG_STD_RANGE)

    def _shaped(self, flat: Tensor) -> Tensor:
        return flat.reshape(*flat.shape[:-1], *self.shape)

    def _log_density(self, noise: Tensor, log_std: Tensor) -> Tensor:
        return -torch.addcmul(log_std, noise, noise, value=0.5).sum(-1) - noise.shape[-1] * LOG_SQRT_2PI


@dataclass(frozen=True)
class SquashedGaussian(Gaussian):
    """tanh of a `Gaussian`: actions lie between the bounds −1 and 1.

    log π(a) = log N(x) − Σ log(1 − tanh² x), x = atanh a
    """

    def sample_with_log_prob(self, params: Tensor, generator: Generator | None = None) -> tuple[Tensor, Tensor]:
        """An action per row and its log-density."""
        before, log_prob = super().sample_with_log_prob(params, generator)
        return before.tanh(), log_prob - _log_slope(before.reshape(*log_prob.shape, -1)).sum(-1)

    def mode(self, params: Tensor) -> Tensor:
        """The tanh of the mean, which is the median."""
        return super().mode(params).tanh()

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """Log-density of the action; one that rounding put on a bound counts as just inside."""
        before = action.clamp(-NEAREST_TO_BOUND, NEAREST_TO_BOUND).atanh()
        log_prob = super().log_prob(params, before)
        return log_prob - _log_slope(before.reshape(*log_prob.shape, -1)).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        """Differential entropy: H(N) + E[log slope], the latter by Gauss-Hermite quadrature."""
        mean, log_std = self._split(params)
        nodes, weights = (leaf.to(params) for leaf in _quadrature())
        points = mean.unsqueeze(-1) + log_std.exp().unsqueeze(-1) * nodes
        return super().entropy(params) + (_log_slope(points) * weights).sum((-1, -2))


def _log_slope(x: Tensor) -> Tensor:
    """log(1 − tanh² x) in a form that stays finite: 2 (log 2 − x − softplus(−2x))."""
    return 2 * (math.log(2) - x - F.softplus(-2 * x))


@functools.cache
def _quadrature() -> tuple[Tensor, Tensor]:
    """Nodes and weights with which Σ w f(x) is the mean of f over a standard normal."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(QUADRATURE_NODES)
    return torch.from_numpy(nodes), torch.from_numpy(weights / weights.sum())


def distribution_for(action: ActionSpec, squash: bool = False) -> Distribution:
    """The distribution over actions of this kind; `squash` keeps continuous ones between their bounds."""
    if isinstance(action, DiscreteAction):
        return Categorical(action.n)
    if isinstance(action, MultiDiscreteAction):
        return MultiCategorical(action.nvec)
    return SquashedGaussian(action.shape) if squash else Gaussian(action.shape)


def mask_logits(logits: Tensor, mask: Tensor) -> Tensor:
    """The logits with `MASKED_LOGIT` where the mask is 0: never sampled, and entropy stays finite."""
    return logits.masked_fill(mask == 0, MASKED_LOGIT)


def log_exponential(
    shape: Sequence[int], generator: Generator | None, device: torch.device | None = None
) -> Tensor:
    """log E with E ~ Exp(1), as log(−log u): finite because u is neither 0 nor 1, 3 times as fast as `exponential_`.

    Finite noise is what keeps masked actions out; float32 always, because bfloat16 rounds u up to 1.
    """
    u = torch.empty(shape, dtype=torch.float32, device=device)
    return u.uniform_(torch.finfo(torch.float32).tiny, 1.0, generator=generator).log_().neg_().log_()
