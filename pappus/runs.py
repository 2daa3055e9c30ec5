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

import numpy as np

from pappus.errors import UserError, closest
from pappus.names import run_file
from pappus.settings import load_file
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
    return LoadedRun(columns_of(directory / "metrics.jsonl"), directory, config, found)


def columns_of(path: Path) -> dict[str, Array]:
    """The lines of a metrics.jsonl as columns; a last line that is cut off, because the run goes on, is left out."""
    lines = _lines(path)
    step = np.array([line["step"] for line in lines], np.float64)
    kept = step <= np.minimum.accumulate(step[::-1])[::-1] if len(step) else np.zeros(0, np.bool_)
    lines = [line for line, keep in zip(lines, kept, strict=True) if keep]
    columns = {name: np.full(len(lines), np.nan) for name in ("step", "time")}
    for i, line in enumerate(lines):
        for name, value in line.items():
            if name not in columns:
                columns[name] = np.full(len(lines), np.nan)
            columns[name][i] = np.nan if value is None else value
    return columns


def _lines(path: Path) -> list[dict[str, float | None]]:
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(json.loads(line))
        except ValueError:
            if number < len(lines):
                raise UserError(f"{str(path)!r}, line {number}, is no JSON; repair or remove that line") from None
    return found
