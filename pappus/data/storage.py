"""Stored episodes written into Minari's storage: HDF5 by our own writer, Arrow and Parquet by Minari's."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from pappus.data.content import Content
from pappus.data.metadata import METADATA, DataFormat, minari_package, raw_metadata, read_metadata
from pappus.envs.spaces import Space
from pappus.errors import UserError
from pappus.telemetry.files import write_json


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
    return open_storage(directory / "data")


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


def open_storage(folder: Path) -> Any:
    """Minari's storage of a set that is there."""
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
