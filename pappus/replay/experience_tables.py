"""How an algorithm's experience lies in a table: its columns, the rows of an item, and the batch that comes out.

    stream      observation … action reward discount valid first behaviour … state …     a row for every step
    item        some of these rows (`recording.py` chooses them)
    batch       `Transition` or `Sequence` (`experience.py`)
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import optree

from pappus.config import ReplayConfig
from pappus.experience import Experience, Sequence, Sequences, Transition, Transitions
from pappus.replay.fields import Field, col
from pappus.replay.rate_limiters import sample_to_insert_ratio
from pappus.replay.tables import FIFO, UNIFORM, Table, prioritized
from pappus.replay.trajectories import Trajectory
from pappus.types import Array, ArraySpec, EnvSpec, Nest

TABLE = "replay"
"""What the table of a run is called."""
FLAG, SCALAR = ArraySpec((), "bool"), ArraySpec((), "float32")


class Layout:
    """Which columns a run's table has, and how nests become columns and come back."""

    def __init__(self, env: EnvSpec, behaviour: Mapping[str, ArraySpec], state: Nest, experience: Experience) -> None:
        self.experience, self.frame_stack = experience, env.frame_stack
        self._observation, self._state = env.observation, state if isinstance(experience, Sequences) else ()
        self.observation_columns = _columns("observation", self._observation)
        self.state_columns = _columns("state", self._state)
        self.signature: dict[str, ArraySpec] = {
            **self.observation_columns, "action": env.action.array, "reward": SCALAR, "discount": SCALAR, **behaviour,
        }
        if isinstance(experience, Sequences):
            self.signature |= {"first": FLAG, "valid": FLAG, **self.state_columns}
        elif self.lead:
            self.signature["first"] = FLAG

    @property
    def seen_columns(self) -> tuple[str, ...]:
        """What a transition needs of its last observation as of its first one."""
        return (*self.observation_columns, *(["first"] if self.lead else []))

    @property
    def lead(self) -> int:
        """Earlier frames that the stacks of an item look back at."""
        return self.frame_stack - 1 if isinstance(self.experience, Transitions) else 0

    def table(self, config: ReplayConfig, batch_size: int) -> Table:
        """The table, whose limiter allows a batch more or less than the ratio says."""
        alpha = config.priority_exponent
        band = max(2.0 * batch_size, 2.0 * config.samples_per_insert, config.tolerance * batch_size)
        return Table(
            TABLE, prioritized(alpha) if alpha else UNIFORM, FIFO,
            sample_to_insert_ratio(config.samples_per_insert, config.warm_up, band), config.capacity, self.signature,
            lead=self.lead,
        )

    def trajectory(self) -> Trajectory:
        """How items are sampled."""
        experience = self.experience
        if isinstance(experience, Transitions):
            reward, discount = col("reward") * experience.reward_scale, col("discount") * experience.discount
            fields = {f"now/{name}": self._frames(name)[0] for name in self.seen_columns}
            fields |= {f"next/{name}": self._frames(name)[-1] for name in self.seen_columns}
            fields |= {
                "action": col("action")[0], "reward": reward.discounted_sum(experience.discount)[0],
                "discount": discount.product(),
            }
            return Trajectory(**fields)
        steps = ("action", "reward", "discount", "valid", "first", *self.observation_columns)
        padded = {name: col(name).pad(0, experience.burn_in + experience.length) for name in steps}
        states = {name: col(name)[0] for name in self.state_columns}
        return Trajectory(**padded, **states, real=col("valid").mask())

    def _frames(self, name: str) -> Field:
        return col(name).stack(self.frame_stack) if self.frame_stack > 1 else col(name)

    def step(
        self, observation: Nest, first: Array, action: Array, behaviour: Mapping[str, Array], reward: Array,
        discount: Array, valid: Array, state: Nest,
    ) -> dict[str, Array]:
        """A row for every env."""
        row = dict(zip(self.observation_columns, optree.tree_leaves(observation), strict=True))
        row |= {"action": action, "reward": reward, "discount": discount, **behaviour}
        if "first" in self.signature:
            row["first"] = first
        if isinstance(self.experience, Sequences):
            row["valid"] = valid
            row |= dict(zip(self.state_columns, optree.tree_leaves(state), strict=True))
        return row

    def batch(self, data: Mapping[str, Array]) -> Transition | Sequence:
        """What was sampled, as algorithms take it."""
        if isinstance(self.experience, Transitions):
            return Transition(
                self._seen(data, "now"), data["action"], data["reward"], data["discount"], self._seen(data, "next")
            )
        return self._sequence(data, self.experience)

    def _seen(self, data: Mapping[str, Array], when: str) -> Nest:
        """An observation; of a stack, what is from before the episode is blank, as it was for whoever acted."""
        leaves = [data[f"{when}/{name}"] for name in self.observation_columns]
        if self.lead:
            blank = _before_the_last(data[f"{when}/first"])
            if blank.any():
                for leaf in leaves:
                    leaf[blank] = 0
        return self._nest(self._observation, leaves)

    def _sequence(self, data: Mapping[str, Array], experience: Sequences) -> Sequence:
        """Time-major, with what is learnt from always behind the same number of steps."""
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

        first = turned(data["first"]) & ~outside
        return Sequence(
            self._nest(self._observation, [turned(data[name]) for name in self.observation_columns]), first,
            turned(data["action"]), turned(data["reward"]) * np.float32(experience.reward_scale),
            turned(data["discount"]), turned(valid) & ~outside,
            self._nest(self._state, [data[name] for name in self.state_columns]),
        )

    @staticmethod
    def _nest(spec: Nest, leaves: list[Array]) -> Nest:
        return optree.tree_unflatten(optree.tree_structure(spec), leaves)


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
