"""Optimizer steps in place over flat tensors `[size]` in shared memory, which other workers change at the same time.

The rules are those of torch's optimizers, whose state belongs to one process; here the caller passes it in. `SmallAdam`
has the same Adam in NumPy, for small weights only: on larger ones it is half as fast as this.
"""
from __future__ import annotations

import math

import torch
from torch import Tensor


@torch.no_grad()
def adam_step(
    weights: Tensor, gradient: Tensor, mean: Tensor, square: Tensor, *, rate: float, mean_decay: float,
    square_decay: float, epsilon: float, update: int,
) -> None:
    """Kingma and Ba 2015, algorithm 1; `update` counts from 1."""
    assert weights.shape == gradient.shape == mean.shape == square.shape, weights.shape
    mean.lerp_(gradient, 1 - mean_decay)
    square.mul_(square_decay).addcmul_(gradient, gradient, value=1 - square_decay)
    root = square.sqrt().div_(math.sqrt(1 - square_decay**update)).add_(epsilon)
    weights.addcdiv_(mean, root, value=-rate / (1 - mean_decay**update))


@torch.no_grad()
def rmsprop_step(
    weights: Tensor, gradient: Tensor, square: Tensor, mean: Tensor | None, velocity: Tensor | None, *, rate: float,
    decay: float, momentum: float, epsilon: float,
) -> None:
    """Mnih et al. 2016, equation S2, with ε outside the root; with a `mean`, what is under it is the variance."""
    assert weights.shape == gradient.shape == square.shape, weights.shape
    square.mul_(decay).addcmul_(gradient, gradient, value=1 - decay)
    variance = square
    if mean is not None:
        mean.lerp_(gradient, 1 - decay)
        variance = torch.addcmul(square, mean, mean, value=-1).clamp_(min=0.0)  # others may have changed one of them
    root = variance.sqrt().add_(epsilon)
    if velocity is None:
        weights.addcdiv_(gradient, root, value=-rate)
    else:
        velocity.mul_(momentum).addcdiv_(gradient, root)
        weights.add_(velocity, alpha=-rate)


@torch.no_grad()
def adagrad_step(weights: Tensor, gradient: Tensor, total: Tensor, *, rate: float, epsilon: float) -> None:
    """Duchi et al. 2011, with a diagonal matrix."""
    assert weights.shape == gradient.shape == total.shape, weights.shape
    total.addcmul_(gradient, gradient)
    weights.addcdiv_(gradient, total.sqrt().add_(epsilon), value=-rate)
