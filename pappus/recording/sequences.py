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
import torch

from pappus.experience import SMALLEST_PRIORITY, Sequence, Sequences
from pappus.ops.q_learning import mixed_priority
from pappus.ops.rescaling import rescale, unrescale
from pappus.ops.returns import n_step_returns
from pappus.recording.layout import FLAG, TABLE, Layout, _columns, _nest
from pappus.replay.clients.writer import TrajectoryWriter
from pappus.replay.sampling.fields import Field, Trajectory, col
from pappus.types import ACTION_MASK, Array, ArraySpec, EnvSpec, Nest, Timestep


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


def _seen_before(rows: Array, experience: Sequences) -> Array:
    """Rows of burn-in of items that begin with their episode and have so many rows.

    The first of them has up to `length` rows, and every later one ends behind the one before it.
    """
    earlier: Array = np.maximum(0, -((experience.length - rows) // experience.period))
    return earlier * experience.period


def _without_mask(observation: Nest) -> Any:
    if not isinstance(observation, dict):
        return observation
    return {key: leaf for key, leaf in observation.items() if key != ACTION_MASK}


class SequenceRecorder:
    """Items of up to burn_in + length rows of one episode, a new one every `period` rows; the last one may be shorter.

    The transition of an item's last row can be learnt from only if it terminated: its next observation is not there.
    """

    held = 0

    def __init__(self, layout: SequenceLayout, writer: TrajectoryWriter, envs: int) -> None:
        self._layout, self._experience, self._writer = layout, layout.experience, writer
        self._begin = np.zeros(envs, np.int64)
        """The first row of each env's next item that is learnt from."""
        self._episode = np.zeros(envs, np.int64)
        self._covered = np.zeros(envs, np.int64)
        """Rows up to here are in an item."""
        self._all = np.arange(envs)
        rows = self._experience.length + self._experience.period
        self._q, self._value, self._reward, self._discount = (np.zeros((rows, envs), np.float32) for _ in range(4))
        self._valid = np.zeros((rows, envs), bool)

    def record(
        self, seen: Timestep, state: Nest, action: Array, behaviour: Mapping[str, Array], then: Timestep
    ) -> int:
        row, experience = self._writer.steps, self._experience
        self._writer.append(self._layout.step(seen, state, action, behaviour, then), seen.first)
        place = row % len(self._q)
        self._q[place], self._value[place] = behaviour["q"], behaviour["value"]
        self._reward[place] = then.reward * experience.reward_scale
        self._discount[place], self._valid[place] = then.discount, then.valid
        for of in (self._begin, self._episode, self._covered):
            of[seen.first] = row
        over = ~then.valid | (then.discount == 0)
        ended = over & (self._covered <= row) & (then.valid | (self._begin < row))
        envs = self._all[ended | (row - self._begin + 1 == experience.length)]
        if len(envs):
            self._create(envs, row)
            self._begin[envs] += experience.period
            self._covered[envs] = row + 1
        if over.any():
            for of in (self._begin, self._covered, self._episode):
                of[over] = row + 1
        return len(envs)

    def _create(self, envs: Array, row: int) -> None:
        starts = np.maximum(self._begin[envs] - self._experience.burn_in, self._episode[envs])
        names = self._layout.signature
        self._writer.create_items(
            TABLE, self._priorities(envs, row), envs, dict.fromkeys(names, starts),
            dict.fromkeys(names, row - starts + 1),
        )

    def _priorities(self, envs: Array, row: int) -> Array:
        """η · max |δ| + (1 − η) · mean |δ| of the n-step errors, on the scale on which values are learnt."""
        experience = self._experience
        rows = self._begin[envs] + np.arange(experience.length)[:, None]
        there, place = rows <= row, rows % len(self._q)
        q, value, reward, discount = (
            torch.from_numpy(of[place, envs]) for of in (self._q, self._value, self._reward, self._discount)
        )
        usable = torch.from_numpy(there & self._valid[place, envs] & ((rows < row) | (discount.numpy() == 0)))
        values = torch.cat([unrescale(value, experience.rescaling), torch.zeros(1, len(envs))])
        returns = n_step_returns(values, reward, discount * experience.discount, usable, n=experience.n_step)
        error = rescale(returns, experience.rescaling) - q
        priorities: Array = mixed_priority(error, usable, experience.eta).numpy() + SMALLEST_PRIORITY
        return priorities
