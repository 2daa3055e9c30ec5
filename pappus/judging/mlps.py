"""Several small MLPs of one shape, trained side by side: one fit of all episodes, others of resampled ones."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn


class StackedMLPs(nn.Module):
    """K MLPs on scaled inputs: `[R, F]` or `[K, R, F]` → `[K, R, outputs]`; the last layer begins with zeros."""

    def __init__(
        self, members: int, inputs: Tensor, outputs: int, hidden: tuple[int, ...], generator: torch.Generator
    ) -> None:
        """`inputs [R, F]` are those that are scaled to mean 0 and deviation 1."""
        super().__init__()
        spread, mean = torch.std_mean(inputs.double(), 0, correction=0)
        self.mean, self.scale = nn.Buffer(mean.float()), nn.Buffer((1 / spread.clamp(min=1e-6)).float())
        shapes = list(pairwise((inputs.shape[1], *hidden, outputs)))
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        for i, (rows, columns) in enumerate(shapes):
            gain = math.sqrt(2 / rows) if i + 1 < len(shapes) else 0.0
            self.weights.append(torch.randn(members, rows, columns, generator=generator) * gain)
            self.biases.append(torch.zeros(members, 1, columns))

    def forward(self, x: Tensor) -> Tensor:
        x = ((x - self.mean) * self.scale).clamp(-10.0, 10.0)
        x = x.expand(len(self.weights[0]), *x.shape[-2:])
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x.relu() if i else x, weight)
        return x
