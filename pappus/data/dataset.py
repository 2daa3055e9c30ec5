"""Data sets in Minari's format (https://minari.farama.org), read and written as episodes of our time convention.

    DIR/data/metadata.json      spaces, env, totals, and under `pappus` what only we need
    DIR/data/main_data.hdf5     a group per episode (Arrow and Parquet: a folder per episode)

A set is named by its folder, or by its Minari id (`$MINARI_DATASETS_PATH`, else `~/.minari/datasets`). Actions are
stored in the env's units; where the policy said something else (before a clip), that is in `infos/policy_action`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import optree

from pappus.data.episode import Episode
from pappus.data.metadata import OWN, DataFormat, env_of, find_dataset
from pappus.envs.spaces import Space, action_converter, from_env_action, observation_converter
from pappus.errors import UserError
from pappus.types import Array, ContinuousAction, EnvSpec, Nest

POLICY_ACTION = "policy_action"
"""In infos: actions in the units of policies, exactly as the policy said them."""


class Dataset:
    """Episodes on disk. Nothing but their lengths and returns is kept in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._storage = _storage(path)
        self.metadata: dict[str, Any] = self._storage.metadata
        own = self.metadata.get(OWN, {})
        self.observation_space: Space = self.metadata["observation_space"]
        self.action_space: Space = self.metadata["action_space"]
        action, _ = action_converter(self.action_space)
        observation, self._to_nest = observation_converter(self.observation_space, action)
        self.spec = EnvSpec(observation, action, int(own.get("frame_stack", 1)))
        """What an env of this data shows and accepts."""
        self.env: str = env_of(self.metadata)
        """The env's id; empty where it is not known."""
        self.num_episodes: int = self.metadata["total_episodes"]
        self.num_steps: int = self.metadata["total_steps"]

    def read(self, episodes: Iterable[int]) -> Iterator[Episode]:
        """The episodes with these numbers, one after the other."""
        numbers = list(episodes)
        seeds = (content.get("seed") for content in self._storage.get_episode_metadata(numbers))
        for content, seed in zip(self._storage.get_episodes(numbers), seeds, strict=True):
            yield self._episode(content, None if seed is None else int(seed))

    def _episode(self, content: Mapping[str, Any], seed: int | None) -> Episode:
        infos = dict(content["infos"] or {})
        said = infos.pop(POLICY_ACTION, None)
        action = from_env_action(self.action_space, content["actions"]) if said is None else said
        return Episode(
            self._to_nest(content["observations"]), np.asarray(action, self.spec.action.array.dtype),
            np.asarray(content["rewards"], np.float32), bool(content["terminations"][-1]),
            bool(content["truncations"][-1]), infos, seed,
        )


def open_dataset(data: str | Path) -> Dataset:
    """The data set in a folder, or with a Minari id."""
    return Dataset(find_dataset(data))


class DatasetWriter:
    """A new data set, or one that is continued. Pictures are stored losslessly."""

    def __init__(
        self, directory: Path, spec: EnvSpec, observation_space: Space, action_space: Space, env: str = "",
        data_format: DataFormat = "hdf5", own: Mapping[str, Any] | None = None,
    ) -> None:
        """`own` are further entries of our part of the metadata."""
        from minari.dataset.minari_storage import MinariStorage

        folder = directory / "data"
        self._spec, self._action_space = spec, action_space
        if (folder / "metadata.json").is_file():
            self._storage: Any = _storage(folder)
            return
        folder.mkdir(parents=True, exist_ok=True)
        self._storage = MinariStorage.new(
            folder, observation_space, action_space, _gym_spec(env), data_format, jpeg_encoding=False
        )
        self._storage.update_metadata(
            {
                "dataset_id": _dataset_id(directory), "minari_version": _minari_version(),
                OWN: {"env": env, "frame_stack": spec.frame_stack, **(own or {})},
            }
        )

    def add(self, episodes: Iterable[Episode], to_env_action: Any) -> None:
        """Append episodes; `to_env_action` turns actions of policies `[T, …]` into the env's units."""
        from minari.data_collector.episode_buffer import EpisodeBuffer

        def buffer(episode: Episode) -> Any:
            stored = to_env_action(episode.action)
            infos: dict[str, Any] = dict(episode.behaviour)
            if isinstance(self._spec.action, ContinuousAction):
                again = np.asarray(from_env_action(self._action_space, stored), np.float32)
                if not np.array_equal(again, episode.action):
                    infos[POLICY_ACTION] = episode.action
            last = np.arange(1, episode.length + 1) == episode.length
            return EpisodeBuffer(
                seed=episode.seed, observations=_as_lists(episode.observation), actions=stored,
                rewards=episode.reward, terminations=last & episode.terminated, truncations=last & episode.truncated,
                infos=infos or None,
            )

        self._storage.update_episodes(buffer(episode) for episode in episodes)


def _as_lists(observation: Nest) -> Any:
    """Minari's storage takes plain dicts and tuples of arrays."""
    return optree.tree_map(np.asarray, observation)


def _storage(folder: Path) -> Any:
    from minari.dataset.minari_storage import MinariStorage

    try:
        return MinariStorage.read(folder)
    except (ValueError, KeyError, OSError) as error:
        raise UserError(f"data set {str(folder)!r} cannot be read: {' '.join(str(error).split())}") from None


def _gym_spec(env: str) -> Any:
    import gymnasium as gym

    return gym.registry.get(env)


def _dataset_id(directory: Path) -> str:
    """The folder's name as Minari wants it: NAME-vN."""
    name = re.sub(r"[^-\w]", "-", directory.name)
    return name if re.search(r"-v\d+$", name) else f"{name}-v0"


def _minari_version() -> str:
    import minari

    return str(minari.__version__)


def lengths_and_returns(dataset: Dataset) -> tuple[Array, Array]:
    """Steps and sum of rewards of every episode, `[E]` each, by one pass over the set."""
    pairs = [(episode.length, float(episode.reward.sum())) for episode in dataset.read(range(dataset.num_episodes))]
    lengths, returns = np.array(pairs, np.float64).reshape(-1, 2).T
    return lengths.astype(np.int64), returns
