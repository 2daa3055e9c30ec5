"""Checkpoints: any nest of state as safetensors + JSON, and a store of them that survives being killed.

    checkpoints/
      step-000000012345/   whole: it got this name only after every byte was on the disk
        checkpoint.json    format, versions, metadata, size and sha256 of every other file
        learner.json  learner.safetensors  …
      .partial-step-…/     being written, or left by a run that was killed
      best                 the name of the best one
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch

from pappus.errors import PappusError, RunError
from pappus.telemetry.files import sync, write_text
from pappus.telemetry.manifest import NewerFormatError, sequence_of, verify, write_manifest
from pappus.telemetry.state_codec import Encoder, decode

PARTIAL, REPLACED = ".partial-", ".replaced-"


def save_state(directory: Path | str, name: str, state: Any) -> None:
    """Write a nest of tensors, arrays and plain values as NAME.safetensors and NAME.json; tensors move to the CPU."""
    encoder = Encoder()
    text = json.dumps(encoder.encode(state), indent=1, allow_nan=False)
    safetensors.torch.save_file(encoder.tensors, str(Path(directory) / f"{name}.safetensors"))
    (Path(directory) / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def load_state(directory: Path | str, name: str) -> Any:
    """The nest that `save_state` wrote, types and values exact; tensors are on the CPU and need no gradient."""
    tree, tensors = Path(directory) / f"{name}.json", Path(directory) / f"{name}.safetensors"
    for path in (tree, tensors):
        if not path.is_file():
            raise RunError(f"checkpoint {str(directory)!r} lacks {path.name}; use an earlier checkpoint of the run")
    try:
        return decode(json.loads(tree.read_text(encoding="utf-8")), safetensors.torch.load_file(tensors))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, safetensors.SafetensorError) as error:
        raise RunError(
            f"checkpoint {str(directory)!r} is damaged, {name}: {error}; use an earlier checkpoint of the run"
        ) from None


class CheckpointStore:
    """The checkpoints of one run. One process writes; without `keep_last` the store only reads and removes nothing."""

    def __init__(self, directory: Path | str, keep_last: int | None = None) -> None:
        self.directory = Path(directory)
        self.warnings: list[str] = []
        """What `latest` and `best` skipped, and why."""
        self._keep_last = keep_last
        if keep_last is not None:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._clear_leftovers()

    def begin(self, step: int) -> Path:
        """A temporary directory to write the state at `step` into; nothing counts before `commit`."""
        if self._keep_last is None:
            raise ValueError("this store only reads; open it with keep_last to write")
        temporary = self.directory / f"{PARTIAL}step-{step:012d}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        return temporary

    def commit(self, temporary: Path, metadata: dict[str, Any]) -> Path:
        """Make a checkpoint of what was written, and drop the oldest beyond `keep_last`, never the best."""
        target = self.directory / temporary.name.removeprefix(PARTIAL)
        replaced = self.directory / f"{REPLACED}{target.name}"
        sequence = 1 + max(map(sequence_of, self._checkpoints()), default=0)
        write_manifest(temporary, int(target.name.removeprefix("step-")), sequence, metadata)
        shutil.rmtree(replaced, ignore_errors=True)
        if target.exists():
            os.rename(target, replaced)
        os.rename(temporary, target)
        sync(self.directory)
        shutil.rmtree(replaced, ignore_errors=True)
        self._prune()
        return target

    def mark_best(self, path: Path) -> None:
        """Name the checkpoint that is never pruned."""
        write_text(self.directory / "best", path.name + "\n")

    def best(self) -> Path | None:
        """The checkpoint marked best; None if none was, or if it is damaged (with a warning)."""
        name = self._best_name()
        return self.directory / name if name and self._is_good(self.directory / name) else None

    def latest(self) -> Path | None:
        """The newest good checkpoint, None if there are none; damaged newer ones are skipped with a warning.

        One in a newer format is refused, not skipped: going on from an older one would lose what it holds.
        """
        checkpoints = self._checkpoints()
        for path in sorted(checkpoints, key=lambda path: (sequence_of(path) > 0, -sequence_of(path))):
            if self._is_good(path):
                return path
        if checkpoints:
            raise RunError(f"no checkpoint in {str(self.directory)!r} is usable: {self.warnings[-1]}")
        return None

    def verify(self, path: Path) -> dict[str, Any]:
        """The manifest of a good checkpoint (`step`, `metadata`, `versions`, …), or an error saying what is wrong."""
        return verify(path)

    def _checkpoints(self) -> list[Path]:
        return [path for path in sorted(self.directory.glob("step-*")) if path.is_dir()]

    def _is_good(self, path: Path) -> bool:
        try:
            verify(path)
        except NewerFormatError:
            raise
        except PappusError as error:
            self.warnings.append(str(error))
            return False
        return True

    def _best_name(self) -> str:
        try:
            return (self.directory / "best").read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return ""

    def _prune(self) -> None:
        newest_first = sorted(self._checkpoints(), key=sequence_of, reverse=True)
        best = self._best_name()
        for path in newest_first[max(1, self._keep_last or 1) :]:
            if path.name != best:
                self._remove(path)

    def _remove(self, path: Path) -> None:
        """Rename first: a checkpoint under its own name is never half deleted."""
        condemned = self.directory / f"{REPLACED}{path.name}"
        shutil.rmtree(condemned, ignore_errors=True)
        os.rename(path, condemned)
        shutil.rmtree(condemned, ignore_errors=True)

    def _clear_leftovers(self) -> None:
        """A killed run leaves half a checkpoint, or a whole one that only lacks its name."""
        for leftover in [*self.directory.glob(f"{PARTIAL}*"), *self.directory.glob(f"{REPLACED}*")]:
            target = self.directory / leftover.name.removeprefix(PARTIAL).removeprefix(REPLACED)
            if not target.exists() and _is_whole(leftover):
                os.rename(leftover, target)
            else:
                shutil.rmtree(leftover, ignore_errors=True)


def _is_whole(path: Path) -> bool:
    try:
        verify(path)
    except PappusError:
        return False
    return True
