"""How experience is stored in a replay table, and its simplest kind of item, the n-step transition.

    stream      observation … action reward discount valid first behaviour … state …     one row per step and env
    item        some of these rows, chosen by a recorder (for sequences see `sequences.py`)
    batch       `Transition` or `Sequence` (`experience.py`)

Each frame is stored once. Frame stacks, and the frames in a recurrent state, are rebuilt when items are sampled; frames
from before the episode are zeros, as they were for the actor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import optree

from pappus.config import ReplayConfig
from pappus.core import ItemRules
from pappus.experience import SMALLEST_PRIORITY, Sequence, Transition, Transitions, TransitionStats
from pappus.replay.clients.writer import TrajectoryWriter
from pappus.replay.sampling.fields import Field, Trajectory, col
from pappus.replay.sampling.kept_rows import RowNumbers
from pappus.replay.sampling.n_step import NStepTrajectory
from pappus.replay.tables.rate_limiters import sample_to_insert_ratio
from pappus.replay.tables.table import Selection, Table
from pappus.types import ORIGIN, Array, ArraySpec, EnvSpec, Nest, Timestep

TABLE = "replay"
"""Name of a run's table."""
FLAG, SCALAR, WHOLE = ArraySpec((), "bool"), ArraySpec((), "float32"), ArraySpec((), "int64")
SEND_ITEMS = 50
"""Items that are inserted together (as in the Ape-X paper), since most of the cost is per call."""
HOLD_STEPS = 64
"""Items are inserted after this many steps even if there are fewer."""
LARGE_BYTES = 256
"""Observations from this size on are large: to find the number of a row takes as long as to copy some 140 bytes, and
values must be copied to the device as well."""
KEPT_DTYPES = ("uint8", "float32")
"""Pictures and vectors. Numbers of rows, which are int64, must be told from values by their dtype."""


class Recorder(ABC):
    """Turns a stream of steps into items, and remembers the last `rows` rows for their initial priorities.

    A row is written after its transition. An item is created as soon as its last row is written.
    """

    held = 0
    """Items that were created and not yet handed to the writer; each holds one step that no other holds first."""
    covered = 0
    """Valid steps so far that are part of an item."""

    def __init__(
        self, layout: Layout, writer: TrajectoryWriter, envs: int, rows: int, reward_scale: float, discount: float
    ) -> None:
        self._layout, self._writer, self._rows = layout, writer, rows
        self._reward_scale, self._discount_factor = reward_scale, discount
        self._all = np.arange(envs)
        self._begin = np.zeros(envs, np.int64)
        """The first row of each env's next item, after its burn-in."""
        self._reward, self._discount = (np.zeros((rows, envs), np.float32) for _ in range(2))
        self._behaviour = {
            name: np.zeros((rows, envs, *spec.shape), spec.dtype) for name, spec in layout.behaviour.items()
        }

    @abstractmethod
    def record(
        self, seen: Timestep, state: Nest, action: Array, behaviour: Mapping[str, Array], then: Timestep
    ) -> int:
        """Record one step of every env: `seen` led to `action`, and that to `then`. Returns the number of new items."""

    def insert_held(self) -> None:
        """Insert items that were held back to form a group."""
        return

    def save(self) -> dict[str, Any]:
        """The state of unfinished items."""
        return {
            "covered": self.covered, "begin": self._begin.copy(), "reward": self._reward.copy(),
            "discount": self._discount.copy(),
            "behaviour": {name: rows.copy() for name, rows in self._behaviour.items()},
        }

    def load(self, saved: dict[str, Any]) -> None:
        """Continue from what `save` returned."""
        self.covered, self._begin[:] = saved["covered"], saved["begin"]
        self._reward[:], self._discount[:] = saved["reward"], saved["discount"]
        for name, rows in self._behaviour.items():
            rows[:] = saved["behaviour"][name]

    def _remember(self, place: int, behaviour: Mapping[str, Array], then: Timestep) -> None:
        self._reward[place] = then.reward * self._reward_scale
        self._discount[place] = then.discount * self._discount_factor
        for name, rows in self._behaviour.items():
            rows[place] = behaviour[name]


