"""A network's output for single observations out of replay, which have their frames stacked already."""

from __future__ import annotations

from typing import Any

import optree
import torch
from torch import nn

from pappus.types import ACTION_MASK, Nest


def look(network: nn.Module, observation: Nest) -> Any:
    """The output for observations `[B, …]` (stacks `[B, k, …]` where the network stacks frames), without time.

    The network must have no memory but its frames: those of a stack but the newest are its state.
    """
    stacked = getattr(network, "frame_stack", None) is not None
    leaves = optree.tree_leaves(observation)
    first = torch.zeros(1, len(leaves[0]), dtype=torch.bool, device=leaves[0].device)
    frames: Nest = ()
    if stacked:
        seen = observation
        if isinstance(seen, dict) and ACTION_MASK in seen:
            seen = {key: leaf for key, leaf in seen.items() if key != ACTION_MASK}
        frames = optree.tree_map(lambda leaf: leaf[:, :-1], seen)
        observation = optree.tree_map(lambda leaf: leaf[:, -1], observation)
    *values, state = output = network(
        optree.tree_map(lambda leaf: leaf.unsqueeze(0), observation), first, (frames, ())
    )
    return type(output)(*(value.squeeze(0) for value in values), state)
