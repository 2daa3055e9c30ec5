"""Whether a folder holds the checkpoint that is asked for, or is free for a new run."""

from __future__ import annotations

from pathlib import Path

from pappus.errors import UserError
from pappus.telemetry.checkpoint import REMOVE_IT, CheckpointStore, has_checkpoint
from pappus.trust import RUN_FILE


def find_checkpoint(run: Path, which: str) -> Path:
    """The `latest` or the `best` checkpoint of a run directory."""
    store = CheckpointStore(run / "checkpoints")
    path = store.best() if which == "best" else store.latest()
    if path is None:
        if not run.is_dir():
            raise UserError(f"{str(run)!r} holds no {which} checkpoint, as it is no folder; name a run directory")
        why = f": {store.warnings[-1]}" if store.warnings else ""
        remedy = "use --checkpoint latest" if which == "best" and store.latest() else "train it first"
        raise UserError(f"{str(run)!r} holds no {which} checkpoint{why}; {remedy}")
    return path


def check_free(directory: Path) -> None:
    """Raise `UserError` where no new run can begin: there is one already, or a file."""
    try:
        begun = (directory / RUN_FILE).exists()
    except OSError as error:  # a name that no folder can have
        raise UserError(f"run_dir={str(directory)!r:.60} cannot be made: {error.strerror}; give another") from None
    if begun:
        again = f"give another, or go on with --resume {directory}"
        remedy = again if has_checkpoint(directory / "checkpoints") else f"it saved no checkpoint; {REMOVE_IT}"
        raise UserError(f"run_dir={str(directory)!r} holds a run already; {remedy}")
    there = next(path for path in (directory, *directory.absolute().parents) if path.exists())
    if not there.is_dir():
        raise UserError(f"run_dir={str(directory)!r} cannot be made: {str(there)!r} is a file; give another")
