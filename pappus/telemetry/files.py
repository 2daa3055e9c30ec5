"""Files that are whole or absent whenever the power goes, versions of what wrote them, and the lock of a run."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from pappus.errors import UserError

PACKAGES = ("pappus", "torch", "numpy", "gymnasium")


def write_json(path: Path, content: Any, durable: bool = True) -> None:
    write_text(path, json.dumps(jsonable(content), indent=2, allow_nan=False) + "\n", durable)


def write_text(path: Path, text: str, durable: bool = True) -> None:
    """Write text beside `path` and rename it into place. Not `durable`: without waiting for the disk."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        temporary.write_text(text, encoding="utf-8")
        if durable:
            sync(temporary)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()  # on a full disk, half a file takes room that others need
        raise
    if durable:
        sync(path.parent)


def sync(path: Path) -> None:
    """Wait until a file's content (or a directory's entries) is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def last_line(path: Path) -> dict[str, Any]:
    """The last whole line of a file with a JSON object on each; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 65_536))
            lines = file.read().split(b"\n")[:-1]
        return dict(json.loads(lines[-1]))
    except (OSError, IndexError, ValueError, TypeError):
        return {}


def jsonable(value: Any) -> Any:
    """`value` with NumPy numbers made plain, and None for NaN and infinities, which JSON cannot say."""
    if isinstance(value, dict):
        return {key: jsonable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    numpy: Any = sys.modules.get("numpy")  # without which there are no such values
    if numpy is not None and isinstance(value, numpy.generic):
        return jsonable(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def versions() -> dict[str, str]:
    """Installed versions, `unknown` for a package that is used from its source tree."""
    return {"python": platform.python_version()} | {package: _version(package) for package in PACKAGES}


def git_hash(directory: Path | None = None) -> str | None:
    """Commit of the repository around `directory` (default: the working directory), `-dirty` if changed."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        result = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Two runs must not write to one directory."""
    try:
        file = (directory / "lock").open("w")
    except OSError as error:
        raise UserError(f"run_dir={str(directory)!r} cannot be written: {error.strerror}; give another") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{str(directory)!r} is in use by a running process; wait for its end or stop it") from None
        yield
