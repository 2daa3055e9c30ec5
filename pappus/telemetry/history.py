"""What a run wrote into metrics.jsonl, as columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pappus.types import Array

TRAINING, GREEDY = "charts/episodic_return", "eval/episodic_return"
FILE = "metrics.jsonl"


@dataclass(frozen=True)
class History:
    """The metrics of a run by name, `[lines]` float64 each, NaN where a line has none. Every line has a `step`, which
    never falls, and a `time`, in seconds since 1970."""

    columns: Mapping[str, Array]

    def __len__(self) -> int:
        return len(self.columns["step"])

    @property
    def seconds(self) -> Array:
        """Seconds since training began, by the clock: of a run that was resumed, with the pause."""
        step, time = self.columns["step"], self.columns["time"]
        if not len(self):
            return time
        speed = self.columns.get("charts/SPS", np.full(len(self), np.nan))[0]
        before = step[0] / speed if speed > 0 else 0.0
        return np.asarray(time - time[0] + before)

    def points(self, name: str) -> tuple[Array, Array, Array]:
        """Steps, seconds and values of a metric, where it was measured. An evaluation counts for the step whose weights
        it played with."""
        values = self.columns.get(name, np.full(len(self), np.nan))
        steps = self.columns["step"]
        if name == GREEDY and "eval/step" in self.columns:
            steps = np.where(np.isnan(self.columns["eval/step"]), steps, self.columns["eval/step"])
        known = ~np.isnan(values)
        return steps[known], self.seconds[known], values[known]


def read_history(directory: Path) -> History:
    """The metrics of a run directory; empty where there are none. A line that is not whole is left out, and so are the
    lines behind which a resumed run went back."""
    path = directory / FILE
    lines: list[dict[str, Any]] = []
    for text in path.read_bytes().splitlines() if path.is_file() else []:
        line = _read(text)
        if line is None:
            continue
        while lines and lines[-1]["step"] > line["step"]:
            lines.pop()
        lines.append(line)
    names = dict.fromkeys(["step", "time", *(name for line in lines for name in line)])
    return History({name: np.array([_number(line.get(name)) for line in lines], np.float64) for name in names})


def _read(text: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(text)
    except ValueError:
        return None
    whole = isinstance(line, dict) and isinstance(line.get("step"), int) and isinstance(line.get("time"), int | float)
    return line if whole else None


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else np.nan