class Layout(ABC):
    """The columns of a run's table, and the conversion between nests and columns."""

    steps_per_item: int
    """New rows per item."""
    history: int
    """Rows that the recorder may still refer to."""

    def __init__(self, env: EnvSpec, algorithm: ItemRules, origins: bool = False) -> None:
        self.initial_priority, self.behaviour = algorithm.initial_priority, dict(algorithm.behaviour)
        self.origin_columns = (ORIGIN,) if origins else ()
        """Columns that say whose envs a row is of."""
        self.lead = env.frame_stack - 1
        """Earlier frames that the first stack of an item needs."""
        self._observation = env.observation
        self.observation_columns = columns_for("observation", env.observation)
        self.signature: dict[str, ArraySpec] = {
            **self.observation_columns, "action": env.action.array, "reward": SCALAR, "discount": SCALAR,
            **self.behaviour, **dict.fromkeys(self.origin_columns, WHOLE),
        }
        if self.lead:
            self.signature["first"] = FLAG

    @abstractmethod
    def recorder(self, writer: TrajectoryWriter, envs: int) -> Recorder: ...

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
        row |= {"action": action, "reward": then.reward, "discount": then.discount}
        row |= {name: behaviour[name] for name in (*self.behaviour, *self.origin_columns)}
        if "first" in self.signature:
            row["first"] = seen.first
        return row

    def _stacked(self, name: str) -> Field:
        return col(name).stack(self.lead + 1) if self.lead else col(name)

    @property
    def large(self) -> dict[str, ArraySpec]:
        """Columns worth caching on the learner's device."""
        columns = self.observation_columns.items()
        return {name: spec for name, spec in columns if spec.dtype in KEPT_DTYPES and spec.nbytes >= LARGE_BYTES}

    def _leaf(self, name: str, array: Array) -> Array | RowNumbers:
        """What stands in a batch for a column: its values, or the numbers of its rows, where the reader keeps them."""
        spec = self.signature[name]
        return array if array.dtype == spec.dtype else RowNumbers(name, array, spec.nbytes)

    def _blanked(self, leaves: list[Array], first: Array | None) -> list[Array]:
        """Stacks `[B, k, …]` with zeros for frames from before an episode that begins within the stack."""
        if first is not None and first[:, 1:].any():
            blank = np.zeros_like(first)
            blank[:, :-1] = np.logical_or.accumulate(first[:, :0:-1], axis=1)[:, ::-1]  # a set flag comes after it
            for leaf in leaves:
                leaf[blank] = 0
        return leaves


def columns_for(name: str, nest: Nest) -> dict[str, ArraySpec]:
    """One column per leaf, called `name` if there is a single leaf and `name/0`, `name/1` … otherwise."""
    leaves: list[ArraySpec] = optree.tree_leaves(nest)
    if len(leaves) == 1:
        return {name: leaves[0]}
    return {f"{name}/{i}": leaf for i, leaf in enumerate(leaves)}


def nest_of(spec: Nest, leaves: list[Any]) -> Nest:
    return optree.tree_unflatten(optree.tree_structure(spec), leaves)


class TransitionLayout(Layout):
    """Items with their first and last observation, and discounted sums of what lies between."""

    steps_per_item = 1

    def __init__(self, env: EnvSpec, algorithm: ItemRules, experience: Transitions, origins: bool = False) -> None:
        super().__init__(env, algorithm, origins)
        self.experience = experience
        self.history = experience.n_step + 1 + HOLD_STEPS
        self.seen_columns = (*self.observation_columns, *(["first"] if self.lead else []))
        """Columns that an item needs of its first and of its last row, as it needs `action` for the next action."""
        self.whole_columns = (*self.seen_columns, *(["action"] if experience.next_action else []))
        assert not experience.next_action or env.action.array.dtype == "float32", "NaN stands for no next action"

    def recorder(self, writer: TrajectoryWriter, envs: int) -> TransitionRecorder:
        return TransitionRecorder(self, writer, envs)

    def trajectory(self) -> Trajectory:
        steps = self.experience
        return NStepTrajectory(
            self.seen_columns, self.lead + 1, steps.discount, steps.reward_scale, steps.next_action,
            self.origin_columns,
        )

    def step(
        self, seen: Timestep, state: Nest, action: Array, behaviour: Mapping[str, Array], then: Timestep
    ) -> dict[str, Array]:
        if self.experience.next_action and not then.valid.all():  # nothing is done at the end of an episode
            action = np.where(then.valid.reshape(-1, *[1] * (action.ndim - 1)), action, np.float32(np.nan))
        return super().step(seen, state, action, behaviour, then)

    def batch(self, data: Mapping[str, Array]) -> Transition:
        return Transition(
            self._seen(data, "now"), data["action"], data["reward"], data["discount"], self._seen(data, "next"),
            self._next_action(data) if self.experience.next_action else (),
        )

    def _next_action(self, data: Mapping[str, Array]) -> Array:
        """After a termination there is none: the last row of the item is the last step itself."""
        action = data["next_action"]
        action[data["discount"] == 0] = np.nan
        return action

    def _seen(self, data: Mapping[str, Array], when: str) -> Nest:
        leaves = [data[f"{when}/{name}"] for name in self.observation_columns]
        leaves = self._blanked(leaves, data[f"{when}/first"] if self.lead else None)
        return nest_of(self._observation, list(map(self._leaf, self.observation_columns, leaves)))


