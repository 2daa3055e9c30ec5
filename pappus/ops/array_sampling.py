"""Drawing actions in NumPy, from random numbers that torch drew many at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Generator, Tensor

from pappus.ops.distributions import LOG_SQRT_2PI, LOG_STD_RANGE, Categorical, Distribution, Gaussian, log_exponential
from pappus.types import Array, Nest

Fill: TypeAlias = Callable[[int, Generator], Tensor]
"""So many random numbers of a kind, float32."""

AHEAD = 16_384
"""Random numbers that are drawn at a time: what each costs then is nothing beside the call."""


def uniform(count: int, generator: Generator) -> Tensor:
    """From 0 to 1, without 1."""
    return torch.rand(count, generator=generator)


def normal(count: int, generator: Generator) -> Tensor:
    """With mean 0 and deviation 1."""
    return torch.randn(count, generator=generator)


def log_of_exponential(count: int, generator: Generator) -> Tensor:
    """log E with E ~ Exp(1)."""
    return log_exponential((count,), generator)


FEW = 256
"""Logits that one call of `logaddexp` adds up sooner than five calls of faster functions."""


class NoiseAhead:
    """Random numbers of one kind, drawn many at a time and handed out in order."""

    def __init__(self, fill: Fill, generator: Generator) -> None:
        self._fill, self._generator = fill, generator
        self._before = generator.get_state()
        """The state of the generator, when it was to draw those that are being handed out."""
        self._drawn: Array = np.empty(0, np.float32)
        self._used = 0

    def take(self, rows: int, columns: int) -> Array:
        """The next ones, `[rows, columns]`, to be read only."""
        end = self._used + rows * columns
        if end > len(self._drawn):
            self._refill(rows * columns)
            end = rows * columns
        taken = self._drawn[self._used : end].reshape(rows, columns)
        self._used = end
        return taken

    def save(self) -> Nest:
        """Where it is."""
        drawn = len(self._drawn)  # without any, others may have made use of the generator
        generator = self._before if drawn else self._generator.get_state()
        return {"generator": generator, "drawn": drawn, "used": self._used}

    def load(self, saved: Nest) -> None:
        """Go on from what `save` returned."""
        self._generator.set_state(saved["generator"])
        self._drawn, self._used = np.empty(0, np.float32), 0
        if saved.get("drawn"):
            self._refill(saved["drawn"])
            self._used = saved["used"]

    def _refill(self, at_least: int) -> None:
        self._before = self._generator.get_state()
        self._drawn = self._fill(max(AHEAD, at_least), self._generator).numpy()
        self._used = 0


class ArraySampler(NamedTuple):
    """What noise a distribution is drawn from, and how: (parameters `[N, P]`, noise) → actions, log-probabilities."""

    noise: Fill
    draw: Callable[[Array, NoiseAhead], tuple[Array, Array]]


def array_sampler(distribution: Distribution) -> ArraySampler | None:
    """How to draw from it in NumPy, where that is known."""
    if type(distribution) is Categorical:
        return ArraySampler(log_of_exponential, draw_categorical)
    if type(distribution) is Gaussian:
        shape = distribution.shape
        return ArraySampler(normal, lambda params, noise: draw_gaussian(params, noise, shape))
    return None


def draw_categorical(logits: Array, noise: NoiseAhead) -> tuple[Array, Array]:
    """By the exponential race, as `Categorical` does it."""
    action = (logits - noise.take(*logits.shape)).argmax(-1)
    return action, logits[np.arange(len(action)), action] - _log_sum(logits)


def _log_sum(logits: Array) -> Array:
    """log Σ exp over the last dimension: for few numbers in one call, which is slow per number."""
    if logits.size <= FEW:
        few: Array = np.logaddexp.reduce(logits, -1)
        return few
    largest = logits.max(-1, keepdims=True)
    total: Array = largest[:, 0] + np.log(np.exp(logits - largest).sum(-1))
    return total


def draw_gaussian(params: Array, noise: NoiseAhead, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Mean plus noise; parameters as `Gaussian` has them."""
    size = params.shape[-1] // 2
    mean, log_std = params[:, :size], params[:, size:].clip(*LOG_STD_RANGE)
    drawn = noise.take(len(params), size)
    action: Any = mean + drawn * np.exp(log_std)
    log_prob = -(log_std + 0.5 * np.square(drawn)).sum(-1) - np.float32(size * LOG_SQRT_2PI)
    return action.reshape(len(params), *shape), log_prob
