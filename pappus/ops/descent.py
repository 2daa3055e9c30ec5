"""One step of an optimizer, in place, over flat tensors `[size]` that may lie in memory which others change, too.

The rules are those of torch's optimizers, which want to own what they remember of the weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pappus.config import OptimizerConfig


def statistics_of(config: OptimizerConfig) -> tuple[str, ...]:
    """What the configured rule remembers of every weight."""
    if config.name == "rmsprop":
        centered = ("grad_avg",) if config.centered else ()
        return ("square_avg", *centered, *(("momentum_buffer",) if config.momentum > 0 else ()))
    return ("sum",) if config.name == "adagrad" else ("exp_avg", "exp_avg_sq")


@torch.no_grad()
def descend(
    config: OptimizerConfig, rate: float, weights: Tensor, statistics: Sequence[Tensor], gradient: Tensor, update: int
) -> None:
    """Take one step of size `rate` with the configured rule."""
    assert weights.shape == gradient.shape and len(statistics) == len(statistics_of(config)), weights.shape
    RULES[config.name](config, rate, weights, statistics, gradient, update)


def _adam(
    config: OptimizerConfig, rate: float, weights: Tensor, statistics: Sequence[Tensor], gradient: Tensor, update: int
) -> None:
    """Kingma and Ba 2015, algorithm 1."""
    mean, square = statistics
    mean.lerp_(gradient, 1 - config.momentum)
    square.mul_(config.decay).addcmul_(gradient, gradient, value=1 - config.decay)
    root = square.sqrt().div_(math.sqrt(1 - config.decay**update)).add_(config.epsilon)
    weights.addcdiv_(mean, root, value=-rate / (1 - config.momentum**update))


def _rmsprop(
    config: OptimizerConfig, rate: float, weights: Tensor, statistics: Sequence[Tensor], gradient: Tensor, update: int
) -> None:
    """Mnih et al. 2016, equation S2, with ε outside the root; centered as in Graves 2013."""
    square, *rest = statistics
    square.mul_(config.decay).addcmul_(gradient, gradient, value=1 - config.decay)
    variance = square
    if config.centered:
        mean = rest.pop(0)
        mean.lerp_(gradient, 1 - config.decay)
        variance = torch.addcmul(square, mean, mean, value=-1)
    root = variance.sqrt().add_(config.epsilon)
    if rest:
        momentum = rest[0]
        momentum.mul_(config.momentum).addcdiv_(gradient, root)
        weights.add_(momentum, alpha=-rate)
    else:
        weights.addcdiv_(gradient, root, value=-rate)


def _adagrad(
    config: OptimizerConfig, rate: float, weights: Tensor, statistics: Sequence[Tensor], gradient: Tensor, update: int
) -> None:
    """Duchi et al. 2011, diagonal."""
    (total,) = statistics
    total.addcmul_(gradient, gradient)
    weights.addcdiv_(gradient, total.sqrt().add_(config.epsilon), value=-rate)


RULES: dict[str, Callable[..., None]] = {"adam": _adam, "rmsprop": _rmsprop, "adagrad": _adagrad}
