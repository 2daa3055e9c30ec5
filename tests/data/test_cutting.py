"""Episodes are found in a stream as they were lived: whole, with their ends, whatever an env's kind of autoreset."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from pappus.data.cutting import find_cuts
from pappus.data.parts import ENDED, FIRST, TERMINATED, VALID
from pappus.types import Array

Lived = tuple[int, int, int, bool, bool]
"""Env, first and last row, terminated, truncated."""


def lived(env: int, rows: int, kind: Literal["next step", "same step", "lives"]) -> tuple[Array, list[Lived]]:
    """The flags of one env's rows, and its episodes, in plain steps."""
    random, flags, episodes = np.random.default_rng([env, rows]), np.zeros(rows, np.uint8), list[Lived]()
    start, flags[0] = 0, FIRST
    for row in range(1, rows):
        if kind == "next step" and flags[row - 1] & ENDED:
            flags[row], start = FIRST, row
            continue
        flags[row] = VALID
        if random.random() > 0.3:
            continue
        terminated = random.random() < 0.5
        end = row
        if kind == "next step" or (kind == "lives" and terminated):
            flags[row] |= ENDED | (TERMINATED if terminated else 0)
        if kind != "next step":
            flags[row] |= FIRST | TERMINATED | ENDED
            if not terminated:
                flags[row], end, terminated = FIRST, row - 1, False
        if end > start:
            episodes.append((env, start, end, terminated, not terminated))
        start = row
    if start < rows - 1 and not flags[rows - 1] & (ENDED | FIRST):
        episodes.append((env, start, rows - 1, False, False))
    return flags, episodes


@pytest.mark.parametrize("kind", ["next step", "same step", "lives"])
def test_every_episode_is_found_once(kind: Literal["next step", "same step", "lives"]) -> None:
    streams = [lived(env, 60, kind) for env in range(20)]
    flags, expected = np.stack([flags for flags, _ in streams], axis=1), [one for _, many in streams for one in many]
    found = list(zip(*(column.tolist() for column in find_cuts(flags, keep_open=True)), strict=True))
    assert sorted(found) == sorted(expected)
    assert [cut[2] for cut in found] == sorted(cut[2] for cut in found), "in the order in which they ended"


def test_an_episode_that_goes_on_is_left_out_unless_it_is_asked_for() -> None:
    flags = np.array([[FIRST], [VALID], [VALID | ENDED], [FIRST], [VALID]], np.uint8)
    assert find_cuts(flags, keep_open=False).end.tolist() == [2]
    kept = find_cuts(flags, keep_open=True)
    assert kept.end.tolist() == [2, 4] and kept.truncated.tolist() == [True, False]


def test_an_episode_that_ended_with_the_last_row_is_whole() -> None:
    flags = np.array([[FIRST, FIRST], [VALID | TERMINATED, VALID | ENDED]], np.uint8)
    found = find_cuts(flags, keep_open=False)
    assert found.terminated.tolist() == [True, False] and found.truncated.tolist() == [False, True]


def test_what_has_no_beginning_is_no_episode() -> None:
    flags = np.array([[VALID], [VALID | TERMINATED], [FIRST], [VALID | TERMINATED]], np.uint8)
    found = find_cuts(flags, keep_open=True)
    assert (found.start.tolist(), found.end.tolist()) == ([2], [3])


def test_no_rows_hold_no_episodes() -> None:
    assert len(find_cuts(np.zeros((3, 2), np.uint8), keep_open=True).env) == 0
