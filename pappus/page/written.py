"""What a run writes for pages beside its metrics: `program.json` when it begins, `now.json` every few seconds.

Both may be missing, of a run that was made elsewhere or by an older version: then a page shows no figure.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from pappus.page.document import Difference, Now, Phase, ProgramDocument
from pappus.telemetry.files import jsonable

PROGRAM, NOW = "program.json", "now.json"


class Started(TypedDict):
    """`program.json`: what is known of a run from its beginning on."""

    version: int
    topology: str
    algorithm: str
    command: str
    began: float
    machine: str
    git_hash: str | None
    versions: dict[str, str]
    differs: list[Difference]
    program: ProgramDocument


class Moment(TypedDict):
    """`now.json`: what a run does."""

    version: int
    phase: Phase
    now: Now


def write_quickly(path: Path, content: Mapping[str, Any]) -> bool:
    """Write JSON by rename, without waiting for the disk: who reads it sees all of it or what was there before. False
    where it cannot be written; the run goes on without."""
    temporary = path.with_name(f".{path.name}.partial")
    try:
        temporary.write_text(json.dumps(jsonable(content), allow_nan=False, separators=(",", ":")), encoding="utf-8")
        os.replace(temporary, path)
    except (OSError, ValueError, TypeError):
        with contextlib.suppress(OSError):
            temporary.unlink()
        return False
    return True
