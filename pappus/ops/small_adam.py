"""Adam for a few thousand weights on a CPU: torch's own spends most of its time on the way to the numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from pappus.types import Array

MOST_WEIGHTS = 65_536
"""What fits into a core's cache several times over; beyond, torch's single pass over memory wins."""


class SmallAdam(torch.optim.Adam):
    """The same steps, in NumPy; what is remembered is torch's, and so are checkpoints. Of one float32 parameter."""

    def __init__(self, parameter: torch.nn.Parameter, rate: float, betas: tuple[float, float], epsilon: float) -> None:
        super().__init__([parameter], rate, betas=betas, eps=epsilon, fused=True)
        self._begin()
        self._one, self._other = (np.empty(parameter.numel(), np.float32) for _ in range(2))

    def load_state_dict(self, state_dict: Any) -> None:
        """Go on from a state, which torch's own saves empty before its first step."""
        super().load_state_dict(state_dict)
        self._begin()

    def _begin(self) -> None:
        (parameter,) = self.param_groups[0]["params"]
        if not self.state[parameter]:
            nothing = torch.zeros_like(parameter)
            self.state[parameter] = {"step": torch.zeros(()), "exp_avg": nothing, "exp_avg_sq": nothing.clone()}

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Kingma and Ba 2015, algorithm 1."""
        group = self.param_groups[0]
        (parameter,), (mean_decay, square_decay) = group["params"], group["betas"]
        state = self.state[parameter]
        count, mean, square = (state[name].numpy() for name in ("step", "exp_avg", "exp_avg_sq"))
        count += 1
        gradient, weights = parameter.grad.numpy(), parameter.detach().numpy()
        self._remember(gradient, mean, square, mean_decay, square_decay)
        root = np.sqrt(square, out=self._one)
        root /= math.sqrt(1 - square_decay ** float(count))
        root += group["eps"]
        change = np.divide(mean, root, out=self._other)
        change *= group["lr"] / (1 - mean_decay ** float(count))
        weights -= change

    step.hooked = True  # type: ignore[attr-defined]  # torch would wrap it into a profiler's record, which takes longer

    def _remember(
        self, gradient: Array, mean: Array, square: Array, mean_decay: float, square_decay: float
    ) -> None:
        change = np.subtract(gradient, mean, out=self._one)
        change *= 1 - mean_decay
        mean += change
        newest = np.square(gradient, out=self._other)
        newest *= 1 - square_decay
        square *= square_decay
        square += newest
