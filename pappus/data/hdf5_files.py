"""Episodes in Minari's HDF5 file: a group `episode_I` each, a data set per leaf, Dict and Tuple as groups.

Read through h5py's low-level calls: its convenient objects cost more than the reading, several times per leaf.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from pappus.data.content import Content, Outline, decoded_pictures, is_jpeg
from pappus.data.metadata import INSTALL
from pappus.envs.spaces import Space
from pappus.errors import UserError
from pappus.types import Array, Nest

MAIN_FILE = "main_data.hdf5"
USUAL = ("float32", "int64", "bool", "float64", "uint8", "int8", "int32")
"""Types that are recognised without asking h5py, which takes as long as reading a short column."""


class Hdf5Files:
    """Reads `main_data.hdf5`. The file is open only while episodes are read."""

    def __init__(self, folder: Path, observation_space: Space, action_space: Space, jpeg: bool) -> None:
        self._path = folder / MAIN_FILE
        self._observation_space, self._action_space, self._jpeg = observation_space, action_space, jpeg
        try:
            import h5py
        except ModuleNotFoundError:
            raise UserError(f"data set {str(folder)!r} needs h5py, which is not installed; {INSTALL}") from None
        self._h5: Any = h5py
        self._info_names: tuple[str, ...] = ()
        self._types = [(h5py.h5t.py_create(np.dtype(name), logical=True), np.dtype(name)) for name in USUAL]

    def count(self) -> int:
        """Episodes that the file holds."""
        with self._opened() as root:
            try:
                return len(root)
            except RuntimeError as error:
                raise UserError(f"{str(self._path)!r} cannot be read: {_reason(error)}") from None

    def read(self, numbers: Iterable[int]) -> Iterator[Content]:
        """Stored episodes, one after the other."""
        with self._opened() as root:
            for number in numbers:
                with self._said_of(number):
                    content = self._content(self._h5.h5g.open(root, b"episode_%d" % number), number)
                yield content

    def outlines(self, numbers: Iterable[int]) -> Iterator[Outline]:
        """Only their rewards and terminations."""
        with self._opened() as root:
            for number in numbers:
                with self._said_of(number):
                    group = self._h5.h5g.open(root, b"episode_%d" % number)
                    found = Outline(self._array(group, b"rewards"), self._array(group, b"terminations"))
                yield found

    def _content(self, group: Any, number: int) -> Content:
        return Content(
            number,
            self._nest(group, b"observations", self._observation_space),
            self._nest(group, b"actions", self._action_space),
            self._array(group, b"rewards"), self._array(group, b"terminations"), self._array(group, b"truncations"),
            self._infos(self._h5.h5g.open(group, b"infos")) if b"infos" in group else {},
            *self._seed_and_options(group),
        )

    def _nest(self, group: Any, name: bytes, space: Space) -> Nest:
        if isinstance(space, spaces.Dict):
            return {key: self._nest(group, b"%s/%s" % (name, key.encode()), one) for key, one in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(self._nest(group, b"%s/_index_%d" % (name, i), one) for i, one in enumerate(space.spaces))
        if self._jpeg and is_jpeg(space):
            return decoded_pictures(self._array(group, name), space.shape or ())
        return self._array(group, name)

    def _array(self, group: Any, name: bytes) -> Array:
        return self._values(self._h5.h5d.open(group, name))

    def _values(self, stored: Any) -> Array:
        kind = stored.get_type()
        known, dtype = next((pair for pair in self._types if kind.equal(pair[0])), (None, None))
        found: Array = np.empty(stored.shape, stored.dtype if dtype is None else dtype)
        if found.size:
            stored.read(self._h5.h5s.ALL, self._h5.h5s.ALL, found, known)
        return _text(found) if found.dtype == object else found

    def _infos(self, group: Any) -> Mapping[str, Any]:
        """The same names as in the episode before, as a rule: to list them costs more than to read them."""
        if len(group) == len(self._info_names):
            try:
                return {name: self._array(group, name.encode()) for name in self._info_names}
            except KeyError:
                pass
        found: dict[str, Any] = {}
        for key in group:
            inner = self._h5.h5o.open(group, key)
            leaf = isinstance(inner, self._h5.h5d.DatasetID)
            found[key.decode()] = self._values(inner) if leaf else self._infos(inner)
        self._info_names = () if any(isinstance(column, dict) for column in found.values()) else tuple(found)
        return found

    def _seed_and_options(self, group: Any) -> tuple[int | None, Mapping[str, Any] | None]:
        """What an episode began with; its id and its length are attributes, too."""
        others = self._h5.h5a.get_num_attrs(group) - 2
        seed = None
        if others > 0 and self._h5.h5a.exists(group, b"seed"):
            stored, others = self._h5.h5a.open(group, b"seed"), others - 1
            value = np.empty((), np.int64)
            stored.read(value)
            seed = int(value)
        if others <= 0:
            return seed, None
        from minari.dataset._storages.hdf5_storage import unflatten_dict

        found = self._h5.Group(group).attrs.items()
        plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in found}
        return seed, unflatten_dict(plain).get("options")

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        if not self._path.is_file():
            raise UserError(f"data set {str(self._path.parent)!r} has no {MAIN_FILE}; the copy of it is not complete")
        if not self._path.stat().st_size:
            raise UserError(f"{str(self._path)!r} is empty: nothing was recorded, or the recording was killed at once")
        try:
            file = self._h5.File(self._path, "r", locking="best-effort")
        except OSError as error:
            raise UserError(f"{str(self._path)!r} cannot be opened: {_reason(error)}") from None
        with file:
            yield file.id

    @contextmanager
    def _said_of(self, number: int) -> Iterator[None]:
        """What h5py raises, as a sentence."""
        try:
            yield
        except KeyError as error:
            text = str(error.args[0]) if error.args else ""
            missing = text.partition("object '")[2].partition("'")[0]
            what = f"has no {missing!r}" if missing else f"cannot be found ({text})"
            raise UserError(
                f"data set {str(self._path.parent)!r}: episode {number} {what}; it is damaged, or no set of Minari's"
            ) from None
        except (OSError, RuntimeError, ValueError, TypeError) as error:
            raise UserError(
                f"data set {str(self._path.parent)!r}: episode {number} cannot be read: {_reason(error)}"
            ) from None


def _text(column: Array) -> Array:
    """HDF5 gives text as bytes; JPEG pictures of different sizes are objects, too, and stay as they are."""
    if not all(isinstance(value, bytes) for value in column.flat):
        return column
    found: Array = np.array([value.decode(errors="replace") for value in column.flat], object).reshape(column.shape)
    return found


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "truncated file" in text:
        return f"it is shorter than it says ({text}); it was not copied or written to its end"
    if "lock" in text:
        return f"another process writes it ({text})"
    return f"{text}; the file is damaged"
