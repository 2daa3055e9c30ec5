"""Writers turn the stream of a vector env into items."""

from __future__ import annotations

import optree

from pappus.types import Array, Nest, Timestep, Unroll, leaves_of


class UnrollWriter:
    """Writes a stream, step by step, into slots of T steps each.

    Contract: `begin` writes o_0 and the state before it; T calls of `append` fill the slot, after which `full` is
    True. The next unroll begins with the timestep that ended the last one, so unrolls overlap by one observation
    and every transition is written exactly once.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._time = length
        self._observation: list[Array] = []
        self._behaviour: dict[str, Array] = {}
        self._slot: Unroll | None = None

    @property
    def full(self) -> bool:
        """Whether the slot holds T steps (or none was begun)."""
        return self._time == self._length

    @property
    def time(self) -> int:
        """Steps written into the slot so far."""
        return self._time

    def begin(self, slot: Unroll, timestep: Timestep, state: Nest, version: int) -> None:
        """Start an unroll at `timestep`, acted by weights of `version` from recurrent `state` on."""
        self._open(slot, 0)
        slot.version[:] = version
        optree.tree_map_(lambda into, leaf: into.__setitem__(..., leaf), slot.state, state)
        self._write_observation(0, timestep)

    def resume(self, slot: Unroll, time: int) -> None:
        """Go on in a slot that holds `time` steps already."""
        self._open(slot, time)

    def append(self, action: Array, behaviour: dict[str, Array], timestep: Timestep) -> None:
        """Write the transition that `action` made, which ended in `timestep`."""
        slot, time = self._slot, self._time
        assert slot is not None and time < self._length
        slot.action[time] = action
        slot.reward[time] = timestep.reward
        slot.discount[time] = timestep.discount
        slot.valid[time] = timestep.valid
        for key, into in self._behaviour.items():
            into[time] = behaviour[key]
        self._time = time + 1
        self._write_observation(time + 1, timestep)

    def _open(self, slot: Unroll, time: int) -> None:
        self._slot, self._time = slot, time
        self._observation = optree.tree_leaves(slot.observation)
        self._behaviour = slot.behaviour

    def _write_observation(self, time: int, timestep: Timestep) -> None:
        assert self._slot is not None
        self._slot.first[time] = timestep.first
        for into, leaf in zip(self._observation, leaves_of(timestep.observation), strict=True):
            into[time] = leaf
