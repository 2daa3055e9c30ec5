"""Which checkpoints in a folder are whose, and in which order they were written.

Every checkpoint has a number in its sealed manifest, one more than the highest beside it: clocks go back, and names
can be anybody's. It also says whether the keeper of the folder named it. Only those are ever removed; a checkpoint
that a client named stays until somebody removes it.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection
from pathlib import Path

from pappus.replay.service.checkpoint import is_own, save, sequence_of
from pappus.replay.service.service import Service


def write_own(service: Service, folder: Path, after: int = 0, alone: bool = False) -> Path:
    """Write a checkpoint under the next free number beyond `after`; `StorageError` if it cannot be written. `alone`: as
    in `save`."""
    number = 1 + max(map(sequence_of, saved_in(folder)), default=0)
    number = max(number, after + 1)
    while (folder / own_name(number)).exists():  # a name that a client took, or a damaged checkpoint
        number += 1
    return save(service, folder / own_name(number), own=True, alone=alone)


def own_name(number: int) -> str:
    return f"replay-{number:020d}"


def newest_first(folder: Path) -> list[Path]:
    """All checkpoints. Those from before they were numbered come last, in the order of their files' times."""
    return sorted(saved_in(folder), key=lambda path: (sequence_of(path), path.stat().st_mtime_ns), reverse=True)


def remove_own(folder: Path, kept: Collection[Path]) -> None:
    """Remove the keeper's own checkpoints but for those in `kept`."""
    for path in saved_in(folder):
        if path not in kept and is_own(path):
            shutil.rmtree(path, ignore_errors=True)


def newest_own(folder: Path, count: int) -> list[Path]:
    return [path for path in newest_first(folder) if is_own(path)][:count]


def saved_in(folder: Path) -> list[Path]:
    """Everything that is named as a checkpoint."""
    return [path for path in folder.iterdir() if path.name.startswith("replay-")] if folder.is_dir() else []
