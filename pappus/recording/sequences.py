"""Sequences with their initial recurrent state (R2D2): how they are stored, and how a stream of steps becomes items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import optree

from pappus.core import ItemRules
from pappus.experience import SMALLEST_PRIORITY, Sequence, Sequences, SequenceStats
from pappus.recording.transitions import FLAG, TABLE, Layout, Recorder, columns_for, nest_of
from pappus.replay.clients.writer import TrajectoryWriter
from pappus.replay.sampling.fields import Field, Trajectory, col
from pappus.types import ACTION_MASK, Array, EnvSpec, Nest, Timestep


class SequenceLayout(Layout):
    """Stores every row of a sequence, and the recurrent state before each. Frames in the state are not stored again."""

    def __init__(
        self, env: EnvSpec, algorithm: ItemRules, state: Nest, experience: Sequences, stores_state: bool = True,
        origins: bool = False,
    ) -> None:
        """Without `stores_state` sequences begin with a state of zeros, and the burn-in has to do."""
        super().__init__(env, algorithm, origins)
        self.experience, self.steps_per_item = experience, experience.period
        self.history = experience.burn_in + experience.length + experience.period
        self._state = state
        self._rest = state[1] if self.lead else state
        """The state of a network that stacks frames is (frames, the rest): see `networks/modules.py`."""
        self.state_columns = columns_for("state", self._rest) if stores_state else {}
        self.signature |= {"first": FLAG, "valid": FLAG, **self.state_columns}
        names = nest_of(env.observation, list(self.observation_columns))
        self._frame_columns: list[str] = optree.tree_leaves(_without_mask(names)) if self.lead else []
        """A network stacks all observations but the action mask."""

    def recorder(self, writer: TrajectoryWriter, envs: int) -> SequenceRecorder:
        return SequenceRecorder(self, writer, envs)

    def trajectory(self) -> Trajectory:
        """All rows, padded, and the state before the first."""
        length = self.experience.burn_in + self.experience.length
        steps = ("action", "reward", "discount", "valid", "first", *self.observation_columns)
        fields: dict[str, Field] = {name: col(name).pad(0, length) for name in steps}
        fields |= {name: col(name)[0] for name in (*self.state_columns, *self.origin_columns)}
        if self.lead:
            fields |= {f"frames/{name}": self._stacked(name)[0] for name in (*self._frame_columns, "first")}
        return Trajectory(**fields, real=col("valid").mask())

    def step(
        self, seen: Timestep, state: Nest, action: Array, behaviour: Mapping[str, Array], then: Timestep
    ) -> dict[str, Array]:
        row = {**super().step(seen, state, action, behaviour, then), "valid": then.valid}
        if self.state_columns:
            rest = state[1] if self.lead else state
            row |= dict(zip(self.state_columns, optree.tree_leaves(rest), strict=True))
        return row

    def batch(self, data: Mapping[str, Array]) -> Sequence:
        """Sampled fields as a time-major `Sequence`; the part that is learned from always starts at `burn_in`."""
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
            nest_of(self._observation, [self._leaf(name, turned(data[name])) for name in self.observation_columns]),
            turned(data["first"]) & ~outside, turned(data["action"]),
            turned(data["reward"]) * np.float32(experience.reward_scale), turned(data["discount"]),
            turned(valid) & ~outside, self._states(data),
        )

    def _states(self, data: Mapping[str, Array]) -> Nest:
        rest = nest_of(self._rest, [data[name] for name in self.state_columns] or self._zeros(len(data["real"])))
        if not self.lead:
            return rest
        names = self._frame_columns
        stacks = self._blanked([data[f"frames/{name}"] for name in names], data["frames/first"])
        frames = [self._leaf(name, stack[:, :-1]) for name, stack in zip(names, stacks, strict=True)]
        return nest_of(self._state[0], frames), rest

    def _zeros(self, items: int) -> list[Array]:
        return [np.zeros((items, *leaf.shape), leaf.dtype) for leaf in optree.tree_leaves(self._rest)]


def _seen_before(rows: Array, experience: Sequences) -> Array:
    """Burn-in rows of items that begin with their episode, by their number of rows.

    The first item of an episode has up to `length` rows, and every later one ends after the one before it.
    """
    earlier: Array = np.maximum(0, -((experience.length - rows) // experience.period))
    return earlier * experience.period


def _without_mask(observation: Nest) -> Any:
    if not isinstance(observation, dict):
        return observation
    return {key: leaf for key, leaf in observation.items() if key != ACTION_MASK}


class SequenceRecorder(Recorder):
    """Creates items of up to burn_in + length rows of one episode, a new one every `period` rows.

    The last item of an episode may be shorter. The transition of an item's last row can be learned from only if it
    terminated, since its next observation is not in the item.
    """

    def __init__(self, layout: SequenceLayout, writer: TrajectoryWriter, envs: int) -> None:
        experience = self._experience = layout.experience
        super().__init__(layout, writer, envs, experience.length + experience.period, experience.reward_scale, 1.0)
        self._episode = np.zeros(envs, np.int64)
        """The first row of each env's episode."""
        self._covered = np.zeros(envs, np.int64)
        """Rows before this one are part of an item."""
        self._valid = np.zeros((self._rows, envs), bool)

    def record(
        self, seen: Timestep, state: Nest, action: Array, behaviour: Mapping[str, Array], then: Timestep
    ) -> int:
        row, experience = self._writer.steps, self._experience
        self._writer.append(self._layout.step(seen, state, action, behaviour, then), seen.first)
        self._remember(row % self._rows, behaviour, then)
        self._valid[row % self._rows] = then.valid
        for of in (self._begin, self._episode, self._covered):
            of[seen.first] = row
        over = ~then.valid | (then.discount == 0)
        ended = over & (self._covered <= row) & (then.valid | (self._begin < row))
        envs = self._all[ended | (row - self._begin + 1 == experience.length)]
        if len(envs):
            self._create(envs, row)
            new = row + 1 - np.maximum(self._covered[envs], self._begin[envs])
            self.covered += int(new.sum()) - int(np.count_nonzero(~then.valid[envs]))
            self._begin[envs] += experience.period
            self._covered[envs] = row + 1
        if over.any():
            for of in (self._begin, self._covered, self._episode):
                of[over] = row + 1
        return len(envs)

    def save(self) -> dict[str, Any]:
        own = {"episode": self._episode.copy(), "covered_to": self._covered.copy(), "valid": self._valid.copy()}
        return {**super().save(), **own}

    def load(self, saved: dict[str, Any]) -> None:
        super().load(saved)
        self._episode[:], self._covered[:], self._valid[:] = saved["episode"], saved["covered_to"], saved["valid"]

    def _create(self, envs: Array, row: int) -> None:
        starts = np.maximum(self._begin[envs] - self._experience.burn_in, self._episode[envs])
        priorities = self._layout.initial_priority(self._stats(envs, row)) + SMALLEST_PRIORITY
        names = self._layout.signature
        self._writer.create_items(
            TABLE, priorities, envs, dict.fromkeys(names, starts), dict.fromkeys(names, row - starts + 1)
        )

    def _stats(self, envs: Array, row: int) -> SequenceStats:
        """What was recorded of the items of `envs` that end with `row`."""
        rows = self._begin[envs] + np.arange(self._experience.length)[:, None]
        place = rows % self._rows
        discount = self._discount[place, envs]
        valid = (rows <= row) & self._valid[place, envs] & ((rows < row) | (discount == 0))
        behaviour = {name: of[place, envs] for name, of in self._behaviour.items()}
        return SequenceStats(behaviour, self._reward[place, envs], discount, valid)
