"""Data sets in Minari's format (https://minari.farama.org), read and written as episodes of our time convention.

    DIR/data/metadata.json      spaces, env, totals, and under `pappus` what only we need
    DIR/data/main_data.hdf5     a group per episode (Arrow and Parquet: a folder per episode)

A set is named by its folder, or by its Minari id (`$MINARI_DATASETS_PATH`, else `~/.minari/datasets`). Actions are
stored in the env's units; where the output of the policy differs (before a clip), that is in `infos/policy_action`.
Infos have T + 1 rows, as Minari's have: row t belongs to o_t and to what was done there, the last one is padding.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pappus.data.content import Content, EpisodeFiles, Outline, any_jpeg
from pappus.data.episode import Episode
from pappus.data.episode_checks import (
    POLICY_ACTION,
    policy_action_of,
    reward_problems,
    structure_problems,
    value_problems,
)
from pappus.data.metadata import OWN, DataFormat, env_of, find_dataset, frame_stack_of, minari_root, read_metadata
from pappus.data.storage import add_contents, new_storage, open_storage
from pappus.envs.spaces import (
    Space,
    ToNest,
    action_converter,
    from_env_action,
    observation_converter,
    to_env_observation,
)
from pappus.errors import UserError
from pappus.types import Array, ContinuousAction, EnvSpec


class Dataset:
    """Episodes on disk. None of them is kept in memory, and none that is odd is handed out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = read_metadata(path)
        self.observation_space: Space = self.metadata["observation_space"]
        self.action_space: Space = self.metadata["action_space"]
        self.spec, self._to_nest = self._converted()
        """What an env of this data shows and accepts."""
        self.env: str = env_of(self.metadata)
        """The env's id; empty where it is not known."""
        self.num_episodes: int = self.metadata["total_episodes"]
        self.num_steps: int = self.metadata["total_steps"]
        self.data_format: DataFormat = self.metadata["data_format"]
        jpeg = bool(self.metadata.get("jpeg_encoding", True))
        self.lossy: bool = jpeg and (any_jpeg(self.observation_space) or any_jpeg(self.action_space))
        """Whether it holds pictures as JPEG."""
        self._files = _files(path, self.data_format, self.observation_space, self.action_space, jpeg)

    def _converted(self) -> tuple[EnvSpec, ToNest]:
        try:
            action, _ = action_converter(self.action_space)
            observation, to_nest = observation_converter(self.observation_space, action)
        except UserError as error:
            raise UserError(f"data set {str(self.path)!r} cannot be learned from: its {error}") from None
        return EnvSpec(observation, action, frame_stack_of(self.metadata)), to_nest

    def read(self, episodes: Iterable[int]) -> Iterator[Episode]:
        """The episodes with these numbers, one after the other; `UserError` at the first that is odd."""
        for content in self.contents(episodes):
            episode = self.episode(content)
            for problem in value_problems(episode, content, self.spec, self.observation_space, self.action_space):
                raise UserError(self.sentence(content, problem))
            yield episode

    def contents(self, episodes: Iterable[int]) -> Iterator[Content]:
        """The same as they are stored, unchecked."""
        return self._files.read(episodes)

    def outlines(self, episodes: Iterable[int]) -> Iterator[Outline]:
        """Only their rewards and terminations, much less to read; `UserError` where they are no rewards."""
        numbers = list(episodes)
        for number, outline in zip(numbers, self._files.outlines(numbers), strict=True):
            for problem in reward_problems(outline.rewards):
                raise UserError(self._sentence(number, problem))
            yield outline

    def stored_episodes(self) -> int:
        """Episodes that the files hold, whatever the metadata says."""
        return self._files.count()

    def episode(self, content: Content) -> Episode:
        """A stored episode in our convention; `UserError` if lengths, shapes or types do not fit."""
        for problem in structure_problems(content, self.observation_space, self.action_space):
            raise UserError(self.sentence(content, problem))
        steps = len(content.rewards)
        said = policy_action_of(content.infos, self.action_space)
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and the checks say where
            action = from_env_action(self.action_space, content.actions) if said is None else said[:steps]
            return Episode(
                self._to_nest(content.observations), np.asarray(action, self.spec.action.array.dtype),
                np.asarray(content.rewards, np.float32), bool(content.terminations[-1]), bool(content.truncations[-1]),
                _behaviour(content.infos, steps), content.seed,
            )

    def sentence(self, content: Content, problem: str) -> str:
        """What is wrong with an episode, and where it lies."""
        return self._sentence(content.number, problem)

    def _sentence(self, number: int, problem: str) -> str:
        return f"data set {str(self.path)!r}: episode {number} {problem}"


