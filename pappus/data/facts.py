"""What a reader must know of all episodes before it reads one: lengths, returns, and which of them terminated."""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pappus.data.dataset import Dataset
from pappus.types import Array


class Facts(NamedTuple):
    """Of every episode, `[E]`."""

    lengths: Array
    returns: Array
    terminated: Array


def episode_facts(dataset: Dataset) -> Facts:
    """By one pass over rewards and terminations; of HDF5 nothing else is read."""
    return _facts(dataset.path, (dataset.path / "metadata.json").stat().st_mtime_ns)


@lru_cache(maxsize=8)
def _facts(path: Path, changed: int) -> Facts:
    """`changed` is when the set was changed: then it is read again."""
    dataset = Dataset(path)
    if dataset.metadata.get("data_format", "hdf5") == "hdf5":
        rows = _from_hdf5(dataset.path, dataset.num_episodes)
    else:
        rows = [
            (episode.length, float(episode.reward.sum()), episode.terminated)
            for episode in dataset.read(range(dataset.num_episodes))
        ]
    lengths, returns, terminated = np.array(rows, np.float64).reshape(-1, 3).T
    return Facts(lengths.astype(np.int64), returns, terminated.astype(bool))


def _from_hdf5(folder: Path, episodes: int) -> list[tuple[int, float, bool]]:
    import h5py

    with h5py.File(folder / "main_data.hdf5", "r") as file:
        groups: list[Any] = [file[f"episode_{number}"] for number in range(episodes)]
        return [
            (len(group["rewards"]), float(np.float32(group["rewards"][()]).sum()), bool(group["terminations"][-1]))
            for group in groups
        ]


def best_episodes(dataset: Dataset, share: float) -> Array:
    """The numbers of the share of episodes with the highest returns, in the order of the set; at least one."""
    if share == 1:
        return np.arange(dataset.num_episodes)
    count = max(1, math.ceil(share * dataset.num_episodes))
    by_return = np.argsort(-episode_facts(dataset).returns, kind="stable")
    return np.sort(by_return[:count])
