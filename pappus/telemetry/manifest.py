"""checkpoint.json: what a checkpoint consists of, and whether it is still whole."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pappus.errors import RunError, UserError
from pappus.telemetry.files import sync, write_json
from pappus.telemetry.versions import versions

MANIFEST = "checkpoint.json"
FORMAT = "pappus-checkpoint"
FORMAT_VERSION = 1


class NewerFormatError(UserError):
    """A checkpoint that a later Pappus wrote."""


def write_manifest(directory: Path, step: int, sequence: int, metadata: dict[str, Any]) -> None:
    """Describe the files of a finished checkpoint; everything is on the disk when this returns."""
    files = {}
    for path in sorted(path for path in directory.rglob("*") if path.is_file()):
        sync(path)
        files[path.relative_to(directory).as_posix()] = {"bytes": path.stat().st_size, "sha256": _digest(path)}
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "step": step,
        "sequence": sequence,
        "versions": versions(),
        "metadata": metadata,
        "files": files,
    }
    write_json(directory / MANIFEST, content)


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
    except (OSError, ValueError) as error:
        raise _damaged(directory, MANIFEST, str(error)) from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise UserError(f"{str(directory / MANIFEST)!r} was not written by Pappus; pass a checkpoint of a Pappus run")
    _refuse_newer(directory, content)
    return content


def verify(directory: Path) -> dict[str, Any]:
    """The manifest of a checkpoint whose every file is as it was written; otherwise `UserError` or `RunError`."""
    content = read_manifest(directory)
    try:
        expected = {name: (entry["bytes"], entry["sha256"]) for name, entry in content["files"].items()}
    except (KeyError, TypeError, AttributeError):
        raise _damaged(directory, MANIFEST, "it lists no files") from None
    for name, (size, digest) in expected.items():
        path = directory / name
        if not path.is_file():
            raise _damaged(directory, name, "it is missing")
        if path.stat().st_size != size:
            raise _damaged(directory, name, f"it has {path.stat().st_size} bytes instead of {size}")
        if _digest(path) != digest:
            raise _damaged(directory, name, "its content changed since it was written")
    return content


def sequence_of(directory: Path) -> int:
    """The number of a checkpoint within its run, from 1; 0 if it does not say."""
    try:
        return int(json.loads((directory / MANIFEST).read_text(encoding="utf-8"))["sequence"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _refuse_newer(directory: Path, content: dict[str, Any]) -> None:
    version = content.get("format_version")
    if not isinstance(version, int):
        raise _damaged(directory, MANIFEST, f"its format_version is {version!r}")
    if version > FORMAT_VERSION:
        writer = content.get("versions", {}).get("pappus", "unknown")
        raise NewerFormatError(
            f"checkpoint {str(directory)!r} has format {version} (Pappus {writer}), this Pappus reads up to "
            f"{FORMAT_VERSION}; upgrade Pappus"
        )


def _damaged(directory: Path, name: str, why: str) -> RunError:
    return RunError(f"checkpoint {str(directory)!r} is damaged, {name}: {why}; use an earlier checkpoint of the run")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
