"""What `--resume-or-start` finds in a folder: nothing, a run to continue, one that is finished, or a population."""

from __future__ import annotations

import enum
import json
import shutil
from pathlib import Path

from pappus.config import RunConfig
from pappus.errors import UserError
from pappus.population import FILE
from pappus.settings import load_file
from pappus.systems import saved_config
from pappus.telemetry.checkpoint import fallback_of, has_checkpoint
from pappus.telemetry.files import locked
from pappus.telemetry.run_log import DONE

GOALS = ("steps", "seconds", "target_return")
"""Settings that say when a run is finished."""
OF_A_START = ("config.yaml", "metrics.jsonl", "summary.json", "checkpoints", "replay", "events.out.tfevents.*")
"""What a run writes before its first checkpoint; its log stays."""


class Beginning(enum.Enum):
    """What a folder holds."""

    NOTHING = enum.auto()
    """Or a run that ended before its first checkpoint, which starts anew."""
    RUN = enum.auto()
    POPULATION = enum.auto()

    @classmethod
    def of(cls, directory: Path) -> Beginning:
        """What `directory` holds. What is left of a run without a checkpoint is removed; anything else is refused."""
        if (directory / FILE).is_file():
            return cls.POPULATION
        if has_checkpoint(directory / "checkpoints"):
            return cls.RUN
        if not (directory / "config.yaml").exists():
            return cls.NOTHING
        written = load_file(directory / "config.yaml")
        if not (directory / "lock").exists() or "system" not in written:
            raise UserError(f"{str(directory)!r} has a config.yaml that is of no run; give another --run-dir")
        fallback = fallback_of(directory, written)
        if fallback is not None and has_checkpoint(fallback / "checkpoints"):
            return cls.RUN
        with locked(directory):  # it may have begun a moment ago
            _clear(directory)
        return cls.NOTHING


def done(directory: Path, wanted: RunConfig) -> str:
    """How a run ended that has reached all that is wanted of it; empty if there is something left to do."""
    path = directory / "summary.json"
    summary = json.loads(path.read_text()) if path.is_file() else {}
    _, begun = saved_config(directory)
    more = any(getattr(wanted, name) != getattr(begun, name) for name in GOALS)
    more = more or wanted.cost.budget != begun.cost.budget
    if summary.get("exit_reason") not in DONE or more:
        return ""
    return f"{summary['exit_reason']} after {summary['steps']:,} steps"


def _clear(directory: Path) -> None:
    for pattern in OF_A_START:
        for path in directory.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
