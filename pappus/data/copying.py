"""New data sets from stored episodes: written beside their place, checked, and then put there whole."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pappus.data.content import Content
from pappus.data.dataset import Dataset, lengths_and_returns, open_dataset
from pappus.data.episode_checks import structure_problems
from pappus.data.metadata import DataFormat, raw_metadata
from pappus.data.storage import add_contents, new_storage
from pappus.envs.spaces import Space
from pappus.errors import UserError

COMPUTED = {
    "total_episodes", "total_steps", "dataset_size", "data_format", "jpeg_encoding", "observation_space",
    "action_space", "dataset_id", "minari_version",
}
"""Metadata that a copy has of its own."""


def convert(source: str, target: Path, data_format: DataFormat, progress: Callable[[int], None]) -> Dataset:
    """A copy of a set in another format. Pictures that were JPEG are stored as they are read: they lose no more."""
    dataset = open_dataset(source)
    new = NewSet(dataset.observation_space, dataset.action_space, data_format, about=_about(dataset))
    with new_dataset(target) as folder:
        contents = dataset.contents(range(dataset.num_episodes))
        _check_same(dataset, new.write(folder, contents, f"data set {str(dataset.path)!r}", progress))
    return open_dataset(target)


def _about(dataset: Dataset) -> dict[str, Any]:
    """What a set says of itself that its copy says, too; Minari keeps names of people as sets."""
    found = {key: value for key, value in raw_metadata(dataset.path).items() if key not in COMPUTED}
    return {key: set(value) if key in ("author", "author_email") else value for key, value in found.items()}


@dataclass(frozen=True)
class NewSet:
    """What a set that is yet to be written will be."""

    observation_space: Space
    action_space: Space
    data_format: DataFormat
    env: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Further metadata."""

    def write(self, folder: Path, contents: Iterable[Content], name: str, progress: Callable[[int], None]) -> Dataset:
        """Write episodes; `UserError` at the first whose structure is wrong. `name` is where they come from."""
        storage = new_storage(
            folder, self.observation_space, self.action_space, self.env, self.data_format, self.about
        )

        def checked() -> Iterator[Content]:
            for done, content in enumerate(contents, start=1):
                for problem in structure_problems(content, self.observation_space, self.action_space):
                    raise UserError(f"{name}: episode {content.number} {problem}")
                yield content
                progress(done)

        add_contents(storage, checked())
        return open_dataset(folder)


@contextmanager
def new_dataset(target: Path) -> Iterator[Path]:
    """A folder to write a set into, which becomes `target` if all goes well and goes if not."""
    target = target.absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UserError(f"{str(target)!r} is there already; name a new folder, nothing is overwritten")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        place = tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent)
        draft = Path(place) / target.name  # the folder's name becomes the set's
        draft.mkdir()
    except OSError as error:
        raise UserError(f"{str(target)!r} cannot be made: {error.strerror}") from None
    try:
        yield draft
        draft.replace(target)
    finally:
        shutil.rmtree(draft.parent, ignore_errors=True)


def _check_same(one: Dataset, other: Dataset) -> None:
    """The copy holds the same episodes, as far as lengths and returns tell."""
    lengths, returns = lengths_and_returns(one)
    same_lengths, same_returns = lengths_and_returns(other)
    if not (np.array_equal(lengths, same_lengths) and np.array_equal(returns, same_returns, equal_nan=True)):
        raise UserError(
            f"the copy of {str(one.path)!r} differs from it: {len(same_lengths)} of {len(lengths)} episodes, "
            f"{same_lengths.sum()} of {lengths.sum()} steps; was it being written meanwhile?"
        )

