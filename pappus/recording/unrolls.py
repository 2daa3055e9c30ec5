"""Unrolls: written step by step, packed into training batches, joined side by side as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import optree
import torch

from pappus.accelerator import copy_all
from pappus.core import Sink
from pappus.types import Array, Nest, Timestep, Unroll, leaves_of, map_leaves


class UnrollWriter:
    """Writes the stream of a vector env, step by step, into slots of T steps each.

    Contract: `begin` writes o_0 and the state before it; T calls of `append` fill the slot, after which `full` is
    True. The next unroll begins with the timestep that ended the last one, so unrolls overlap by one observation
    and every transition is written exactly once.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self.time = length
        """Steps written into the slot so far."""
        self._observation: list[Array] = []
        self._behaviour: dict[str, Array] = {}
        self._slot: Unroll | None = None

    @property
    def full(self) -> bool:
        """Whether the slot holds T steps (or none was begun)."""
        return self.time == self._length

    def begin(self, slot: Unroll, timestep: Timestep, state: Nest) -> None:
        """Start an unroll at `timestep`, from recurrent `state` on."""
        self.resume(slot, 0)
        optree.tree_map_(lambda into, leaf: into.__setitem__(..., leaf), slot.state, state)
        self._write_observation(0, timestep)

    def resume(self, slot: Unroll, time: int) -> None:
        """Continue in a slot that holds `time` steps already."""
        self._slot, self.time = slot, time
        self._observation = optree.tree_leaves(slot.observation)
        self._behaviour = slot.behaviour

    def append(self, action: Array, behaviour: dict[str, Array], version: int, timestep: Timestep) -> None:
        """Write the transition from `action`, chosen by weights of `version`, to `timestep`."""
        slot, time = self._slot, self.time
        assert slot is not None and time < self._length
        slot.action[time] = action
        slot.reward[time] = timestep.reward
        slot.discount[time] = timestep.discount
        slot.valid[time] = timestep.valid
        slot.version[time] = version
        for key, into in self._behaviour.items():
            into[time] = behaviour[key]
        self.time = time + 1
        self._write_observation(time + 1, timestep)

    def valid(self) -> int:
        """Valid steps of the unroll so far; 0 before the first."""
        return 0 if self._slot is None else int(np.count_nonzero(self._slot.valid[: self.time]))

    def held(self) -> int:
        """Valid steps of the unroll under construction."""
        return 0 if self.full else self.valid()

    def _write_observation(self, time: int, timestep: Timestep) -> None:
        assert self._slot is not None
        self._slot.first[time] = timestep.first
        for into, leaf in zip(self._observation, leaves_of(timestep.observation), strict=True):
            into[time] = leaf


class BatchPacker:
    """Packs finished unrolls side by side into slots, each of which is one training batch; sinks get them round-robin.

    Unrolls may have any width; one that does not fit into the rest of a batch continues in the next.
    """

    def __init__(self, sinks: Sequence[Sink], batch_size: int) -> None:
        self._sinks, self._batch_size = sinks, batch_size
        self.turn = 0
        """Which sink gets the next batch. If it is full, the others wait, too: the roles behind them share updates."""
        self.filled = 0
        """Columns of the next batch that are filled."""
        self.held = 0
        """Valid steps among them."""

    @property
    def sink(self) -> Sink:
        """The sink that gets the next batch."""
        return self._sinks[self.turn]

    def handed_on(self) -> int:
        """Valid steps of all batches so far, those of a predecessor included."""
        return sum(sink.handed_on() for sink in self._sinks)

    def pack(self, unroll: Unroll, start: int, width: int) -> int:
        """Copy columns from `start` on while there is room, and return how many of the `width` are copied then."""
        while start < width:
            batch = self.sink.acquire()
            if batch is None:
                break
            count = min(width - start, self._batch_size - self.filled)
            here, there = slice(self.filled, self.filled + count), slice(start, start + count)
            _copy_columns(_columns(batch, here), _columns(unroll, there))
            self.held += int(np.count_nonzero(unroll.valid[:, there]))
            self.filled += count
            start += count
            if self.filled == self._batch_size:
                self.sink.commit(self.held)
                self.turn = (self.turn + 1) % len(self._sinks)
                self.filled = self.held = 0
        return start


def _copy_columns(into: list[Any], leaves: list[Any]) -> None:
    """Arrays one by one; tensors with one call, which does not wait for the device."""
    if isinstance(into[0], torch.Tensor):
        copy_all(into, leaves)
        return
    for array, leaf in zip(into, leaves, strict=True):
        array[...] = leaf


def _columns(unroll: Unroll, envs: slice) -> list[Any]:
    """All leaves of some envs, without a copy."""
    return [leaf[:, envs] for leaf in leaves_of(unroll[:-1])] + [leaf[envs] for leaf in leaves_of(unroll.state)]


def as_tensor(leaf: Any) -> torch.Tensor:
    """An array as a tensor over the same memory; a tensor as it is."""
    return leaf if isinstance(leaf, torch.Tensor) else torch.from_numpy(leaf)


def concatenate(unrolls: Sequence[Unroll], device: str) -> Unroll:
    """Join unrolls along the env dimension."""

    def along(dim: int) -> Any:
        return lambda *leaves: torch.cat([leaf.to(device, non_blocking=True) for leaf in leaves], dim)

    states = map_leaves(along(0), *(unroll.state for unroll in unrolls))
    timed = [unroll._replace(state=()) for unroll in unrolls]
    joined: Unroll = map_leaves(along(1), *timed)
    return joined._replace(state=states)


def copy_side_by_side(unrolls: Sequence[Unroll], batch: Unroll) -> None:
    """`concatenate` into an existing batch."""
    start = 0
    for unroll in unrolls:
        stop = start + unroll.first.shape[1]
        copy_all(_columns(batch, slice(start, stop)), _columns(unroll, slice(None)))
        start = stop
