"""Data sets in Minari's format (https://minari.farama.org), read and written as episodes of our time convention.

    DIR/data/metadata.json      spaces, env, totals, and under `pappus` what only we need
    DIR/data/main_data.hdf5     a group per episode (Arrow and Parquet: a folder per episode)

A set is named by its folder, or by its Minari id (`$MINARI_DATASETS_PATH`, else `~/.minari/datasets`). Actions are
stored in the env's units; where the policy said something else (before a clip), that is in `infos/policy_action`.
Infos have T + 1 rows, as Minari's have: row t belongs to o_t and to what was done there, the last one is padding.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from pappus.data.content import Content, EpisodeFiles, Outline, any_jpeg
from pappus.data.episode import Episode
from pappus.data.episode_checks import POLICY_ACTION, structure_problems, value_problems
from pappus.data.metadata import (
    METADATA,
    OWN,
    DataFormat,
    env_of,
    find_dataset,
    minari_package,
    minari_root,
    raw_metadata,
    read_metadata,
)
from pappus.envs.spaces import Space, action_converter, from_env_action, observation_converter, to_env_observation
from pappus.errors import UserError
from pappus.telemetry.files import write_json
from pappus.types import Array, ContinuousAction, EnvSpec


class Dataset:
    """Episodes on disk. None of them is kept in memory, and none that is odd is handed out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metadata: dict[str, Any] = read_metadata(path)
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
        self.data_format: DataFormat = self.metadata["data_format"]
        jpeg = bool(self.metadata.get("jpeg_encoding", True))
        self.lossy: bool = jpeg and (any_jpeg(self.observation_space) or any_jpeg(self.action_space))
        """Whether it holds pictures as JPEG."""
        self._files = _files(path, self.data_format, self.observation_space, self.action_space, jpeg)

    def read(self, episodes: Iterable[int]) -> Iterator[Episode]:
        """The episodes with these numbers, one after the other; `UserError` at the first that is odd."""
        for content in self.contents(episodes):
            episode = self.episode(content)
            for problem in value_problems(episode, content, self.spec, self.action_space):
                raise UserError(self.sentence(content, problem))
            yield episode

    def contents(self, episodes: Iterable[int]) -> Iterator[Content]:
        """The same as they are stored, unchecked."""
        return self._files.read(episodes)

    def outlines(self, episodes: Iterable[int]) -> Iterator[Outline]:
        """Only their rewards and terminations, as they are stored: much less to read."""
        return self._files.outlines(episodes)

    def stored_episodes(self) -> int:
        """Episodes that the files hold, whatever the metadata says."""
        return self._files.count()

    def episode(self, content: Content) -> Episode:
        """A stored episode in our convention; `UserError` if lengths, shapes or types do not fit."""
        for problem in structure_problems(content, self.observation_space, self.action_space):
            raise UserError(self.sentence(content, problem))
        steps = len(content.rewards)
        said = content.infos.get(POLICY_ACTION)
        action = from_env_action(self.action_space, content.actions) if said is None else said[:steps]
        return Episode(
            self._to_nest(content.observations), np.asarray(action, self.spec.action.array.dtype),
            np.asarray(content.rewards, np.float32), bool(content.terminations[-1]), bool(content.truncations[-1]),
            _behaviour(content.infos, steps), content.seed,
        )

    def sentence(self, content: Content, problem: str) -> str:
        """What is wrong with an episode, and where it lies."""
        return f"data set {str(self.path)!r}: episode {content.number} {problem}"


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
    from pappus.data.assemble import complete

    for directory in (Path(data), minari_root() / data):
        complete(directory)
    return Dataset(find_dataset(data))


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
            self._storage = _storage(folder)
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


def new_storage(
    directory: Path, observation_space: Space, action_space: Space, env: str, data_format: DataFormat,
    metadata: Mapping[str, Any],
) -> Any:
    """Minari's storage of a new set, without episodes. The folder gets its name when all is in it."""
    minari = minari_package()
    from minari.dataset.minari_storage import MinariStorage

    unnamed = directory / "data.new"
    shutil.rmtree(unnamed, ignore_errors=True)
    unnamed.mkdir(parents=True)
    storage = MinariStorage.new(
        unnamed, observation_space, action_space, _gym_spec(env), data_format, jpeg_encoding=False
    )
    version = str(minari.__version__)
    storage.update_metadata({"dataset_id": _dataset_id(directory), "minari_version": version, **metadata})
    unnamed.rename(directory / "data")
    return _storage(directory / "data")


