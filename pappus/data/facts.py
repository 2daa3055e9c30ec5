"""What a reader must know of all episodes before it reads one: lengths, returns, and which of them terminated."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pappus.data.dataset import Dataset
from pappus.types import Array


class Facts(NamedTuple):
    """Of every episode, `[E]`."""

    lengths: Array
    returns: Array
    terminated: Array


def episode_facts(dataset: Dataset) -> Facts:
    """By one pass over rewards and terminations."""
    return _facts(dataset.path, (dataset.path / "metadata.json").stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _facts(path: Path, changed: int) -> Facts:
    """`changed` is when the set was changed: then it is read again."""
    dataset = Dataset(path)
    rows = [
        (len(rewards), float(np.float32(rewards).sum()), bool(terminations[-1:].any()))
        for rewards, terminations in dataset.outlines(range(dataset.num_episodes))
    ]
    lengths, returns, terminated = np.array(rows, np.float64).reshape(-1, 3).T
    return Facts(lengths.astype(np.int64), returns, terminated.astype(bool))


def best_episodes(dataset: Dataset, share: float) -> Array:
    """The numbers of the share of episodes with the highest returns, in the order of the set; at least one."""
    if share == 1:
        return np.arange(dataset.num_episodes)
    count = max(1, math.ceil(share * dataset.num_episodes))
    by_return = np.argsort(-episode_facts(dataset).returns, kind="stable")
    return np.sort(by_return[:count])
