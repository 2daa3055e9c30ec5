"""`pappus data list`: the data sets below a folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pappus.data.assemble import complete
from pappus.data.dataset import lengths_and_returns, open_dataset
from pappus.data.metadata import METADATA, minari_root
from pappus.data.recorder import PARTS, SPEC
from pappus.errors import UserError


@dataclass(frozen=True)
class Listed:
    """One data set as its metadata describes it."""

    name: str
    env: str
    episodes: int
    steps: int
    mean_return: float | None
    bytes: int
    problem: str = ""


def list_datasets(folder: str | None = None) -> list[Listed]:
    """The sets below a folder, or below Minari's root, by name."""
    root = minari_root() if folder is None else Path(folder)
    if not root.is_dir():
        raise UserError(f"{str(root)!r} is no folder; name one that holds data sets, or record a first one")
    return [_listed(data, root) for data in sorted(_data_folders(root))]


def listing_table(found: list[Listed]) -> str:
    """The sets as rows of text; below them, what is wrong with those that cannot be read."""
    if not found:
        return "no data sets here; pappus train … --record DIR records one"
    head = ("data set", "env", "episodes", "steps", "mean return", "size")
    rows = [head, *(_row(one) for one in found)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    problems = [f"problem: {one.problem}" for one in found if one.problem]
    return "\n".join([*(_aligned(row, widths) for row in rows), *problems])


def _aligned(row: tuple[str, ...], widths: list[int]) -> str:
    sized = enumerate(zip(row, widths, strict=True))
    cells = [cell.ljust(width) if i < 2 else cell.rjust(width) for i, (cell, width) in sized]
    return "  ".join(cells).rstrip()


def _row(one: Listed) -> tuple[str, ...]:
    if one.problem:
        return (one.name, "unreadable", "", "", "", size_text(one.bytes))
    mean = "?" if one.mean_return is None else f"{one.mean_return:,.1f}"
    return (one.name, one.env or "?", f"{one.episodes:,}", f"{one.steps:,}", mean, size_text(one.bytes))


def _data_folders(root: Path) -> Iterator[Path]:
    """Folders `…/data` with metadata, or where it is missing since parts could not be completed; what lies within a set
    is not searched. What a dead run left is completed."""
    for path, folders, files in os.walk(root):
        if (Path(path) / PARTS / SPEC).is_file():
            with suppress(UserError):  # somebody still records there, or it is said of the set
                complete(Path(path))
            folders[:] = [name for name in os.listdir(path) if (Path(path) / name).is_dir()]
            if (Path(path) / PARTS / SPEC).is_file() and not (Path(path) / "data" / METADATA).is_file():
                yield Path(path) / "data"
        if METADATA in files and Path(path).name == "data":
            folders.clear()
            yield Path(path)


def _listed(data: Path, root: Path) -> Listed:
    name = str(data.parent.relative_to(root)) if data.parent != root else data.parent.name
    try:
        dataset = open_dataset(data)
        returns = lengths_and_returns(dataset)[1]
    except UserError as error:
        return Listed(name, "", 0, 0, None, size_of(data), str(error))
    mean = float(returns.mean()) if len(returns) else None
    return Listed(name, dataset.env, dataset.num_episodes, dataset.num_steps, mean, size_of(data))


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def size_text(size: int) -> str:
    """`1.5 MB`."""
    value, unit = float(size), "B"
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} B" if unit == "B" else f"{value:,.1f} {unit}"
