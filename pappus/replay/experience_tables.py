"""How an algorithm's experience lies in a table: its columns, the rows of an item, and the batch that comes out.

    stream      observation … action reward discount valid first behaviour … state …     a row for every step
    item        some of these rows (`recording.py` chooses them)
    batch       `Transition` or `Sequence` (`experience.py`)

Frames are stored once: stacks, and the frames that a network remembers, are put together when items are sampled. What
is from before an episode is blank then, as it was for whoever acted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import optree

from pappus.config import ReplayConfig
from pappus.experience import Experience, Sequence, Sequences, Transition, Transitions
from pappus.replay.fields import Field, col
from pappus.replay.rate_limiters import sample_to_insert_ratio
from pappus.replay.tables import FIFO, UNIFORM, Table, prioritized
from pappus.replay.trajectories import Trajectory
from pappus.types import ACTION_MASK, Array, ArraySpec, EnvSpec, Nest, Timestep

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


class TransitionLayout(Layout):
    """n-step transitions: the first and the last observation of an item, and sums over what lies between."""

    def __init__(self, env: EnvSpec, behaviour: Mapping[str, ArraySpec], experience: Transitions) -> None:
        super().__init__(env, behaviour)
        self.experience: Transitions = experience

    @property
    def seen_columns(self) -> tuple[str, ...]:
        """What an item needs of its last row as of its first one."""
        return (*self.observation_columns, *(["first"] if self.lead else []))

    def trajectory(self) -> Trajectory:
        """Observations now and later, the action, and the sums."""
        experience = self.experience
        reward, discount = col("reward"), col("discount") * experience.discount
        if experience.reward_scale != 1.0:
            reward = reward * experience.reward_scale
        return Trajectory(
            **{f"now/{name}": self._stacked(name)[0] for name in self.seen_columns},
            **{f"next/{name}": self._stacked(name)[-1] for name in self.seen_columns},
            action=col("action")[0], reward=reward.discounted_sum(experience.discount)[0], discount=discount.product(),
        )

    def batch(self, data: Mapping[str, Array]) -> Transition:
        """As algorithms take them."""
        return Transition(
            self._seen(data, "now"), data["action"], data["reward"], data["discount"], self._seen(data, "next")
        )

    def _seen(self, data: Mapping[str, Array], when: str) -> Nest:
        leaves = [data[f"{when}/{name}"] for name in self.observation_columns]
        return _nest(self._observation, self._blanked(leaves, data[f"{when}/first"] if self.lead else None))


class SequenceLayout(Layout):
    """Sequences with the recurrent state before them. The frames that the state holds are not stored again."""

    def __init__(
        self, env: EnvSpec, behaviour: Mapping[str, ArraySpec], state: Nest, experience: Sequences
    ) -> None:
        super().__init__(env, behaviour)
        self.experience: Sequences = experience
        self._state = state
        self._stored_state = state[1] if self.lead else state
        """A network that stacks frames has them before what else it remembers (`networks/body.py`)."""
        self.state_columns = _columns("state", self._stored_state)
        self.signature |= {"first": FLAG, "valid": FLAG, **self.state_columns}
        names = _nest(env.observation, list(self.observation_columns))
        self._frame_columns: list[str] = optree.tree_leaves(_without_mask(names)) if self.lead else []
        """A network stacks all that it sees, and a mask it does not."""

    @property
    def steps_per_item(self) -> int:
        """New rows that an item needs."""
        return self.experience.period

    def trajectory(self) -> Trajectory:
        """All rows, padded, and the state before the first."""
        length = self.experience.burn_in + self.experience.length
        steps = ("action", "reward", "discount", "valid", "first", *self.observation_columns)
        fields: dict[str, Field] = {name: col(name).pad(0, length) for name in steps}
        fields |= {name: col(name)[0] for name in self.state_columns}
        if self.lead:
            fields |= {f"frames/{name}": self._stacked(name)[0] for name in (*self._frame_columns, "first")}
        return Trajectory(**fields, real=col("valid").mask())

    def step(
        self, seen: Timestep, state: Nest, action: Array, behaviour: Mapping[str, Array], then: Timestep
    ) -> dict[str, Array]:
        """A row for every env."""
        stored = state[1] if self.lead else state
        return {
            **super().step(seen, state, action, behaviour, then), "valid": then.valid,
            **dict(zip(self.state_columns, optree.tree_leaves(stored), strict=True)),
        }

    def batch(self, data: Mapping[str, Array]) -> Sequence:
        """Time-major, with what is learnt from always behind the same number of steps."""
        experience = self.experience
        length = experience.burn_in + experience.length
        real = np.zeros((len(data["real"]), length), bool)
        real[:, : data["real"].shape[1]] = data["real"]
        followed = np.zeros_like(real)
        followed[:, :-1] = real[:, 1:]
        valid = real & data["valid"] & (followed | (data["discount"] == 0))
        shift = np.where(data["first"][:, 0], experience.burn_in - _seen_before(real.sum(1), experience), 0)
        source = np.arange(length)[:, None] - shift
        rows, outside = np.maximum(source, 0), source < 0
        items = np.arange(len(real))

        def turned(array: Array) -> Array:
            return array[items, rows]

        return Sequence(
            _nest(self._observation, [turned(data[name]) for name in self.observation_columns]),
            turned(data["first"]) & ~outside, turned(data["action"]),
            turned(data["reward"]) * np.float32(experience.reward_scale), turned(data["discount"]),
            turned(valid) & ~outside, self._states(data),
        )

    def _states(self, data: Mapping[str, Array]) -> Nest:
        stored = _nest(self._stored_state, [data[name] for name in self.state_columns])
        if not self.lead:
            return stored
        stacks = self._blanked([data[f"frames/{name}"] for name in self._frame_columns], data["frames/first"])
        return _nest(self._state[0], [stack[:, :-1] for stack in stacks]), stored


def layout_for(
    env: EnvSpec, behaviour: Mapping[str, ArraySpec], state: Nest, experience: Experience
) -> TransitionLayout | SequenceLayout:
    """The layout of an algorithm's kind of items."""
    if isinstance(experience, Transitions):
        return TransitionLayout(env, behaviour, experience)
    return SequenceLayout(env, behaviour, state, experience)


def _before_the_last(flags: Array) -> Array:
    """`[B, k]`: which places have a flag that is set behind them."""
    before = np.zeros_like(flags)
    before[:, :-1] = np.logical_or.accumulate(flags[:, :0:-1], axis=1)[:, ::-1]
    return before


def _seen_before(rows: Array, experience: Sequences) -> Array:
    """Rows of burn-in of items that begin with their episode and have so many rows.

    The first of them has up to `length` rows, and every later one ends behind the one before it.
    """
    earlier: Array = np.maximum(0, -((experience.length - rows) // experience.period))
    return earlier * experience.period


def _columns(name: str, nest: Nest) -> dict[str, ArraySpec]:
    """A column for every leaf: under the name itself if there is one."""
    leaves: list[ArraySpec] = optree.tree_leaves(nest)
    if len(leaves) == 1:
        return {name: leaves[0]}
    return {f"{name}/{i}": leaf for i, leaf in enumerate(leaves)}


def _without_mask(observation: Nest) -> Any:
    if not isinstance(observation, dict):
        return observation
    return {key: leaf for key, leaf in observation.items() if key != ACTION_MASK}


def _nest(spec: Nest, leaves: list[Any]) -> Nest:
    return optree.tree_unflatten(optree.tree_structure(spec), leaves)