def _behaviour(infos: Mapping[str, Any], steps: int) -> dict[str, Array]:
    """The infos that are columns of numbers, without their padding."""
    return {
        name: column[:steps]
        for name, column in infos.items()
        if name != POLICY_ACTION and isinstance(column, np.ndarray) and column.dtype.kind in "fiub"
        and column.shape[:1] in ((steps,), (steps + 1,))
    }


def _files(path: Path, data_format: DataFormat, observation: Space, action: Space, jpeg: bool) -> EpisodeFiles:
    if data_format == "hdf5":
        from pappus.data.hdf5_files import Hdf5Files

        return Hdf5Files(path, observation, action, jpeg)
    from pappus.data.arrow_files import ArrowFiles

    return ArrowFiles(path, observation, action, jpeg, data_format)


def open_dataset(data: str | Path) -> Dataset:
    """The data set in a folder, or with a Minari id. What a dead run left there becomes part of it first."""
    return Dataset(completed(data))


def completed(data: str | Path) -> Path:
    """The folder with a set's metadata, after what a dead run left beside it became part of it."""
    from pappus.data.assemble import complete

    try:
        Path(data).exists()
    except (OSError, ValueError) as error:  # a name that no folder can have
        raise UserError(f"data {str(data)!r:.60} is no data set: {getattr(error, 'strerror', error)}") from None
    inner = [Path(data).parent] if Path(data).name == "data" else []
    for directory in (Path(data), minari_root() / data, *inner):
        complete(directory)
    return find_dataset(data)


class DatasetWriter:
    """A new data set, or one that is continued. Pictures are stored losslessly."""

    def __init__(
        self, directory: Path, spec: EnvSpec, observation_space: Space, action_space: Space, env: str = "",
        data_format: DataFormat = "hdf5", own: Mapping[str, Any] | None = None,
    ) -> None:
        """`own` are further entries of our part of the metadata."""
        folder = directory / "data"
        self._spec, self._observation_space, self._action_space = spec, observation_space, action_space
        if (folder / "metadata.json").is_file():
            self._storage = open_storage(folder)
            return
        ours = {"env": env, "frame_stack": spec.frame_stack, **(own or {})}
        self._storage = new_storage(directory, observation_space, action_space, env, data_format, {OWN: ours})

    def add(self, episodes: Iterable[Episode], to_env_action: Any, sources: Sequence[str] = ()) -> tuple[int, int]:
        """Append episodes, and return how many they and their steps were. `to_env_action` turns actions of policies
        `[T, …]` into the env's units; for `sources` see `add_contents`."""
        return add_contents(self._storage, (self._content(one, to_env_action) for one in episodes), sources)

    def _content(self, episode: Episode, to_env_action: Any) -> Content:
        stored = to_env_action(episode.action)
        infos: dict[str, Any] = dict(episode.behaviour)
        if isinstance(self._spec.action, ContinuousAction):
            again = np.asarray(from_env_action(self._action_space, stored), np.float32)
            if not np.array_equal(again, episode.action):
                infos[POLICY_ACTION] = episode.action
        last = np.arange(1, episode.length + 1) == episode.length
        return Content(
            0, to_env_observation(self._observation_space, episode.observation), stored, episode.reward,
            last & episode.terminated, last & episode.truncated, infos, episode.seed,
        )


def lengths_and_returns(dataset: Dataset) -> tuple[Array, Array]:
    """Steps and sum of rewards of every episode, `[E]` each, by one pass over the rewards."""
    pairs = [(len(rewards), float(np.sum(rewards))) for rewards, _ in dataset.outlines(range(dataset.num_episodes))]
    lengths, returns = np.array(pairs, np.float64).reshape(-1, 2).T
    return lengths.astype(np.int64), returns
