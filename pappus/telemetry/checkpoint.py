"""Checkpoints: any nest of state as safetensors + JSON, and a store of them that survives being killed.

    checkpoints/
      step-000000012345/   whole: it got this name only after every byte was on the disk
        checkpoint.json    format, versions, metadata, size and sha256 of every other file, and its own sha256
        learner.json  learner.safetensors  …
      .partial-step-…/     being written, or left by a run that was killed
      best                 the name of the best one
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors

from pappus.errors import PappusError, RunError, StorageError, UserError
from pappus.layout import Layout
from pappus.telemetry.files import jsonable, sync, versions, write_json, write_text
from pappus.telemetry.state_codec import Encoder, decode

PARTIAL, REPLACED = ".partial-", ".replaced-"
MANIFEST = "checkpoint.json"
GARBAGE = "?"
"""What the file `best` names when it names nothing."""
REMOVE_IT = "remove it and start anew, or start with another --run-dir"
SEAL = "sha256"
"""Key of the manifest's own digest; older ones have none."""
CONFIG = "config_sha256"
"""Key of a checkpoint's metadata: of the settings that the run had when it was written."""
ROUNDS, HASHES, AFRESH = "rounds", "state_sha256", "afresh"
"""Keys of a checkpoint's metadata, in the inline runtime: how far the run is, the hash of every role's state, and why
it cannot be continued exactly (empty if it can)."""
FORMAT = "pappus-checkpoint"
FORMAT_VERSION = 2
"""1: the weights were one flat tensor. It is read, too."""


class NewerFormatError(UserError):
    """A checkpoint that a later Pappus wrote."""


def save_state(directory: Path | str, name: str, state: Any, layout: Layout = ()) -> None:
    """Write a nest of tensors, arrays and plain values as NAME.safetensors and NAME.json; tensors move to the CPU, and
    `layout` names those in the flat `weights`. `StorageError` if they cannot be written; then neither file is left."""
    from safetensors.torch import save_file

    encoder = Encoder(layout)
    text = json.dumps(encoder.encode(state), indent=1, allow_nan=False)
    tree, tensors = Path(directory) / f"{name}.json", Path(directory) / f"{name}.safetensors"
    try:
        save_file(encoder.tensors, str(tensors))
        tree.write_text(text + "\n", encoding="utf-8")
    except (OSError, safetensors.SafetensorError) as error:
        for path in (tree, tensors):
            with contextlib.suppress(OSError):
                path.unlink()
        raise StorageError(f"{name} cannot be written to {str(directory)!r}: {error}") from None


