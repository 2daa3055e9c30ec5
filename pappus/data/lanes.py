"""Episodes played side by side, as N envs that reset themselves in the next step would play them.

    lane 0   o_0 … o_T ⋯▶ o_0 …         ⋯▶ is the row from a final observation to the next episode, valid False
    lane 1   o_0 … o_T ⋯▶ o_0 …
      ⋮

A lane takes the next episode when it has played one, until there is none; then its rows are invalid, and nothing is
made of them. Rows are copied in blocks, a whole stretch of an episode at a time: Python works per stretch, not per row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import optree

from pappus.data.episode import Episode
from pappus.types import Array, EnvSpec, Nest, map_leaves

BLOCK_ROWS = 64


class Rows(NamedTuple):
    """T rows of N lanes, `[T, N, …]`, in the time convention of `pappus.types`: the row of o_t holds what followed."""

    observation: Nest
    first: Array
    action: Array
    reward: Array
    discount: Array
    valid: Array

    @property
    def length(self) -> int:
        """T."""
        return len(self.first)


class Lanes:
    """Plays episodes in their order on `num_lanes` lanes."""

    def __init__(self, spec: EnvSpec, episodes: Iterator[Episode], num_lanes: int) -> None:
        self.num_lanes = num_lanes
        self.episodes = 0
        """Episodes that were begun."""
        self._spec, self._source = spec, episodes
        self._playing: list[tuple[Episode, int] | None] = [self._next() for _ in range(num_lanes)]
        """Of every lane its episode and the row that comes next."""

    def block(self) -> Rows | None:
        """The next rows of all lanes, up to `BLOCK_ROWS`; None when all episodes were played."""
        length = min(BLOCK_ROWS, self._left())
        if not length:
            return None
        rows = self._blank(length)
        for lane in range(self.num_lanes):
            self._fill(rows, lane)
        return rows

    def _left(self) -> int:
        """Rows to play, as far as it is known: of the present episodes, or of so many that it is not worth counting."""
        left = [episode.length + 1 - at for episode, at in filter(None, self._playing)]
        return max(left, default=0) if len(left) < self.num_lanes else BLOCK_ROWS

    def _fill(self, rows: Rows, lane: int) -> None:
        row = 0
        while row < rows.length and (playing := self._playing[lane]) is not None:
            episode, at = playing
            count = min(rows.length - row, episode.length + 1 - at)
            _copy(rows, slice(row, row + count), lane, episode, at)
            row += count
            self._playing[lane] = (episode, at + count) if at + count <= episode.length else self._next()

    def _next(self) -> tuple[Episode, int] | None:
        episode = next(self._source, None)
        if episode is None:
            return None
        self.episodes += 1
        return episode, 0

    def _blank(self, length: int) -> Rows:
        """Invalid rows."""
        shape = (length, self.num_lanes)

        def zeros(spec: Nest) -> Nest:
            return optree.tree_map(lambda leaf: np.zeros((*shape, *leaf.shape), leaf.dtype), spec)

        scalars = (np.zeros(shape, dtype) for dtype in (np.float32, np.float32, bool))
        return Rows(zeros(self._spec.observation), np.zeros(shape, bool), zeros(self._spec.action.array), *scalars)


def _copy(rows: Rows, where: slice, lane: int, episode: Episode, at: int) -> None:
    """Write a stretch of an episode into a lane, from row `at` of its `length + 1` on."""
    steps = slice(at, min(at + where.stop - where.start, episode.length))
    real = slice(where.start, where.start + steps.stop - steps.start)

    def put(into: Array, leaf: Array) -> None:
        into[where, lane] = leaf[at : at + where.stop - where.start]

    map_leaves(put, rows.observation, episode.observation)
    rows.action[real, lane], rows.reward[real, lane] = episode.action[steps], episode.reward[steps]
    rows.discount[real, lane], rows.valid[real, lane] = 1.0, True
    if at == 0:
        rows.first[where.start, lane] = True
    if episode.terminated and steps.stop == episode.length > at:
        rows.discount[real.stop - 1, lane] = 0.0
