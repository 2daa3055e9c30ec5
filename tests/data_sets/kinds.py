"""Small data sets of many kinds: spaces that differ, and episodes drawn from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from pappus.data.dataset import Dataset, DatasetWriter, open_dataset
from pappus.data.episode import Episode
from pappus.data.metadata import DataFormat
from pappus.envs.spaces import Space, action_converter, from_env_action, observation_converter
from pappus.types import ACTION_MASK, EnvSpec

FORMATS: tuple[DataFormat, ...] = ("hdf5", "arrow", "parquet")
VECTOR = spaces.Box(-2, 2, (3,), np.float32)

KINDS: dict[str, tuple[Space, Space]] = {
    "vector": (VECTOR, spaces.Discrete(3)),
    "float64": (spaces.Box(-1, 1, (2,), np.float64), spaces.Discrete(2, start=5)),
    "scalar": (spaces.Box(-1, 1, (), np.float32), spaces.Discrete(2)),
    "bounds": (VECTOR, spaces.Box(np.array([-3, 0], np.float32), np.array([1, 10], np.float32))),
    "integers": (VECTOR, spaces.Box(0, 255, (2,), np.uint8)),
    "multi-discrete": (spaces.Discrete(4, start=-1), spaces.MultiDiscrete([2, 3])),
    "pictures": (spaces.Box(0, 255, (36, 40), np.uint8), spaces.Discrete(2)),
    "dict": (
        spaces.Dict({"goal": spaces.MultiBinary(3), "inner": spaces.Dict({"a": VECTOR, "b": spaces.Discrete(3)})}),
        spaces.Box(-1, 1, (1,)),
    ),
    "tuple": (spaces.Tuple((VECTOR, spaces.MultiDiscrete([2, 5]))), spaces.Discrete(2)),
    "masks": (
        spaces.Dict({"seen": VECTOR, ACTION_MASK: spaces.Tuple((spaces.MultiBinary(2), spaces.MultiBinary(3)))}),
        spaces.MultiDiscrete([2, 3]),
    ),
}


def spec_of(observation_space: Space, action_space: Space) -> EnvSpec:
    """What learners see of an env with these spaces."""
    action, _ = action_converter(action_space)
    observation, _ = observation_converter(observation_space, action)
    return EnvSpec(observation, action)


def stacked(space: Space, rows: list[Any]) -> Any:
    """Samples of a space as columns."""
    if isinstance(space, spaces.Dict):
        return {key: stacked(inner, [row[key] for row in rows]) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(stacked(inner, [row[i] for row in rows]) for i, inner in enumerate(space.spaces))
    return np.stack([np.asarray(row, space.dtype) for row in rows])


def columns(space: Space, rows: int) -> Any:
    """Random rows in the env's units; masks allow everything."""
    found = stacked(space, [space.sample() for _ in range(rows)])
    if isinstance(space, spaces.Dict) and ACTION_MASK in space.spaces:
        found[ACTION_MASK] = tuple(np.ones_like(mask) for mask in found[ACTION_MASK])
    return found


def episodes_of(observation_space: Space, action_space: Space, lengths: tuple[int, ...] = (3, 1, 7)) -> list[Episode]:
    """Random episodes: the first is terminated, the second truncated, the others are cut off."""
    action, _ = action_converter(action_space)
    _, to_nest = observation_converter(observation_space, action)
    found = []
    for i, length in enumerate(lengths):
        observation_space.seed(i)
        action_space.seed(i)
        rng = np.random.default_rng(i)
        found.append(
            Episode(
                to_nest(columns(observation_space, length + 1)),
                np.asarray(from_env_action(action_space, columns(action_space, length)), action.array.dtype),
                rng.normal(size=length).astype(np.float32), i == 0, i == 1,
                {"log_prob": -rng.random(length).astype(np.float32)}, seed=i if i < 2 else None,
            )
        )
    return found


def written(
    directory: Path, kind: str = "vector", data_format: DataFormat = "hdf5", episodes: list[Episode] | None = None
) -> Dataset:
    """A data set of this kind, just written."""
    observation_space, action_space = KINDS[kind]
    spec = spec_of(observation_space, action_space)
    writer = DatasetWriter(directory, spec, observation_space, action_space, "", data_format)
    writer.add(episodes or episodes_of(observation_space, action_space), action_converter(action_space)[1])
    return open_dataset(directory)
