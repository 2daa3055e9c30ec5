"""What a run has left behind, as a table.

    run = pappus.runs.load("runs/ppo-CartPole-v1-1-…")
    run["step"], run["charts/episodic_return"]      # NumPy columns of the same length; NaN where a line had no value
    run.config["optimizer"]["learning_rate"], run.summary["eval_return"]
    run.to_pandas()
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pappus.errors import UserError, closest
from pappus.names import run_file
from pappus.settings import load_file
from pappus.telemetry.history import read_history
from pappus.types import Array


@dataclass(frozen=True)
class Table(Mapping[str, Array]):
    """Columns of `metrics.jsonl` by name, float64, `step` and `time` (seconds since 1970) first."""

    columns: dict[str, Array]

    def __getitem__(self, name: str) -> Array:
        if name not in self.columns:
            raise KeyError(f"the run has no metric {name!r}{closest(name, list(self.columns))}")
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def to_pandas(self) -> Any:
        """A pandas DataFrame; `UserError` without pandas."""
        try:
            import pandas
        except ImportError:
            raise UserError("to_pandas() needs pandas, which is not installed; run pip install pandas") from None
        return pandas.DataFrame(self.columns)


@dataclass(frozen=True)
class LoadedRun(Table):
    """A run directory: its metrics as columns, and what it was."""

    directory: Path = Path()
    config: dict[str, Any] = field(default_factory=dict)
    """The resolved config, as in config.yaml."""
    summary: dict[str, Any] = field(default_factory=dict)
    """How it ended; empty while it runs, or if it was killed."""


def load(path: str | Path) -> LoadedRun:
    """Read a run directory. Lines after a checkpoint that the run went back to are left out: they are of a past that
    was lost."""
    directory = Path(path)
    config = load_file(run_file(directory))
    summary = directory / "summary.json"
    found = json.loads(summary.read_text(encoding="utf-8")) if summary.is_file() else {}
    return LoadedRun(dict(read_history(directory).columns), directory, config, found)
