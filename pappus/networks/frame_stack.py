"""Frame stacking as recurrent state: envs deliver single frames, and the network remembers the last k − 1."""

from __future__ import annotations

import optree
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pappus.types import ArraySpec, Nest


class FrameStack(nn.Module):
    """Turns frames `[T, B, *frame]` into stacks of the newest `k`, `[T, B, k, *frame]`, the oldest first.

    `frame_spec` is the spec of one frame, or a nest of them. The state holds the last k − 1 frames of every env,
    `[B, k-1, *frame]` in the frame's own dtype. Frames from before an episode's first are zeros.
    """

    def __init__(self, k: int, frame_spec: Nest) -> None:
        super().__init__()
        assert k >= 2, f"a stack of k={k} frames needs no state; leave it out"
        self.k = k
        self.state_spec: Nest = optree.tree_map(lambda leaf: ArraySpec((k - 1, *leaf.shape), leaf.dtype), frame_spec)
        self.output_spec: Nest = optree.tree_map(self._stacked, frame_spec)

    def forward(self, frames: Nest, first: Tensor, state: Nest) -> tuple[Nest, Nest]:
        """`frames [T, B, …]`, `first [T, B]`, `state [B, k-1, …]` → stacks and the new state, both nests. `first` may
        be `[1, B]`, as for `modules.Core`."""
        length = len(optree.tree_leaves(frames)[0])
        same = self._same_episode(F.pad(first, (0, 0, 0, length - len(first))))
        stacks = optree.tree_map(lambda leaf, past: self._stack(leaf, past, same), frames, state)
        return stacks, optree.tree_map(lambda stack: stack[-1, :, 1:], stacks)

    def _same_episode(self, first: Tensor) -> Tensor:
        """Whether the frame at each of the k places is of the newest one's episode, `[T, B, k]`."""
        episode = F.pad(first.cumsum(0), (0, 0, self.k - 1, 0))
        return episode.unfold(0, self.k, 1) == episode[self.k - 1 :].unsqueeze(-1)

    def _stack(self, frames: Tensor, past: Tensor, same: Tensor) -> Tensor:
        length, batch, *frame = frames.shape
        history = torch.cat([past.transpose(0, 1), frames])
        same = same.view(length, batch, self.k, *(1 for _ in frame))
        # One pass over the memory: a frame is copied to its place and zeroed where needed, at once.
        # The k places of a pixel lie side by side (channels-last), so convolutions need no second copy.
        stack = torch.empty((length, batch, *frame, self.k), dtype=frames.dtype, device=frames.device).movedim(-1, 2)
        for place in range(self.k):
            torch.mul(history[place : place + length], same[:, :, place], out=stack[:, :, place])
        return stack

    def _stacked(self, frame: ArraySpec) -> ArraySpec:
        num_values = None if frame.num_values is None else frame.num_values * self.k
        return ArraySpec((self.k, *frame.shape), frame.dtype, num_values)
