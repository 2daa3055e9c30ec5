"""Finds the remote clients whose experience made a batch's loss or gradient non-finite.

The batch is evaluated again, in parts, with the present weights, after it was skipped: speed does not matter.

    the weights   if it is not finite even with all its real numbers clipped to ±1: no client is to blame
    a client      if its part alone is not finite; or, if no part is, if all without its part is finite
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from pappus.core import Sink
from pappus.recording.unrolls import as_tensor
from pappus.types import OWN, Array, Nest, Unroll, map_leaves

IsFinite = Callable[[Array, bool], bool]
"""Whether loss and gradient of some columns of a batch are finite, by their numbers; and whether to tame them first."""


def to_blame(origins: Array, is_finite: IsFinite) -> list[int] | None:
    """The clients that are to blame, by the origins `[B]` of a batch's columns; None if this batch is finite."""
    everything, present = np.arange(len(origins)), np.unique(origins).tolist()
    if is_finite(everything, False):
        return None
    if not is_finite(everything, True):
        return []
    alone = [one for one in present if not is_finite(np.flatnonzero(origins == one), False)]
    found = alone or [one for one in present if len(present) > 1 and is_finite(np.flatnonzero(origins != one), False)]
    return [one for one in found if one != OWN]


def accuse(suspects: Sink, origins: list[int]) -> None:
    """Report clients to the inference server, which can drop them; without room, their next batch is found again."""
    for origin in origins:
        slot: Any = suspects.acquire()
        if slot is not None:
            slot[...] = origin
            suspects.commit()


def unroll_part(unroll: Unroll, columns: Array, tame: bool) -> Unroll:
    """Some envs of an unroll, as tensors of its device."""
    timed = part_of(unroll._replace(state=()), columns, 1, tame)
    part: Unroll = timed._replace(state=part_of(unroll.state, columns, 0, tame))
    return part


def part_of(nest: Nest, columns: Array, dim: int, tame: bool) -> Nest:
    """Some columns of a nest of tensors or arrays, as tensors."""

    def pick(leaf: Any) -> torch.Tensor:
        tensor = as_tensor(leaf)
        picked = tensor.index_select(dim, torch.from_numpy(columns).to(tensor.device))
        return picked.nan_to_num(0.0).clamp(-1, 1) if tame and picked.is_floating_point() else picked

    return map_leaves(pick, nest)
