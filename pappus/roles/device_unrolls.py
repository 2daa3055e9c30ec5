"""Unrolls under construction on a device: an observation is copied there once and used for training in place."""

from __future__ import annotations

from typing import Any

import torch

from pappus.accelerator import Accelerator
from pappus.types import Array, ArraySpec, Nest, Unroll, map_leaves


class UnrollBuffer:
    """An unroll: observations and recurrent states on the device, numbers on the host. Its observations are rows of the
    store from `start` on. `event` is behind its last use on any stream."""

    def __init__(self, spec: Unroll, accelerator: Accelerator, owner: Any, start: int) -> None:
        def pinned(leaf: ArraySpec) -> Array:
            return accelerator.pinned(leaf.shape, getattr(torch, leaf.dtype)).numpy()

        def on_device(leaf: ArraySpec) -> torch.Tensor:
            return torch.zeros(leaf.shape, dtype=getattr(torch, leaf.dtype), device=accelerator.device)

        self.host: Unroll = map_leaves(pinned, spec._replace(observation=(), state=()))
        self.state: Nest = map_leaves(on_device, spec.state)
        self.length, self.num_envs = self.host.first.shape
        self.owner, self.start = owner, start
        self.event: Any = None
        self._numbers: Unroll = map_leaves(torch.from_numpy, self.host)
        self.unroll = self._numbers

    def view(self, store: Nest) -> None:
        """Find the observations in the store, which has moved."""
        rows = slice(self.start, self.start + self.length * self.num_envs)
        observation = map_leaves(lambda leaf: leaf[rows].unflatten(0, (self.length, self.num_envs)), store)
        self.unroll = self._numbers._replace(observation=observation, state=self.state)


class ObservationStore:
    """The observations of all unrolls under construction, in one tensor `[rows, …]` for each leaf: one call writes a
    batch of them, wherever each belongs. The last row is for what only fills a batch."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self.observation: Nest = ()
        self._outgrown: Nest = ()
        """The store before: another thread may still read an unroll there."""
        self.spare = 0
        """The number of rows for observations, and of the row behind them."""
        self._used = 0
        self._free: list[tuple[int, int]] = []
        """Blocks that nobody uses any more, below `_used`: where each begins, and its rows."""
        self._buffers: set[UnrollBuffer] = set()

    def add(self, spec: Unroll, owner: Any) -> UnrollBuffer:
        """An unroll of this spec."""
        length, num_envs = spec.first.shape
        buffer = UnrollBuffer(spec, self._accelerator, owner, self._take(length * num_envs, spec.observation))
        buffer.view(self.observation)
        self._buffers.add(buffer)
        return buffer

    def remove(self, buffer: UnrollBuffer) -> None:
        """Its rows are free for another, once the last copy of them is done."""
        self._accelerator.reach(buffer.event)
        self._buffers.discard(buffer)
        self._free = _joined([*self._free, (buffer.start, buffer.length * buffer.num_envs)])
        if sum(self._free[-1]) == self._used:
            self._used = self._free.pop()[0]

    def _take(self, rows: int, spec: Nest) -> int:
        """Where a block of so many rows begins: in the smallest free one that holds it, or behind all."""
        fitting = [(size, start) for start, size in self._free if size >= rows]
        if fitting:
            size, start = min(fitting)
            self._free.remove((start, size))
            self._free = sorted([*self._free, *([(start + rows, size - rows)] if size > rows else [])])
            return start
        start, self._used = self._used, self._used + rows
        if self._used > self.spare:
            self._grow(max(self._used, 2 * self.spare), spec)
        return start

    def _grow(self, size: int, spec: Nest) -> None:
        """Move to a larger store."""

        def larger(leaf: ArraySpec) -> torch.Tensor:
            shape, kind = leaf.shape[2:], getattr(torch, leaf.dtype)
            return torch.zeros(size + 1, *shape, dtype=kind, device=self._accelerator.device)

        grown = map_leaves(larger, spec)
        if self.spare:
            map_leaves(lambda into, leaf: into[: self.spare].copy_(leaf[: self.spare]), grown, self.observation)
            self._accelerator.wait()  # all that was written there was written on this stream
        self._outgrown, self.observation, self.spare = self.observation, grown, size
        for buffer in self._buffers:
            buffer.view(grown)


def _joined(blocks: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Blocks in order, neighbours as one."""
    joined: list[tuple[int, int]] = []
    for start, size in sorted(blocks):
        if joined and sum(joined[-1]) == start:
            start, before = joined.pop()
            size += before
        joined.append((start, size))
    return joined
