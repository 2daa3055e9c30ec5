"""The linear recurrence, backwards in time, that V-trace, λ-returns and GAE have in common."""

from __future__ import annotations

import torch
from torch import Tensor


def reverse_recurrence(decay: Tensor, x: Tensor) -> Tensor:
    """y_t = x_t + decay_t · y_{t+1} with y_T = 0, over the first dimension of `[T, …]`."""
    assert decay.shape == x.shape and x.dim() >= 1, (decay.shape, x.shape)
    decays, steps = decay.unbind(), list(x.unbind())
    for t in range(len(steps) - 2, -1, -1):
        steps[t] = torch.addcmul(steps[t], decays[t], steps[t + 1])
    return torch.stack(steps)
