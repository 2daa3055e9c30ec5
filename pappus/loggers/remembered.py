"""What a run is called where its metrics go, in its `loggers.json`: a resumed one goes on there."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pappus.telemetry.files import write_json

FILE = "loggers.json"
PROJECT = "pappus"
"""Project, or experiment, where the tool's own environment variable names none."""


def known_id(directory: Path, logger: str) -> str:
    """Empty for a run that has none."""
    path = directory / FILE
    return str(json.loads(path.read_text()).get(logger, "")) if path.is_file() else ""


def keep_id(directory: Path, logger: str, name: str) -> None:
    path = directory / FILE
    known = json.loads(path.read_text()) if path.is_file() else {}
    write_json(path, {**known, logger: name})


def project_of(variable: str) -> str:
    """The project that the user's environment names."""
    return os.environ.get(variable) or PROJECT


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested config by dotted names."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found
