"""From the stream of an actor's envs to items, with priorities from the values that the policy said when it acted.

Both recorders are called once a step with rows of all envs. A row is written after its transition happened; an item is
made as soon as its last row is there. `begin` says from which row on an env has steps that no item has begun with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np
import torch

from pappus.experience import SMALLEST_PRIORITY, Transitions
from pappus.ops.q_learning import mixed_priority
from pappus.ops.rescaling import rescale, unrescale
from pappus.ops.returns import n_step_returns
from pappus.replay.experience_tables import TABLE, Layout, SequenceLayout, TransitionLayout
from pappus.replay.trajectory_writer import TrajectoryWriter
from pappus.types import Array, Nest, Timestep

SEND_ITEMS = 50
"""Transitions that are handed over together (as many as by the paper's actors): most of the cost is per call."""
HOLD_STEPS = 64
"""No longer than for so many steps, however few there are."""


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


def history_of(layout: Layout) -> int:
    """Steps that a recorder may still refer to."""
    experience = layout.experience
    if isinstance(experience, Transitions):
        return experience.n_step + 1 + HOLD_STEPS
    return experience.burn_in + experience.length + experience.period


def recorder_for(layout: TransitionLayout | SequenceLayout, writer: TrajectoryWriter, envs: int) -> Recorder:
    """The recorder of an algorithm's kind of items."""
    if isinstance(layout, TransitionLayout):
        return TransitionRecorder(layout, writer, envs)
    return SequenceRecorder(layout, writer, envs)


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
