"""R2D2's value rescaling: rewards need not be clipped when values are learnt on a scale that flattens (Pohlen 2018).

    h(x)   = sign(x) (√(|x| + 1) − 1) + ε x
    h⁻¹(x) = sign(x) (((√(1 + 4 ε (|x| + 1 + ε)) − 1) / 2 ε)² − 1)
"""

from __future__ import annotations

import torch
from torch import Tensor


def rescale(x: Tensor, epsilon: float) -> Tensor:
    """h(x); x itself for ε = 0, which stands for no rescaling."""
    if not epsilon:
        return x
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + epsilon * x


def unrescale(x: Tensor, epsilon: float) -> Tensor:
    """h⁻¹(x), where (root − 1) / 2ε is written without its difference of two numbers that are both nearly 1."""
    if not epsilon:
        return x
    size = x.abs() + 1 + epsilon
    return x.sign() * ((2 * size / (torch.sqrt(1 + 4 * epsilon * size) + 1)).square() - 1)