class Items(NamedTuple):
    """Items that end with the newest row: env, first row and number of transitions, `[n]` each."""

    envs: Array
    starts: Array
    counts: Array


class TransitionRecorder(Recorder):
    """Creates one item from every valid step on: n steps long, or shorter if the episode ends first.

    An invalid row holds the final observation of a truncated episode: open transitions bootstrap from it. After a
    termination nothing is bootstrapped, so all open transitions end at once.
    """

    def __init__(self, layout: TransitionLayout, writer: TrajectoryWriter, envs: int) -> None:
        steps = layout.experience
        super().__init__(layout, writer, envs, steps.n_step + 1, steps.reward_scale, steps.discount)
        self._n_step, self._whole_columns = steps.n_step, layout.whole_columns
        self._steps = np.arange(steps.n_step)[:, None]
        self._held: list[tuple[Items, int, Array]] = []
        """Items, the row that they end with, and their priorities."""

    def record(
        self, seen: Timestep, state: Nest, action: Array, behaviour: Mapping[str, Array], then: Timestep
    ) -> int:
        row = self._writer.steps
        if self._held and (seen.first.any() or row - self._held[0][1] >= HOLD_STEPS):
            self._insert()  # a writer refuses items of an episode that has ended
        self._writer.append(self._layout.step(seen, state, action, behaviour, then), seen.first)
        self._remember(row % self._rows, behaviour, then)
        self._begin[seen.first] = row
        items = self._finished(row, then)
        if len(items.envs):
            priorities = self._layout.initial_priority(self._stats(items, behaviour)) + SMALLEST_PRIORITY
            self._held.append((items, row, priorities))
            self.held += len(items.envs)
            self.covered += len(items.envs)
            if self.held >= SEND_ITEMS:
                self._insert()
        return len(items.envs)

    def _finished(self, row: int, then: Timestep) -> Items:
        """Items that end with this row: those of n steps, and all open ones where the episode ends."""
        n = self._n_step
        envs = self._all[self._begin <= row - n]
        whole = Items(envs, np.full(len(envs), row - n), np.full(len(envs), n))
        np.maximum(self._begin, row - n + 1, out=self._begin)
        terminated = then.valid & (then.discount == 0)
        over = terminated | ~then.valid
        if not over.any():
            return whole
        parts = [whole]
        for back in range(n - 1, -1, -1):
            envs = self._all[over & (self._begin <= row - back) & (terminated | (back > 0))]
            parts.append(Items(envs, np.full(len(envs), row - back), back + terminated[envs]))
        self._begin[over] = row + 1
        return Items(*(np.concatenate(fields) for fields in zip(*parts, strict=True)))

    def _stats(self, items: Items, newest: Mapping[str, Array]) -> TransitionStats:
        """What was recorded of items; they bootstrap from the newest row."""
        places = (items.starts + self._steps) % self._rows
        reward, discount = self._reward[places, items.envs], self._discount[places, items.envs]
        beyond = self._steps >= items.counts
        reward[beyond], discount[beyond] = 0.0, 1.0
        weights = np.cumprod(discount, axis=0, dtype=np.float64)
        totals = np.cumsum(np.concatenate([reward[:1], weights[:-1] * reward[1:]]), axis=0)
        behaviour = {name: rows[places[0], items.envs] for name, rows in self._behaviour.items()}
        last = {name: newest[name][items.envs] for name in behaviour}
        return TransitionStats(behaviour, last, totals[-1], weights[-1])

    def save(self) -> dict[str, Any]:
        held = [[*items, row, priorities] for items, row, priorities in self._held]
        return {**super().save(), "held": held}

    def load(self, saved: dict[str, Any]) -> None:
        super().load(saved)
        self._held = [(Items(*items), row, priorities) for *items, row, priorities in saved["held"]]
        self.held = sum(len(items.envs) for items, _, _ in self._held)

    def insert_held(self) -> None:
        if self._held:
            self._insert()

    def _insert(self) -> None:
        items = Items(*(np.concatenate(fields) for fields in zip(*(one[0] for one in self._held), strict=True)))
        rows = np.concatenate([row - items.starts + 1 for items, row, _ in self._held])
        priorities = np.concatenate([one[2] for one in self._held])
        self._held, self.held = [], 0
        names = self._layout.signature
        lengths = dict.fromkeys(names, np.ones(len(rows), np.int64))
        lengths |= dict.fromkeys(self._whole_columns, rows)
        lengths |= dict.fromkeys(("reward", "discount"), items.counts)
        self._writer.create_items(TABLE, priorities, items.envs, dict.fromkeys(names, items.starts), lengths)
