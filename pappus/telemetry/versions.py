"""What produced a file: versions of the packages that matter, and the commit."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path

PACKAGES = ("pappus", "torch", "numpy", "gymnasium")


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
