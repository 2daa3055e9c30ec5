"""Minibatches of a batch of steps, in a new order for every epoch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pappus.errors import UserError
from pappus.types import Nest, map_leaves

SMALLEST_DEVIATION = 1e-8
"""Added to the deviation of advantages, which may all be equal."""


class Steps(NamedTuple):
    """Steps to learn from, tensors or arrays: rows `[M, …]`, or for networks with memory whole sequences `[T, B, …]`.

    `share` is the weight of a step in the mean: 0 where it is invalid, and 1 in total over a minibatch. `state` is the
    recurrent state before each sequence, `[B, …]`; rows have neither `state` nor `first`. What an algorithm has no use
    for is `()`.
    """

    observation: Nest
    first: Any
    action: Any
    log_prob: Any
    value: Any
    target: Any
    advantage: Any
    share: Any
    state: Nest


def check_minibatches(count: int, length: int, envs: int, sequences: bool = False) -> None:
    """Raise `UserError` if a batch of `length` steps of `envs` envs cannot be cut into `count` minibatches of one size;
    `sequences` stay whole."""
    size = envs if sequences else length * envs
    if size % count:
        what = f"{envs} envs, whose sequences stay whole" if sequences else f"{length} steps of {envs} envs"
        choices = [str(n) for n in range(1, size + 1) if size % n == 0]
        raise UserError(
            f"algorithm.minibatches={count} does not divide a batch of {what}; use {', '.join(choices[:12])}"
        )


def drawn(steps: Steps, parts: int) -> list[Steps]:
    """All steps, tensors, in a new order and `parts` equal parts, with their shares as they are."""
    order = torch.randperm(steps.share.shape[-1]).to(steps.share.device)
    return [chosen(steps, rows) for rows in order.view(parts, -1)]


def shuffled(steps: Steps, parts: int, normalize: bool = False) -> Iterator[Steps]:
    """`parts` minibatches of all steps in a new order, each `balanced`."""
    size = steps.share.shape[-1]
    order: Any = torch.randperm(size)
    order = order.to(steps.share.device) if isinstance(steps.share, Tensor) else order.numpy()
    mixed = balanced(chosen(steps, order), parts, normalize)
    for i in range(parts):
        yield chosen(mixed, slice(size * i // parts, size * (i + 1) // parts))


def balanced(steps: Steps, parts: int, normalize: bool) -> Steps:
    """The shares in each of `parts` equal parts sum to 1; normalised advantages have mean 0 and deviation 1."""
    shape = steps.share.shape
    apart = (*shape[:-1], parts, -1)
    share = steps.share.reshape(apart)
    over = tuple(dim for dim in range(len(apart)) if dim != len(apart) - 2)
    share = share / share.sum(over, keepdims=True).clip(min=1)
    balanced_steps = steps._replace(share=share.reshape(shape))
    if normalize:
        advantage = steps.advantage.reshape(apart)
        advantage = advantage - (share * advantage).sum(over, keepdims=True)
        deviation = (share * advantage**2).sum(over, keepdims=True) ** 0.5
        advantage = advantage / (deviation + SMALLEST_DEVIATION)
        return balanced_steps._replace(advantage=advantage.reshape(shape))
    return balanced_steps


def chosen(steps: Steps, rows: Any) -> Steps:
    """Some of the rows or sequences, along the last dimension of `share`."""
    axis, by_number = steps.share.ndim - 1, isinstance(rows, np.ndarray)
    index = (slice(None),) * axis + (rows,)

    def pick(leaf: Any) -> Any:  # `take` is ten times as fast for rows of a few numbers
        return leaf.take(rows, axis) if by_number and isinstance(leaf, np.ndarray) else leaf[index]

    picked = [pick(leaf) if isinstance(leaf, np.ndarray) else map_leaves(pick, leaf) for leaf in steps[:-1]]
    return Steps._make([*picked, map_leaves(lambda leaf: leaf[rows], steps.state)])
