"""Writes episodes in the layout of Minari's HDF5 file, through h5py's low-level calls: many episodes are short, and its
convenient objects would cost more than their data.

New episodes go into a copy of the file, which replaces it when all of them are in: a file is as it was, or complete.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from pappus.data.content import Content
from pappus.data.hdf5_files import MAIN_FILE
from pappus.telemetry.files import sync
from pappus.types import Array, Nest

COLUMNS = ("observations", "actions", "rewards", "terminations", "truncations")
ADDED = "pappus_added"
"""Attribute of the file: totals, and the sources of what was added last."""
PICTURE_BYTES = 1024
"""Pictures of at least so many bytes are compressed, some at a time: `CHUNK_BYTES`."""
CHUNK_BYTES = 256 << 10
COMPACT_BYTES = 8 << 10
"""Columns of up to so many bytes lie in the header of their data set, which is faster to write and to read."""


class Hdf5Writer:
    """Adds episodes to a set's file, all or none: `commit` makes them part of it."""

    def __init__(self, folder: Path) -> None:
        import h5py

        self._h5: Any = h5py
        self._final, self._path = folder / MAIN_FILE, folder / f"{MAIN_FILE}.new"
        self._path.unlink(missing_ok=True)
        if self._final.exists() and self._final.stat().st_size:
            shutil.copyfile(self._final, self._path)
        self._file = h5py.File(self._path, "a", libver="v110", track_order=True, locking=False)
        self._root = self._file.id
        self.episodes, self.steps = len(self._file), 0
        """Episodes in the file, and steps that were added."""
        self._types: dict[Any, Any] = {}
        self._shapes: dict[tuple[int, ...], Any] = {}
        self._compact = self._properties()
        self._compact.set_layout(h5py.h5d.COMPACT)

    def add(self, content: Content) -> None:
        """One episode; it gets the next number."""
        length, group = len(content.rewards), self._h5.h5g.create(self._root, b"episode_%d" % self.episodes)
        attributes = {"id": self.episodes, "total_steps": length}
        for name, value in (attributes if content.seed is None else {**attributes, "seed": content.seed}).items():
            self._attribute(group, name.encode(), value)
        if content.options is not None:
            from minari.dataset._storages.hdf5_storage import flatten_dict

            self._h5.Group(group).attrs.update(flatten_dict(dict(content.options), "options"))
        for name in COLUMNS:
            self._write(group, name.encode(), getattr(content, name))
        if content.infos:
            self._write_infos(group, b"infos", content.infos, length + 1)
        self.episodes += 1
        self.steps += length

    def _write_infos(self, group: Any, name: bytes, infos: Mapping[str, Any], rows: int) -> None:
        """With as many rows as observations, as Minari's have; the last one is padding."""
        inner = self._h5.h5g.create(group, name)
        for key, column in infos.items():
            if isinstance(column, Mapping):
                self._write_infos(inner, key.encode(), column, rows)
                continue
            if np.asarray(column).dtype.kind in "OU":  # text, which only sets of others have
                texts = [str(value) for value in column]
                self._h5.Group(inner).create_dataset(key, data=texts, dtype=self._h5.string_dtype())
                continue
            padded: Array = np.zeros((rows, *np.shape(column)[1:]), np.asarray(column).dtype)
            padded[: len(column)] = column
            self._write(inner, key.encode(), padded)

    def _write(self, group: Any, name: bytes, column: Nest) -> None:
        if isinstance(column, tuple):
            column = {f"_index_{i}": part for i, part in enumerate(column)}
        if isinstance(column, Mapping):
            inner = self._h5.h5g.create(group, name)
            for key, part in column.items():
                self._write(inner, key.encode(), part)
            return
        leaf = np.ascontiguousarray(column)
        kind, space = self._type(leaf.dtype), self._space(leaf.shape)
        stored = self._h5.h5d.create(group, name, kind, space, self._layout(leaf))
        if leaf.size:
            stored.write(self._h5.h5s.ALL, self._h5.h5s.ALL, leaf, kind)

    def _layout(self, leaf: Array) -> Any:
        """Pictures are compressed; all else lies there as it is."""
        row = leaf[:1].nbytes
        if leaf.dtype != np.uint8 or row < PICTURE_BYTES:
            return self._compact if leaf.nbytes <= COMPACT_BYTES else None
        layout = self._properties()
        layout.set_chunk((max(1, min(len(leaf), CHUNK_BYTES // row)), *leaf.shape[1:]))
        layout.set_deflate(1)
        return layout

    def _properties(self) -> Any:
        return self._h5.h5p.create(self._h5.h5p.DATASET_CREATE)

    def _type(self, dtype: Any) -> Any:
        if dtype not in self._types:
            self._types[dtype] = self._h5.h5t.py_create(dtype, logical=True)
        return self._types[dtype]

    def _space(self, shape: tuple[int, ...]) -> Any:
        if shape not in self._shapes:
            self._shapes[shape] = self._h5.h5s.create_simple(shape)
        return self._shapes[shape]

    def _attribute(self, group: Any, name: bytes, value: int) -> None:
        number = np.array(value, np.int64)
        scalar = self._shapes.setdefault((), self._h5.h5s.create(self._h5.h5s.SCALAR))
        self._h5.h5a.create(group, name, self._type(number.dtype), scalar).write(number)

    def commit(self, totals: Mapping[str, int], sources: Sequence[str] = ()) -> None:
        """From now on the file holds all of it, and says so."""
        self._file.attrs[ADDED] = json.dumps({**totals, "sources": list(sources)})
        self._file.close()
        sync(self._path)
        os.replace(self._path, self._final)
        sync(self._final.parent)

    def close(self) -> None:
        """Forget what was not committed."""
        try:
            self._file.close()
        finally:
            with suppress(FileNotFoundError):
                self._path.unlink()


def last_added(folder: Path) -> dict[str, Any]:
    """Totals and sources of what was committed last; empty where nothing was."""
    import h5py

    path = folder / MAIN_FILE
    if not path.is_file() or not path.stat().st_size:
        return {}
    with h5py.File(path, "r", locking="best-effort") as file:
        found: dict[str, Any] = json.loads(file.attrs.get(ADDED, "{}"))
    return found
