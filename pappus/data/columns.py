"""Columns of plain files, by name: NumPy (`.npz`, or a folder of `.npy`), Parquet, and flat HDF5 such as D4RL's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from pappus.data.metadata import INSTALL
from pappus.errors import UserError
from pappus.types import Array

USUAL: dict[str, tuple[str, ...]] = {
    "observation": ("observations", "observation", "obs", "states", "state"),
    "action": ("actions", "action"),
    "reward": ("rewards", "reward"),
    "terminated": ("terminals", "terminations", "terminated", "terminal"),
    "truncated": ("timeouts", "truncations", "truncated", "timeout"),
    "next_observation": ("next_observations", "next_observation", "next_obs", "next_states", "next_state"),
    "episode": ("episode_id", "episode_ids", "episode", "episodes"),
    "log_prob": ("log_prob", "log_probs", "infos/action_log_probs"),
}
"""Names by which columns are recognised, D4RL's first."""
NEEDED = ("observation", "action", "reward")


@dataclass(frozen=True)
class Columns:
    """The columns of one file, a row per step; None where there is none."""

    observation: Array
    action: Array
    reward: Array
    terminated: Array | None = None
    truncated: Array | None = None
    next_observation: Array | None = None
    episode: Array | None = None
    log_prob: Array | None = None


def read_columns(file: Path, names: dict[str, str]) -> Columns:
    """The columns of a file; `names` says what they are called where that is not usual."""
    known, read = _opened(file)
    chosen = {kind: _chosen(kind, names.get(kind, ""), known, file) for kind in USUAL}
    if not any(chosen[kind] for kind in ("terminated", "truncated", "episode")):
        raise UserError(
            f"{str(file)!r} does not say where episodes end: it has {', '.join(known)}; name a column with "
            "--terminated, --truncated or --episode"
        )
    found = Columns(**{kind: _stacked([read(name) for name in listed]) for kind, listed in chosen.items() if listed})
    for field in fields(found):
        if (column := getattr(found, field.name)) is not None and not column.ndim:
            raise UserError(f"column {field.name} of {str(file)!r} is a lone number; give one value a row")
    rows = {field.name: len(column) for field in fields(found) if (column := getattr(found, field.name)) is not None}
    if len(set(rows.values())) > 1:
        raise UserError(f"columns of {str(file)!r} differ in length: {rows}; they must have a row per step")
    return found


def _chosen(kind: str, name: str, known: Sequence[str], file: Path) -> list[str]:
    """The names of the columns that make up one of ours."""
    option = f"--{kind.replace('_', '-')}"
    if name:
        listed = name.split(",")
        missing = [one for one in listed if one not in known]
        if missing:
            raise UserError(f"{str(file)!r} has no column {missing[0]!r} for {option}; it has {', '.join(known)}")
        return listed
    usual = [one for one in USUAL[kind] if one in known]
    if kind in NEEDED and not usual:
        raise UserError(f"{str(file)!r} has no column {USUAL[kind][0]!r}; name it with {option}: {', '.join(known)}")
    return usual[:1]


def _stacked(columns: list[Array]) -> Array:
    """Several columns of numbers are the entries of one vector."""
    return columns[0] if len(columns) == 1 else np.stack([column.reshape(len(column)) for column in columns], axis=1)


def _opened(file: Path) -> tuple[list[str], Callable[[str], Array]]:
    """Names of the columns, and how to read one."""
    readers = {".npz": _npz, ".parquet": _parquet, ".hdf5": _hdf5, ".h5": _hdf5}
    if not file.exists():
        raise UserError(f"{str(file)!r} does not exist; name files to import")
    if not file.is_dir() and file.suffix not in readers:
        raise UserError(f"{str(file)!r} cannot be imported; use .npz, a folder of .npy, .parquet, or flat .hdf5")
    try:
        return _npy_folder(file) if file.is_dir() else readers[file.suffix](file)
    except ModuleNotFoundError as error:
        raise UserError(f"{str(file)!r} needs {error.name}, which is not installed; {INSTALL}") from None
    except Exception as error:  # whatever the packages raise: the file is not what its name says
        raise UserError(f"{str(file)!r} cannot be read: {_reason(error)}") from None


def _npz(file: Path) -> tuple[list[str], Callable[[str], Array]]:
    content = np.load(file, allow_pickle=False)
    return list(content.files), _safely(file, lambda name: content[name])


def _npy_folder(folder: Path) -> tuple[list[str], Callable[[str], Array]]:
    found = {path.stem: path for path in sorted(folder.glob("*.npy"))}
    return list(found), _safely(folder, lambda name: np.load(found[name], mmap_mode="r", allow_pickle=False))


def _parquet(file: Path) -> tuple[list[str], Callable[[str], Array]]:
    import pyarrow
    import pyarrow.parquet

    opened = pyarrow.parquet.ParquetFile(file)

    def read(name: str) -> Array:
        column = opened.read(columns=[name]).column(name).combine_chunks()
        rows = column.to_numpy(zero_copy_only=False)
        return np.stack(rows) if pyarrow.types.is_nested(column.type) else np.array(rows)

    return list(opened.schema_arrow.names), _safely(file, read)


def _hdf5(file: Path) -> tuple[list[str], Callable[[str], Array]]:
    import h5py

    opened, names = h5py.File(file, "r"), []

    def note(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.shape:
            names.append(name)

    opened.visititems(note)
    return names, _safely(file, lambda name: opened[name][()])


def _safely(file: Path, read: Callable[[str], Array]) -> Callable[[str], Array]:
    def column(name: str) -> Array:
        try:
            return np.asarray(read(name))
        except Exception as error:  # such as rows of different lengths, or Python objects
            raise UserError(f"column {name!r} of {str(file)!r} cannot be read: {_reason(error)}") from None

    return column


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return "it holds Python objects, or is no NumPy file; only arrays of numbers are read" if "pickle" in text else text