def load_state(directory: Path | str, name: str) -> Any:
    """The nest that `save_state` wrote, types and values exact; tensors are on the CPU and need no gradient."""
    from safetensors.torch import load_file

    tree, tensors = Path(directory) / f"{name}.json", Path(directory) / f"{name}.safetensors"
    for path in (tree, tensors):
        if not path.is_file():
            raise RunError(f"checkpoint {str(directory)!r} lacks {path.name}; use an earlier checkpoint of the run")
    try:
        return decode(json.loads(tree.read_text(encoding="utf-8")), load_file(tensors))
    except Exception as error:  # it never was a nest of ours
        raise _damaged(Path(directory), name, f"{type(error).__name__}: {error}") from None


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
        """A temporary directory to write the state at `step` into; nothing counts before `commit`. `StorageError` if
        there can be none."""
        if self._keep_last is None:
            raise ValueError("this store only reads; open it with keep_last to write")
        temporary = self.directory / f"{PARTIAL}step-{step:012d}"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            temporary.mkdir(parents=True)  # the run's directory may have been removed
        except OSError as error:
            raise StorageError(f"{str(temporary)!r} cannot be made: {error.strerror}") from None
        return temporary

    def discard(self, temporary: Path) -> None:
        """Remove what was written for a checkpoint that is not to be: it takes room that the next one needs."""
        shutil.rmtree(temporary, ignore_errors=True)

    def commit(self, temporary: Path, metadata: dict[str, Any]) -> Path:
        """Make a checkpoint of what was written, and drop the oldest beyond `keep_last`, never the best. `StorageError`
        if that fails; then all earlier checkpoints are as they were."""
        target = self.directory / temporary.name.removeprefix(PARTIAL)
        try:
            sequence = 1 + max(map(_sequence_of, self._checkpoints()), default=0)
            _write_manifest(temporary, int(target.name.removeprefix("step-")), sequence, metadata)
            replaced = self._put_in_place(temporary, target)
        except OSError as error:
            raise StorageError(f"{str(target)!r} cannot be written: {error.strerror}") from None
        shutil.rmtree(replaced, ignore_errors=True)
        with contextlib.suppress(OSError):  # old ones are removed after the next checkpoint, then
            self._prune()
        return target

    def _put_in_place(self, temporary: Path, target: Path) -> Path:
        """Give a checkpoint its name; where one of the same name was put."""
        replaced = self._set_aside(target)
        try:
            os.rename(temporary, target)
            sync(self.directory)
        except OSError:
            if replaced.exists() and not target.exists():
                os.rename(replaced, target)
            raise
        return replaced

    def mark_best(self, path: Path) -> None:
        """Name the checkpoint that is never pruned; `StorageError` if the name cannot be written."""
        try:
            write_text(self.directory / "best", path.name + "\n")
        except OSError as error:
            raise StorageError(f"{str(self.directory / 'best')!r} cannot be written: {error.strerror}") from None

    def best(self) -> Path | None:
        """The checkpoint marked best; None if none was, or if it is damaged (with a warning)."""
        name = self._best_name()
        if name == GARBAGE:
            self.warnings.append(f"{str(self.directory / 'best')!r} names no checkpoint")
            return None
        return self.directory / name if name and self._is_good(self.directory / name) else None

    def latest(self) -> Path | None:
        """The newest good checkpoint, None if there are none. Damaged newer ones are skipped with a warning; one in a
        newer format is refused: continuing from an older one would lose what it holds."""
        checkpoints = self._checkpoints()
        for path in sorted(checkpoints, key=lambda path: (_sequence_of(path) > 0, -_sequence_of(path))):
            if self._is_good(path):
                return path
        if checkpoints:
            raise RunError(f"no checkpoint in {str(self.directory)!r} is usable: {self.warnings[-1]}")
        return None

    def in_order(self) -> list[Path]:
        """All checkpoints, oldest first; `RunError` if one is damaged."""
        paths = sorted(self._checkpoints(), key=_sequence_of)
        for path in paths:
            verify(path)
        return paths

    def _checkpoints(self) -> list[Path]:
        return [path for path in sorted(self.directory.glob("step-*")) if path.is_dir()]

    def _is_good(self, path: Path) -> bool:
        problem = _problem(path)
        if isinstance(problem, NewerFormatError):
            raise problem
        if problem:
            self.warnings.append(str(problem))
        return problem is None

    def _best_name(self) -> str:
        try:
            name = (self.directory / "best").read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return ""
        except (OSError, ValueError):
            return GARBAGE
        return name if re.fullmatch(r"step-\d+", name, re.ASCII) else GARBAGE

    def _prune(self) -> None:
        newest_first = sorted(self._checkpoints(), key=_sequence_of, reverse=True)
        best = self._best_name()
        for path in newest_first[max(1, self._keep_last or 1) :]:
            if path.name != best:
                shutil.rmtree(self._set_aside(path), ignore_errors=True)

    def _set_aside(self, path: Path) -> Path:
        """Rename a checkpoint before it is deleted: one under its own name is never half deleted."""
        replaced = self.directory / f"{REPLACED}{path.name}"
        shutil.rmtree(replaced, ignore_errors=True)
        if path.exists():
            os.rename(path, replaced)
        return replaced

    def _clear_leftovers(self) -> None:
        """A killed run leaves half a checkpoint, or a whole one that only lacks its name."""
        for leftover in [*self.directory.glob(f"{PARTIAL}*"), *self.directory.glob(f"{REPLACED}*")]:
            target = self.directory / leftover.name.removeprefix(PARTIAL).removeprefix(REPLACED)
            if not target.exists() and _problem(leftover) is None:
                os.rename(leftover, target)
            else:
                shutil.rmtree(leftover, ignore_errors=True)


def run_directory(checkpoint: Path) -> Path:
    """The directory of the run that a checkpoint belongs to, be it a temporary one."""
    return checkpoint.parent.parent


