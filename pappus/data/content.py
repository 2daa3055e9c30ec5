"""One stored episode as it lies on disk: what the files of each format give, before it is checked and converted."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
from gymnasium import spaces

from pappus.envs.spaces import Space
from pappus.types import Array, Nest


class Content(NamedTuple):
    """Columns of one episode in the env's units: T + 1 observations, T of the rest, T + 1 or T of infos."""

    number: int
    observations: Nest
    actions: Nest
    rewards: Array
    terminations: Array
    truncations: Array
    infos: Mapping[str, Any]
    """Arrays by name, and mappings of them."""
    seed: int | None = None
    options: Mapping[str, Any] | None = None


class Outline(NamedTuple):
    """The two columns that tell length, return and whether an episode terminated."""

    rewards: Array
    terminations: Array


class EpisodeFiles(Protocol):
    """The files of one format."""

    def read(self, numbers: Iterable[int]) -> Iterator[Content]:
        """Stored episodes, one after the other."""

    def outlines(self, numbers: Iterable[int]) -> Iterator[Outline]:
        """Only their rewards and terminations."""

    def count(self) -> int:
        """Episodes that the files hold."""


def is_jpeg(space: Space) -> bool:
    """Whether Minari encodes this leaf as JPEG, unless it is told not to."""
    from minari.dataset.minari_storage import is_image_space

    return bool(is_image_space(space))


def any_jpeg(space: Space) -> bool:
    """Whether Minari encodes some leaf as JPEG, unless it is told not to."""
    if isinstance(space, spaces.Dict):
        return any(any_jpeg(inner) for inner in space.spaces.values())
    if isinstance(space, spaces.Tuple):
        return any(any_jpeg(inner) for inner in space.spaces)
    return is_jpeg(space)


def decoded_pictures(encoded: Iterable[Any], shape: tuple[int, ...]) -> Array:
    """JPEG bytes as pictures `[T, *shape]`."""
    from PIL import Image

    pictures = [np.asarray(Image.open(io.BytesIO(bytes(one))), np.uint8) for one in encoded]
    return np.stack(pictures).reshape(-1, *shape) if pictures else np.empty((0, *shape), np.uint8)
