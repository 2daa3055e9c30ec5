"""n-step transitions: how they are stored, and how a stream of steps becomes items."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from pappus.core import ReplayAlgorithm
from pappus.experience import SMALLEST_PRIORITY, Transition, Transitions, TransitionStats
from pappus.recording.layout import TABLE, Layout, nest_of
from pappus.replay.clients.writer import TrajectoryWriter
from pappus.replay.sampling.fields import Trajectory, col
from pappus.types import Array, EnvSpec, Nest, Timestep

SEND_ITEMS = 50
"""Items that are inserted together (as in the Ape-X paper), since most of the cost is per call."""
HOLD_STEPS = 64
"""Items are inserted after this many steps even if there are fewer."""


class TransitionLayout(Layout):
    """Stores the first and the last observation of an item, and what lies between as sums."""

    steps_per_item = 1

    def __init__(self, env: EnvSpec, algorithm: ReplayAlgorithm, experience: Transitions) -> None:
        super().__init__(env, algorithm)
        self._experience = experience

    @property
    def experience(self) -> Transitions:
        """n-step transitions."""
        return self._experience

    @property
    def history(self) -> int:
        """Rows that the recorder may still refer to."""
        return self._experience.n_step + 1 + HOLD_STEPS

    @property
    def seen_columns(self) -> tuple[str, ...]:
        """Columns that an item needs of its first and of its last row."""
        return (*self.observation_columns, *(["first"] if self.lead else []))

    def recorder(self, writer: TrajectoryWriter, envs: int) -> TransitionRecorder:
        """A recorder for `envs` envs."""
        return TransitionRecorder(self, writer, envs)

    def trajectory(self) -> Trajectory:
        """Both observations, the action, the n-step reward and the discount."""
        experience = self._experience
        reward, discount = col("reward"), col("discount") * experience.discount
        if experience.reward_scale != 1.0:
            reward = reward * experience.reward_scale
        return Trajectory(
            **{f"now/{name}": self._stacked(name)[0] for name in self.seen_columns},
            **{f"next/{name}": self._stacked(name)[-1] for name in self.seen_columns},
            action=col("action")[0], reward=reward.discounted_sum(experience.discount)[0], discount=discount.product(),
        )

    def batch(self, data: Mapping[str, Array]) -> Transition:
        """Sampled fields as a `Transition`."""
        return Transition(
            self._seen(data, "now"), data["action"], data["reward"], data["discount"], self._seen(data, "next")
        )

    def _seen(self, data: Mapping[str, Array], when: str) -> Nest:
        leaves = [data[f"{when}/{name}"] for name in self.observation_columns]
        return nest_of(self._observation, self._blanked(leaves, data[f"{when}/first"] if self.lead else None))


class Items(NamedTuple):
    """Items that end with the newest row: env, first row and number of transitions, `[n]` each."""

    envs: Array
    starts: Array
    counts: Array


class TransitionRecorder:
    """Creates one item from every valid step on: n steps long, or shorter if the episode ends first.

    An invalid row holds the final observation of a truncated episode: open transitions bootstrap from it. After a
    termination nothing is bootstrapped, so all open transitions end at once.
    """

    def __init__(self, layout: TransitionLayout, writer: TrajectoryWriter, envs: int) -> None:
        self._layout, self._experience, self._writer = layout, layout.experience, writer
        self._begin = np.zeros(envs, np.int64)
        """The first row of each env that no item has begun with."""
        self._all = np.arange(envs)
        self._held: list[tuple[Items, int, Array]] = []
        """Items, the row that they end with, and their priorities."""
        self._rows = self._experience.n_step + 1
        self._reward, self._discount = (np.zeros((self._rows, envs), np.float32) for _ in range(2))
        self._behaviour = layout.behaviour_rows(self._rows, envs)

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
            if self.held >= SEND_ITEMS:
                self._insert()
        return len(items.envs)

    @property
    def held(self) -> int:
        """Items that were created and not yet handed to the writer."""
        return sum(len(items.envs) for items, _, _ in self._held)

    def _remember(self, place: int, behaviour: Mapping[str, Array], then: Timestep) -> None:
        self._reward[place] = then.reward * self._experience.reward_scale
        self._discount[place] = then.discount * self._experience.discount
        for name, rows in self._behaviour.items():
            rows[place] = behaviour[name]

    def _finished(self, row: int, then: Timestep) -> Items:
        """Items that end with this row: those of n steps, and all open ones where the episode ends."""
        n = self._experience.n_step
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
        total, weight = np.zeros(len(items.envs)), np.ones(len(items.envs))
        for i in range(self._experience.n_step):
            counts, place = i < items.counts, (items.starts + i) % self._rows
            total += np.where(counts, weight * self._reward[place, items.envs], 0.0)
            weight *= np.where(counts, self._discount[place, items.envs], 1.0)
        first = items.starts % self._rows
        behaviour = {name: rows[first, items.envs] for name, rows in self._behaviour.items()}
        return TransitionStats(
            behaviour, {name: newest[name][items.envs] for name in self._behaviour}, total, weight
        )

    def _insert(self) -> None:
        items = Items(*(np.concatenate(fields) for fields in zip(*(one[0] for one in self._held), strict=True)))
        rows = np.concatenate([row - items.starts + 1 for items, row, _ in self._held])
        priorities = np.concatenate([one[2] for one in self._held])
        self._held = []
        lengths = dict.fromkeys(self._layout.signature, np.ones(len(rows), np.int64))
        lengths |= dict.fromkeys(self._layout.seen_columns, rows)
        lengths |= dict.fromkeys(("reward", "discount"), items.counts)
        self._writer.create_items(
            TABLE, priorities, items.envs, dict.fromkeys(self._layout.signature, items.starts), lengths
        )
