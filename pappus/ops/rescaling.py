"""R2D2's value rescaling, which learns large values on a flatter scale instead of clipping rewards (Pohlen 2018).

    h(x)   = sign(x) (√(|x| + 1) − 1) + ε x
    h⁻¹(x) = sign(x) (((√(1 + 4 ε (|x| + 1 + ε)) − 1) / 2 ε)² − 1)
"""

from __future__ import annotations

import torch
from torch import Tensor


def rescale(x: Tensor, epsilon: float) -> Tensor:
    """h(x); x itself for ε = 0, which means no rescaling."""
    if not epsilon:
        return x
    return x.sign() * ((x.abs() + 1).sqrt() - 1) + epsilon * x


def unrescale(x: Tensor, epsilon: float) -> Tensor:
    """h⁻¹(x), with (root − 1) / 2ε rewritten to avoid the difference of two numbers near 1."""
    if not epsilon:
        return x
    size = x.abs() + 1 + epsilon
    return x.sign() * ((2 * size / (torch.sqrt(1 + 4 * epsilon * size) + 1)).square() - 1)
