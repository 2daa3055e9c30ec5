"""How the experience of an algorithm is stored in a table: columns, items, and the batches that come out.

    stream      observation … action reward discount valid first behaviour … state …     one row per step and env
    item        some of these rows, chosen by a recorder (`transitions.py`, `sequences.py`)
    batch       `Transition` or `Sequence` (`experience.py`)

Each frame is stored once. Frame stacks, and the frames in a recurrent state, are rebuilt when items are sampled; frames
from before the episode are zeros, as they were for the actor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import optree

from pappus.config import ReplayConfig
from pappus.core import ReplayAlgorithm
from pappus.experience import Experience, Sequence, Transition
from pappus.replay.clients.writer import TrajectoryWriter
from pappus.replay.sampling.fields import Field, Trajectory, col
from pappus.replay.tables.rate_limiters import sample_to_insert_ratio
from pappus.replay.tables.table import Selection, Table
from pappus.types import Array, ArraySpec, EnvSpec, Nest, Timestep

TABLE = "replay"
"""Name of a run's table."""
FLAG, SCALAR = ArraySpec((), "bool"), ArraySpec((), "float32")


class Recorder(Protocol):
    """Turns a stream of steps into items. Called once per step with one row for every env.

    A row is written after its transition. An item is created as soon as its last row is written.
    """

    @property
    def held(self) -> int:
        """Items that were created and not yet handed to the writer."""
        ...

    def record(
        self, seen: Timestep, state: Nest, action: Array, behaviour: Mapping[str, Array], then: Timestep
    ) -> int:
        """Record one step of every env: `seen` led to `action`, and that to `then`. Returns the number of new items."""
        ...


class Layout(ABC):
    """The columns of a run's table, and the conversion between nests and columns."""

    def __init__(self, env: EnvSpec, algorithm: ReplayAlgorithm) -> None:
        self.initial_priority = algorithm.initial_priority
        self.behaviour = dict(algorithm.behaviour)
        self.frame_stack = env.frame_stack
        self._observation = env.observation
        self.observation_columns = columns_for("observation", env.observation)
        self.signature: dict[str, ArraySpec] = {
            **self.observation_columns, "action": env.action.array, "reward": SCALAR, "discount": SCALAR,
            **self.behaviour,
        }
        if self.lead:
            self.signature["first"] = FLAG

    @property
    def lead(self) -> int:
        """Earlier frames that the first stack of an item needs."""
        return self.frame_stack - 1

    @property
    @abstractmethod
    def experience(self) -> Experience:
        """The kind of items."""

    @property
    @abstractmethod
    def steps_per_item(self) -> int:
        """New rows per item."""

    @property
    @abstractmethod
    def history(self) -> int:
        """Rows that the recorder may still refer to."""

    @abstractmethod
    def recorder(self, writer: TrajectoryWriter, envs: int) -> Recorder:
        """A recorder for `envs` envs."""

    @abstractmethod
    def trajectory(self) -> Trajectory:
        """The fields that are sampled."""

    @abstractmethod
    def batch(self, data: Mapping[str, Array]) -> Transition | Sequence:
        """Sampled fields as the batch that algorithms expect."""

    def table(self, config: ReplayConfig, batch_size: int) -> Table:
        """The table. Its rate limiter tolerates a few batches above and below the ratio."""
        sampler, remover = (Selection(name, config.priority_exponent) for name in (config.sampler, config.remover))
        band = max(2.0 * batch_size, 2.0 * config.samples_per_insert, config.tolerance * batch_size)
        return Table(
            TABLE, sampler, remover, sample_to_insert_ratio(config.samples_per_insert, config.warm_up, band),
            config.capacity, self.signature, lead=self.lead, steps_per_item=self.steps_per_item,
        )

    def step(
        self, seen: Timestep, state: Nest, action: Array, behaviour: Mapping[str, Array], then: Timestep
    ) -> dict[str, Array]:
        """One row for every env."""
        row = dict(zip(self.observation_columns, optree.tree_leaves(seen.observation), strict=True))
        row |= {"action": action, "reward": then.reward, "discount": then.discount, **behaviour}
        if "first" in self.signature:
            row["first"] = seen.first
        return row

    def behaviour_rows(self, rows: int, envs: int) -> dict[str, Array]:
        """A ring buffer `[rows, envs, …]` for each recorded behaviour."""
        return {name: np.zeros((rows, envs, *spec.shape), spec.dtype) for name, spec in self.behaviour.items()}

    def _stacked(self, name: str) -> Field:
        return col(name).stack(self.frame_stack) if self.lead else col(name)

    def _blanked(self, leaves: list[Array], first: Array | None) -> list[Array]:
        """Stacks `[B, k, …]` with zeros for frames from before an episode that begins within the stack."""
        blank = None if first is None else _before_the_last(first)
        if blank is not None and blank.any():
            for leaf in leaves:
                leaf[blank] = 0
        return leaves


def _before_the_last(flags: Array) -> Array:
    """`[B, k]`: True at positions that have a set flag after them."""
    before = np.zeros_like(flags)
    before[:, :-1] = np.logical_or.accumulate(flags[:, :0:-1], axis=1)[:, ::-1]
    return before


def columns_for(name: str, nest: Nest) -> dict[str, ArraySpec]:
    """One column per leaf, called `name` if there is a single leaf and `name/0`, `name/1` … otherwise."""
    leaves: list[ArraySpec] = optree.tree_leaves(nest)
    if len(leaves) == 1:
        return {name: leaves[0]}
    return {f"{name}/{i}": leaf for i, leaf in enumerate(leaves)}


def nest_of(spec: Nest, leaves: list[Any]) -> Nest:
    """Leaves in the structure of `spec`."""
    return optree.tree_unflatten(optree.tree_structure(spec), leaves)
