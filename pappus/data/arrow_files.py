"""Episodes in Minari's Arrow and Parquet files: a folder per episode with its rows and a `metadata.json`.

A file has T + 1 rows: the last row of all columns but the observations is padding.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from pappus.data.content import Content, Outline, decoded_pictures, is_jpeg
from pappus.data.metadata import INSTALL, METADATA, DataFormat
from pappus.envs.spaces import Space
from pappus.errors import UserError
from pappus.types import Array, Nest

COLUMNS = ("observations", "actions", "rewards", "terminations", "truncations")


class ArrowFiles:
    """Reads one folder per episode."""

    def __init__(
        self, folder: Path, observation_space: Space, action_space: Space, jpeg: bool, data_format: DataFormat
    ) -> None:
        self._folder, self._format, self._jpeg = folder, data_format, jpeg
        self._observation_space, self._action_space = observation_space, action_space
        try:
            import pyarrow
            import pyarrow.parquet
        except ModuleNotFoundError:
            raise UserError(f"data set {str(folder)!r} needs pyarrow, which is not installed; {INSTALL}") from None
        self._pa: Any = pyarrow

    def count(self) -> int:
        """Episodes that there are folders of."""
        return sum(path.name.isdigit() for path in self._folder.iterdir())

    def read(self, numbers: Iterable[int]) -> Iterator[Content]:
        """Stored episodes, one after the other."""
        for number in numbers:
            with self._said_of(number):
                content = self._content(number)
            yield content

    def outlines(self, numbers: Iterable[int]) -> Iterator[Outline]:
        """Only their rewards and terminations."""
        for number in numbers:
            with self._said_of(number):
                columns = self._columns(number, list(Outline._fields))
                found = Outline(*(_numbers(columns[name])[:-1] for name in Outline._fields))
            yield found

    def _content(self, number: int) -> Content:
        columns, about = self._columns(number), self._about(number)
        rewards, terminations, truncations = (_numbers(columns[name])[:-1] for name in COLUMNS[2:])
        seed = about.get("seed")
        return Content(
            number,
            self._nest(columns["observations"], self._observation_space, None),
            self._nest(columns["actions"], self._action_space, -1),
            rewards, terminations, truncations,
            _infos(columns["infos"]) if "infos" in columns else {},
            None if seed is None else int(seed), about.get("options"),
        )

    def _about(self, number: int) -> Mapping[str, Any]:
        path = self._folder / str(number) / METADATA
        found = json.loads(path.read_bytes()) if path.is_file() else {}
        return found if isinstance(found, dict) else {}

    def _columns(self, number: int, names: list[str] | None = None) -> dict[str, Any]:
        """The rows of one episode as one array per column."""
        folder = f"{self._folder}/{number}"
        parts = [name for name in os.listdir(folder) if name.endswith(self._format)] if os.path.isdir(folder) else []
        if not parts:
            raise UserError(
                f"data set {str(self._folder)!r} has no file of episode {number}; the copy of it is not complete"
            )
        parts.sort(key=lambda name: (len(name), name))  # part-10 comes after part-9
        tables = [self._table(f"{folder}/{name}", names) for name in parts]
        table = tables[0] if len(tables) == 1 else self._pa.concat_tables(tables)
        missing = set(names or COLUMNS) - set(table.column_names)
        if missing:
            raise KeyError(min(missing))
        return {name: _one(table.column(name)) for name in names or table.column_names}

    def _table(self, file: str, names: list[str] | None) -> Any:
        if names:  # only their pages are read: the others may be of pictures
            source = self._pa.memory_map(file)
        else:
            with open(file, "rb") as opened:  # faster than pyarrow's own ways, which hand every read to a thread
                source = self._pa.BufferReader(opened.read())
        if self._format == "parquet":
            return self._pa.parquet.ParquetFile(source).read(columns=names, use_threads=False)
        return self._pa.ipc.open_file(source).read_all()

    def _nest(self, values: Any, space: Space, end: int | None) -> Nest:
        """Rows up to `end` as arrays."""
        if isinstance(space, spaces.Dict):
            return {key: self._nest(_field(values, key), inner, end) for key, inner in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(self._nest(_field(values, str(i)), inner, end) for i, inner in enumerate(space.spaces))
        if self._jpeg and is_jpeg(space):
            return decoded_pictures(values.to_pylist(), space.shape or ())[:end]
        return _numbers(values)[:end].reshape(-1, *(space.shape or ()))

    @contextmanager
    def _said_of(self, number: int) -> Iterator[None]:
        """What pyarrow raises, as a sentence."""
        where = f"data set {str(self._folder)!r}: episode {number}"
        try:
            yield
        except KeyError as error:
            raise UserError(f"{where} has no {error.args[0]!r}; it is damaged, or no set of Minari's") from None
        except (OSError, ValueError, TypeError, self._pa.ArrowException) as error:
            text = " ".join(str(error).split())
            raise UserError(f"{where} cannot be read: {text}; the file is damaged or not complete") from None


def _one(column: Any) -> Any:
    """A column as one array; it may come in several pieces."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _field(values: Any, name: str) -> Any:
    if values.type.get_field_index(name) < 0:
        raise KeyError(name)
    return values.field(name)


def _numbers(values: Any) -> Array:
    """A column of numbers, or of lists of one length, as rows of a new array."""
    import pyarrow

    if values.null_count:
        raise ValueError("it has missing values")
    if pyarrow.types.is_fixed_size_list(values.type):
        size = values.type.list_size
        return np.array(values.flatten().to_numpy(zero_copy_only=False)).reshape(len(values), size)
    return np.array(values.to_numpy(zero_copy_only=False))


def _infos(values: Any) -> dict[str, Any]:
    import pyarrow

    found: dict[str, Any] = {}
    for field in values.type:
        column = values.field(field.name)
        if pyarrow.types.is_struct(field.type):
            found[field.name] = _infos(column)
            continue
        rows = _numbers(column) if not column.null_count else np.array(column.to_pylist(), object)
        shape = (field.metadata or {}).get(b"shape")
        if shape is not None:
            rows = rows.reshape(len(rows), *(int(size) for size in shape.split(b",") if size))
        found[field.name] = rows
    return found
