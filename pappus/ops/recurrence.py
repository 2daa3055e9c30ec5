"""The linear recurrence, backwards in time, that V-trace, λ-returns and GAE have in common."""

from __future__ import annotations

import torch
from torch import Tensor

from pappus.types import Array


def reverse_recurrence(decay: Tensor, x: Tensor) -> Tensor:
    """y_t = x_t + decay_t · y_{t+1} with y_T = 0, over the first dimension of `[T, …]`."""
    assert decay.shape == x.shape and x.dim() >= 1, (decay.shape, x.shape)
    constant = not (x.requires_grad or decay.requires_grad)
    if constant and x.device.type == "cpu" and x.dtype is decay.dtype is torch.float32:
        return _on_arrays(decay.numpy(), x.numpy())
    decays, steps = decay.unbind(), list(x.unbind())
    for t in range(len(steps) - 2, -1, -1):
        steps[t] = torch.addcmul(steps[t], decays[t], steps[t + 1])
    return torch.stack(steps)


def _on_arrays(decay: Array, x: Array) -> Tensor:
    """For small rows torch would spend ten times longer on every call than on the numbers."""
    y = x.copy()
    for t in range(len(y) - 2, -1, -1):
        y[t] += decay[t] * y[t + 1]
    return torch.from_numpy(y)
