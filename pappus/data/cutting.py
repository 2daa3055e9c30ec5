"""Episodes, cut out of the rows of a part file.

    row     0      1      2      3      4      5      6
    first   ✓                           ✓
    valid          ✓      ✓      ✓             ✓      ✓
            └──── o_0 … o_3 ─────┘      └──── o_0 …            an episode of 3 steps, and one that goes on

An episode begins with an observation that is `first`. It ends before the next one or, where that belongs to a valid
transition (a lost life that counts as an end, an env that resets within the step), with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import optree

from pappus.data.episode import Episode
from pappus.data.parts import ENDED, FIRST, TERMINATED, VALID, Part
from pappus.types import Array, Nest


class Cuts(NamedTuple):
    """Episodes of a part, one entry each: rows `start` … `end` of one env, in the order in which they ended."""

    env: Array
    start: Array
    end: Array
    terminated: Array
    truncated: Array


def find_cuts(flags: Array, keep_open: bool) -> Cuts:
    """Where episodes lie in flags `[R, N]`. Those that still went on are left out, unless `keep_open`."""
    rows = len(flags)
    env, start = np.nonzero(flags.T & FIRST)
    followed = np.append(env[1:] == env[:-1], False) if len(env) else np.zeros(0, np.bool_)
    following = np.where(followed, np.append(start[1:], 0), 0)
    joined = flags[following, env] & VALID > 0  # the next episode begins with the last observation of this one
    end = np.where(followed, following - 1 + joined, rows - 1)
    terminated = flags[end, env] & TERMINATED > 0
    over = followed | terminated | (flags[end, env] & ENDED > 0)
    invalid = np.cumsum(flags & VALID == 0, axis=0, dtype=np.int64)
    whole = invalid[end, env] == invalid[start, env]
    kept = np.flatnonzero((end > start) & whole & (over | keep_open))
    kept = kept[np.argsort(end[kept], kind="stable")]
    found = (env, start, end, terminated, over & ~terminated)
    return Cuts(*(column[kept] for column in found))


def times_of(part: Part, cuts: Cuts) -> Array:
    """When the block with each episode's last row was written, `[E]`."""
    starts = np.array([block.start for block in part.blocks])
    times = np.array([block.time for block in part.blocks])
    found: Array = times[np.searchsorted(starts, cuts.end, "right") - 1]
    return found


class Cutter:
    """Reads the episodes of a part. Blocks are kept as they lie in the file."""

    def __init__(self, part: Part, structure: Nest) -> None:
        """`structure` is that of observations, as `optree.tree_structure` says it."""
        assert part.header is not None
        self._part, self._structure, self._header = part, structure, part.header
        self._starts = np.array([block.start for block in part.blocks])
        self._columns = [part.columns(block) for block in part.blocks]

    def episodes(self, cuts: Cuts) -> Iterator[Episode]:
        """All of them, in order."""
        for env, start, end, terminated, truncated in zip(*(column.tolist() for column in cuts), strict=True):
            yield self._episode(env, start, end, terminated, truncated)

    def _episode(self, env: int, start: int, end: int, terminated: bool, truncated: bool) -> Episode:
        _, reward, action, *rest = self._rows(env, start, end)
        names = list(self._header.behaviour)
        behaviour = {name: leaf[1:] for name, leaf in zip(names, rest, strict=False)}
        observation = optree.tree_unflatten(self._structure, rest[len(names) :])
        seeds = self._header.seeds
        seed = seeds[env] if start == 0 and seeds is not None else None
        return Episode(observation, action[1:], reward[1:], terminated, truncated, behaviour, seed)

    def _rows(self, env: int, start: int, end: int) -> list[Array]:
        """Every leaf of one env's rows, `[end - start + 1, …]` each."""
        first, last = np.searchsorted(self._starts, (start, end), "right") - 1
        if first == last:
            begin = self._starts[first]
            return [column[start - begin : end - begin + 1, env] for column in self._columns[first]]
        pieces: list[Sequence[Array]] = []
        for number in range(first, last + 1):
            begin = self._starts[number]
            here = slice(max(0, start - begin), end - begin + 1)
            pieces.append([column[here, env] for column in self._columns[number]])
        return [np.concatenate(leaves) for leaves in zip(*pieces, strict=True)]