def add_contents(storage: Any, contents: Iterable[Content], sources: Sequence[str] = ()) -> tuple[int, int]:
    """Append stored episodes to Minari's storage, numbered as they come; how many they and their steps were.

    HDF5 gets all of them or, if this is killed, none. The file keeps the names of `sources`, where the episodes came
    from, for whoever repeats it then."""
    folder = Path(storage.data_path)
    before = raw_metadata(folder)
    if storage.FORMAT == "hdf5":
        _add_to_hdf5(folder, contents, sources)
    else:
        _add_by_minari(storage, contents)
    after = raw_metadata(folder)
    return after["total_episodes"] - before["total_episodes"], after["total_steps"] - before["total_steps"]


def _add_to_hdf5(folder: Path, contents: Iterable[Content], sources: Sequence[str]) -> None:
    from pappus.data.hdf5_writer import Hdf5Writer

    metadata = raw_metadata(folder)
    with closing(Hdf5Writer(folder)) as writer:
        for content in contents:
            writer.add(content)
        totals = {"total_episodes": writer.episodes, "total_steps": metadata["total_steps"] + writer.steps}
        writer.commit(totals, sources)
    size = round(sum(path.stat().st_size for path in folder.iterdir()) / 1e6, 1)
    write_json(folder / METADATA, {**metadata, **totals, "dataset_size": size})


def _add_by_minari(storage: Any, contents: Iterable[Content]) -> None:
    from minari.data_collector.episode_buffer import EpisodeBuffer

    def buffer(content: Content) -> Any:
        return EpisodeBuffer(
            seed=content.seed, options=None if content.options is None else dict(content.options),
            observations=content.observations, actions=content.actions, rewards=content.rewards,
            terminations=content.terminations, truncations=content.truncations,
            infos=_info_rows(content.infos, len(content.rewards) + 1) or None,
        )

    measure = storage.get_size
    storage.get_size = lambda: 0.0  # Minari would look at every file of the set again for every episode of Arrow's
    try:
        storage.update_episodes(buffer(content) for content in contents)
    finally:
        del storage.get_size
    storage.update_metadata({"dataset_size": measure()})


def _info_rows(infos: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Columns with as many rows as observations; single numbers as lists, because Minari's Arrow cannot read back a
    one-dimensional array."""
    found: dict[str, Any] = {}
    for name, column in infos.items():
        if isinstance(column, Mapping):
            found[name] = _info_rows(column, rows)
            continue
        column = np.asarray(column)
        if len(column) < rows:
            column = np.concatenate([column, np.zeros((rows - len(column), *column.shape[1:]), column.dtype)])
        found[name] = list(column) if column.ndim == 1 else column
    return found


def _storage(folder: Path) -> Any:
    minari_package()
    from minari.dataset.minari_storage import MinariStorage

    read_metadata(folder)
    try:
        return MinariStorage.read(folder)
    except (ValueError, KeyError, OSError) as error:
        raise UserError(f"data set {str(folder)!r} cannot be continued: {' '.join(str(error).split())}") from None


def _gym_spec(env: str) -> Any:
    import gymnasium as gym

    return gym.registry.get(env)


def _dataset_id(directory: Path) -> str:
    """The folder's name as Minari wants it: NAME-vN."""
    name = re.sub(r"[^-\w]", "-", directory.name)
    return name if re.search(r"-v\d+$", name) else f"{name}-v0"


def lengths_and_returns(dataset: Dataset) -> tuple[Array, Array]:
    """Steps and sum of rewards of every episode, `[E]` each, by one pass over the rewards."""
    pairs = [(len(rewards), float(np.sum(rewards))) for rewards, _ in dataset.outlines(range(dataset.num_episodes))]
    lengths, returns = np.array(pairs, np.float64).reshape(-1, 2).T
    return lengths.astype(np.int64), returns
