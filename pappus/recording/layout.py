"""From the stream of an actor's envs to items, with priorities from the values that the policy said when it acted.

Both recorders are called once a step with rows of all envs. A row is written after its transition happened; an item is
made as soon as its last row is there. `begin` says from which row on an env has steps that no item has begun with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import optree

from pappus.config import ReplayConfig
from pappus.experience import Experience, Sequence, Transition
from pappus.replay.sampling.fields import Field, Trajectory, col
from pappus.replay.tables.rate_limiters import sample_to_insert_ratio
from pappus.replay.tables.table import FIFO, UNIFORM, Table, prioritized
from pappus.types import Array, ArraySpec, EnvSpec, Nest, Timestep

TABLE = "replay"
"""What the table of a run is called."""

FLAG, SCALAR = ArraySpec((), "bool"), ArraySpec((), "float32")


class Layout:
    """Which columns a run's table has, and how nests become columns and come back."""

    experience: Experience

    def __init__(self, env: EnvSpec, behaviour: Mapping[str, ArraySpec]) -> None:
        self.frame_stack = env.frame_stack
        self._observation = env.observation
        self.observation_columns = _columns("observation", env.observation)
        self.signature: dict[str, ArraySpec] = {
            **self.observation_columns, "action": env.action.array, "reward": SCALAR, "discount": SCALAR, **behaviour,
        }
        if self.lead:
            self.signature["first"] = FLAG

    @property
    def lead(self) -> int:
        """Earlier frames that the stacks of an item look back at."""
        return self.frame_stack - 1

    @property
    def steps_per_item(self) -> int:
        """New rows that an item needs."""
        return 1

    def table(self, config: ReplayConfig, batch_size: int) -> Table:
        """The table, whose limiter allows some batches more or less than the ratio says."""
        alpha = config.priority_exponent
        band = max(2.0 * batch_size, 2.0 * config.samples_per_insert, config.tolerance * batch_size)
        return Table(
            TABLE, prioritized(alpha) if alpha else UNIFORM, FIFO,
            sample_to_insert_ratio(config.samples_per_insert, config.warm_up, band), config.capacity, self.signature,
            lead=self.lead, steps_per_item=self.steps_per_item,
        )

    def trajectory(self) -> Trajectory:
        """How items are sampled."""
        raise NotImplementedError

    def batch(self, data: Mapping[str, Array]) -> Transition | Sequence:
        """What was sampled, as algorithms take it."""
        raise NotImplementedError

    def step(
        self, seen: Timestep, state: Nest, action: Array, behaviour: Mapping[str, Array], then: Timestep
    ) -> dict[str, Array]:
        """A row for every env."""
        row = dict(zip(self.observation_columns, optree.tree_leaves(seen.observation), strict=True))
        row |= {"action": action, "reward": then.reward, "discount": then.discount, **behaviour}
        if "first" in self.signature:
            row["first"] = seen.first
        return row

    def _stacked(self, name: str) -> Field:
        return col(name).stack(self.frame_stack) if self.lead else col(name)

    def _blanked(self, leaves: list[Array], first: Array | None) -> list[Array]:
        """Stacks `[B, k, …]`, without what is from before an episode that begins within them."""
        blank = None if first is None else _before_the_last(first)
        if blank is not None and blank.any():
            for leaf in leaves:
                leaf[blank] = 0
        return leaves


def _before_the_last(flags: Array) -> Array:
    """`[B, k]`: which places have a flag that is set behind them."""
    before = np.zeros_like(flags)
    before[:, :-1] = np.logical_or.accumulate(flags[:, :0:-1], axis=1)[:, ::-1]
    return before


def _columns(name: str, nest: Nest) -> dict[str, ArraySpec]:
    """A column for every leaf: under the name itself if there is one."""
    leaves: list[ArraySpec] = optree.tree_leaves(nest)
    if len(leaves) == 1:
        return {name: leaves[0]}
    return {f"{name}/{i}": leaf for i, leaf in enumerate(leaves)}


def _nest(spec: Nest, leaves: list[Any]) -> Nest:
    return optree.tree_unflatten(optree.tree_structure(spec), leaves)


class Recorder(Protocol):
    """Writes rows and makes items of them."""

    @property
    def held(self) -> int:
        """Items that were made and are not with the writer yet."""
        ...

    def record(
        self, seen: Timestep, state: Nest, action: Array, behaviour: Mapping[str, Array], then: Timestep
    ) -> int:
        """One step of every env: `seen` led to `action`, and that to `then`; how many items were made."""
        ...