def has_checkpoint(directory: Path) -> bool:
    """Whether a checkpoint is there, be it one that a killed run left under another name."""
    named = (*directory.glob("step-*"), *directory.glob(f"{PARTIAL}step-*"), *directory.glob(f"{REPLACED}step-*"))
    return any(path.name.startswith("step-") or _problem(path) is None for path in named)


def fallback_of(directory: Path, written: Mapping[str, Any]) -> Path | None:
    """Where checkpoints of a run may be that its own directory could not take, by its config.yaml."""
    storage = written.get("storage")
    folder = storage.get("fallback_dir") if isinstance(storage, dict) else None
    return Path(folder) / directory.resolve().name if isinstance(folder, str) and folder else None


def no_checkpoint(directory: Path) -> UserError:
    """What to say where a run directory cannot be resumed."""
    return UserError(f"{str(directory)!r} holds no checkpoint to resume from; {REMOVE_IT}")


def _problem(path: Path) -> PappusError | None:
    try:
        verify(path)
    except PappusError as error:
        return error
    return None


def _write_manifest(directory: Path, step: int, sequence: int, metadata: dict[str, Any]) -> None:
    """Describe the files of a finished checkpoint; everything is on the disk when this returns."""
    files = {}
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        sync(path)
        files[path.relative_to(directory).as_posix()] = {"bytes": path.stat().st_size, "sha256": _digest(path)}
    content = jsonable({
        "format": FORMAT, "format_version": FORMAT_VERSION, "step": step, "sequence": sequence, "versions": versions(),
        "metadata": metadata, "files": files,
    })
    write_json(directory / MANIFEST, {**content, SEAL: _seal(content)})


def _seal(content: dict[str, Any]) -> str:
    """A digest of the manifest itself, which lists all the others."""
    rest = {key: value for key, value in content.items() if key != SEAL}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def read_manifest(directory: Path) -> dict[str, Any]:
    """The manifest, if it is one that this version reads; the files that it names are not checked."""
    if not directory.is_dir():
        raise UserError(f"checkpoint {str(directory)!r} does not exist; pass a RUN/checkpoints/step-… directory")
    try:
        content = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(
            f"{str(directory)!r} is no checkpoint, it has no {MANIFEST}; pass a RUN/checkpoints/step-… directory"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(directory, MANIFEST, str(error)) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"{str(directory / MANIFEST)!r} was not written by Pappus; pass a checkpoint of a Pappus run")
    version = content.get("format_version")
    if not isinstance(version, int):
        raise _damaged(directory, MANIFEST, f"its format_version is {version!r}")
    if version > FORMAT_VERSION:
        versions_there = content.get("versions")
        writer = versions_there.get("pappus", "unknown") if isinstance(versions_there, dict) else "unknown"
        raise NewerFormatError(
            f"checkpoint {str(directory)!r} has format {version} (Pappus {writer}), this Pappus reads up to "
            f"{FORMAT_VERSION}; upgrade Pappus"
        )
    if content.get(SEAL, _seal(content)) != _seal(content) or not isinstance(content.get("metadata"), dict):
        raise _damaged(directory, MANIFEST, "its content changed since it was written")
    return content


def verify(directory: Path) -> dict[str, Any]:
    """The manifest (`step`, `metadata`, `versions`, …) of a checkpoint whose every file is as it was written; otherwise
    `UserError` or `RunError`."""
    content = read_manifest(directory)
    try:
        expected = {name: (entry["bytes"], entry["sha256"]) for name, entry in content["files"].items()}
    except (KeyError, TypeError, AttributeError):
        raise _damaged(directory, MANIFEST, "it lists no files") from None
    for name, (size, digest) in expected.items():
        path = directory / name
        if not path.is_file() or not path.resolve().is_relative_to(directory.resolve()):
            raise _damaged(directory, name, "it is missing")
        if path.stat().st_size != size:
            raise _damaged(directory, name, f"it has {path.stat().st_size} bytes instead of {size}")
        if _digest(path) != digest:
            raise _damaged(directory, name, "its content changed since it was written")
    return content


def _sequence_of(directory: Path) -> int:
    """The number of a checkpoint within its run, from 1; 0 if it does not say."""
    try:
        return int(json.loads((directory / MANIFEST).read_text(encoding="utf-8"))["sequence"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return 0


def _damaged(directory: Path, name: str, why: str) -> RunError:
    return RunError(f"checkpoint {str(directory)!r} is damaged, {name}: {why}; use an earlier checkpoint of the run")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
