"""How an algorithm's experience lies in a table: its columns, the rows of an item, and the batch that comes out.

    stream      observation … action reward discount valid first behaviour … state …     a row for every step
    item        some of these rows (`recording.py` chooses them)
    batch       `Transition` or `Sequence` (`experience.py`)

Frames are stored once: stacks, and the frames that a network remembers, are put together when items are sampled. What
is from before an episode is blank then, as it was for whoever acted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from pappus.experience import SMALLEST_PRIORITY, Transition, Transitions
from pappus.recording.layout import TABLE, Layout, _nest
from pappus.replay.clients.writer import TrajectoryWriter
from pappus.replay.sampling.fields import Trajectory, col
from pappus.types import Array, ArraySpec, EnvSpec, Nest, Timestep


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


SEND_ITEMS = 50
"""Transitions that are handed over together (as many as by the paper's actors): most of the cost is per call."""

HOLD_STEPS = 64
"""No longer than for so many steps, however few there are."""


class Items(NamedTuple):
    """Items that end with the newest row: envs, first rows, and how many of their transitions count, `[n]` each."""

    envs: Array
    starts: Array
    counts: Array


class TransitionRecorder:
    """Items from every valid step on: n steps long, or shorter where the episode ends before.

    A row that is not valid (the final observation of an episode) is what the transitions before it bootstrap from. One
    that terminated needs no bootstrap, and ends all that are open at once.
    """

    def __init__(self, layout: TransitionLayout, writer: TrajectoryWriter, envs: int) -> None:
        self._layout, self._experience, self._writer = layout, layout.experience, writer
        self._begin = np.zeros(envs, np.int64)
        self._all = np.arange(envs)
        self._held: list[tuple[Items, int, Array]] = []
        """Items, the row that they end with, and their priorities."""
        rows = self._experience.n_step + 1
        self._q, self._reward, self._discount = (np.zeros((rows, envs), np.float32) for _ in range(3))

    def record(
        self, seen: Timestep, state: Nest, action: Array, behaviour: Mapping[str, Array], then: Timestep
    ) -> int:
        row = self._writer.steps
        if self._held and (seen.first.any() or row - self._held[0][1] >= HOLD_STEPS):
            self._hand_over()  # a writer knows no episode but the present one
        self._writer.append(self._layout.step(seen, state, action, behaviour, then), seen.first)
        place = row % len(self._q)
        self._q[place] = behaviour["q"]
        self._reward[place] = then.reward * self._experience.reward_scale
        self._discount[place] = then.discount * self._experience.discount
        self._begin[seen.first] = row
        items = self._finished(row, then)
        if len(items.envs):
            self._held.append((items, row, self._priorities(items, behaviour["value"])))
            if self.held >= SEND_ITEMS:
                self._hand_over()
        return len(items.envs)

    @property
    def held(self) -> int:
        """Items that were made and are not with the writer yet."""
        return sum(len(items.envs) for items, _, _ in self._held)

    def _finished(self, row: int, then: Timestep) -> Items:
        """What ends with this row: items of n steps, and all open ones where the episode ends."""
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

    def _priorities(self, items: Items, value: Array) -> Array:
        """|r + γ r' + … + γⁿ max_a Q(o_n, a) − Q(o, a)|."""
        total, weight = np.zeros(len(items.envs)), np.ones(len(items.envs))
        for i in range(self._experience.n_step):
            counts, place = i < items.counts, (items.starts + i) % len(self._q)
            total += np.where(counts, weight * self._reward[place, items.envs], 0.0)
            weight *= np.where(counts, self._discount[place, items.envs], 1.0)
        q = self._q[items.starts % len(self._q), items.envs]
        priorities: Array = np.abs(total + weight * value[items.envs] - q) + SMALLEST_PRIORITY
        return priorities

    def _hand_over(self) -> None:
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
