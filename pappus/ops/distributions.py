"""Action distributions without state: every method takes the parameter tensor `[..., P]` a network computed."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from pappus.ops import numpy_ops
from pappus.ops.numpy_ops import LOG_SQRT_2PI, LOG_STD_RANGE, NumpySampler, log_exponential
from pappus.types import ActionSpec, DiscreteAction, MultiDiscreteAction

MASKED_LOGIT = -1e9
"""Finite, so that p·log p stays 0 and not NaN, and too low for the sampling noise (−5 to 17) to make up for."""

PADDED_LOGIT = -1e30
"""Below `MASKED_LOGIT`: a choice whose values are all masked still takes one of its own values."""

NEAREST_TO_BOUND = 1 - 1e-6
"""Squashed actions are clipped to this magnitude before atanh; float32 resolves 6e-8 near 1."""

QUADRATURE_NODES = 16
"""The entropy of a squashed policy is then exact to 1 % up to a deviation of 1, and to a few percent beyond."""


class Distribution(Protocol):
    """A distribution over actions; `[...]` are the leading dimensions of the parameters.

    Actions carry no gradient, be they sampled or the `mode`; `log_prob` and `entropy` (nats) do. For continuous actions
    these are the log-density and the differential entropy.
    """

    @property
    def parameter_size(self) -> int: ...
    def sample_with_log_prob(self, params: Tensor, generator: Generator | None = None) -> tuple[Tensor, Tensor]: ...
    def mode(self, params: Tensor) -> Tensor: ...
    def log_prob(self, params: Tensor, action: Tensor) -> Tensor: ...
    def entropy(self, params: Tensor) -> Tensor: ...

    def log_prob_and_entropy(self, params: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Both, from one softmax where there is one."""
        return self.log_prob(params, action), self.entropy(params)


@dataclass(frozen=True)
class Categorical(Distribution):
    """One choice of `n`; the parameters are logits `[..., n]`, actions int64 `[...]`."""

    n: int

    @property
    def parameter_size(self) -> int:
        return self.n

    def sample_with_log_prob(self, params: Tensor, generator: Generator | None = None) -> tuple[Tensor, Tensor]:
        """By the exponential race: argmax of log p − log E, E ~ Exp(1)."""
        log_p = params.detach().log_softmax(-1)
        action = (log_p - log_exponential(log_p.shape, generator, log_p.device)).argmax(-1, keepdim=True)
        return action.squeeze(-1), log_p.gather(-1, action).squeeze(-1)

    def mode(self, params: Tensor) -> Tensor:
        return params.argmax(-1)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        return params.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def entropy(self, params: Tensor) -> Tensor:
        log_p = params.log_softmax(-1)
        return -(log_p.exp() * log_p).sum(-1)

    def log_prob_and_entropy(self, params: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        log_p = params.log_softmax(-1)
        return log_p.gather(-1, action.unsqueeze(-1)).squeeze(-1), -(log_p.exp() * log_p).sum(-1)


@dataclass(frozen=True)
class MultiCategorical(Distribution):
    """Independent choices of `nvec` values; the parameters are their concatenated logits, actions int64 `[..., k]`."""

    nvec: tuple[int, ...]

    @property
    def parameter_size(self) -> int:
        return sum(self.nvec)

    def sample_with_log_prob(self, params: Tensor, generator: Generator | None = None) -> tuple[Tensor, Tensor]:
        action, log_prob = self._choice.sample_with_log_prob(self._table(params), generator)
        return action, log_prob.sum(-1)

    def mode(self, params: Tensor) -> Tensor:
        return self._choice.mode(self._table(params))

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        return self._choice.log_prob(self._table(params), action).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        return self._choice.entropy(self._table(params)).sum(-1)

    def log_prob_and_entropy(self, params: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        log_prob, entropy = self._choice.log_prob_and_entropy(self._table(params), action)
        return log_prob.sum(-1), entropy.sum(-1)

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
class Gaussian(Distribution):
    """Independent normals; the parameters are mean ++ log std, both flattened, actions float32 `[..., *shape]`.

    The log standard deviation is clamped to `LOG_STD_RANGE`.
    """

    shape: tuple[int, ...]

    @property
    def parameter_size(self) -> int:
        return 2 * math.prod(self.shape)

    def sample_with_log_prob(self, params: Tensor, generator: Generator | None = None) -> tuple[Tensor, Tensor]:
        mean, log_std = self._split(params.detach())
        noise = torch.empty_like(mean).normal_(generator=generator)
        action = torch.addcmul(mean, noise, log_std.exp())
        return self._shaped(action), self._log_density(noise, log_std)

    def mode(self, params: Tensor) -> Tensor:
        return self._shaped(self._split(params.detach())[0])

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        mean, log_std = self._split(params)
        return self._log_density((action.reshape(mean.shape) - mean) * (-log_std).exp(), log_std)

    def entropy(self, params: Tensor) -> Tensor:
        log_std = self._split(params)[1]
        return log_std.sum(-1) + log_std.shape[-1] * 0.5 * math.log(2 * math.pi * math.e)

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
        before, log_prob = super().sample_with_log_prob(params, generator)
        return before.tanh(), log_prob - _log_slope(before.reshape(*log_prob.shape, -1)).sum(-1)

    def reparameterized(self, params: Tensor, count: int | None = None) -> tuple[Tensor, Tensor]:
        """tanh(mean + std · noise), flat `[..., A]`, and its log-probability `[...]`: both carry the parameters'
        gradients (Haarnoja et al. 2018). With a `count`, so many for each row: `[..., count, A]`, `[..., count]`."""
        mean, log_std = self._split(params)
        if count is not None:
            mean, log_std = (leaf.unsqueeze(-2) for leaf in (mean, log_std))
            log_std = log_std.expand(*mean.shape[:-2], count, mean.shape[-1])
        noise = torch.randn_like(log_std)
        before = torch.addcmul(mean, noise, log_std.exp())
        return before.tanh(), self._log_density(noise, log_std) - _log_slope(before).sum(-1)

    def mode(self, params: Tensor) -> Tensor:
        """The tanh of the mean, which is the median."""
        return super().mode(params).tanh()

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """An action that rounding put on a bound counts as just inside."""
        before = action.clamp(-NEAREST_TO_BOUND, NEAREST_TO_BOUND).atanh()
        log_prob = super().log_prob(params, before)
        return log_prob - _log_slope(before.reshape(*log_prob.shape, -1)).sum(-1)

    def entropy(self, params: Tensor) -> Tensor:
        """H(N) + E[log slope], the latter by Gauss-Hermite quadrature."""
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


def numpy_sampler(distribution: Distribution) -> NumpySampler | None:
    """`sample_with_log_prob` in NumPy, or None for other distributions and for subclasses."""
    if type(distribution) is Categorical:
        return NumpySampler(log_exponential, numpy_ops.draw_categorical)
    if type(distribution) is Gaussian:
        return NumpySampler(numpy_ops.normal, functools.partial(numpy_ops.draw_gaussian, shape=distribution.shape))
    return None
