"""The curves of a run, thinned as they grow: of all lines of metrics.jsonl, about as many as a screen has room for."""

from __future__ import annotations

import json
import math
from array import array
from typing import Any

from pappus.page.document import Columns, Curves, EvaluationDocument, Number
from pappus.page.reading import finite
from pappus.telemetry.history import GREEDY

MOST_POINTS, MOST_VALUES, MOST_NAMES = 2000, 60_000, 500
"""Of all curves of a run together no more values are kept than that, so a run with many curves has fewer points."""
LEAST_POINTS = 100
DEVIATION, AT_STEP, AT_SECONDS = "eval/episodic_return_std", "eval/step", "eval/seconds"
MOST_EVALUATIONS = 1000
LETTERS = 200
UNKNOWN = math.nan
EXACT = ("step", "time")


class ThinnedCurves:
    """Lines of metrics one after the other. Of what is kept the step never falls: lines behind which a resumed run went
    back are taken out again, and `back` counts how often."""

    def __init__(self, most_points: int = MOST_POINTS, names: tuple[str, ...] = ()) -> None:
        """Keeps all metrics, or those that begin with one of `names`."""
        self._most, self._names = most_points, names
        self._columns: dict[str, array[float]] = {"step": array("d"), "time": array("d")}
        self._every, self._count, self._ends_with_last = 1, 0, True
        """One of so many lines is kept, how many there were, and whether the last one is among those kept."""
        self._last: dict[str, float] = {}
        self.evaluations: list[EvaluationDocument] = []
        self.back = 0

    def __len__(self) -> int:
        return len(self._columns["step"])

    def add(self, line: bytes) -> dict[str, float] | None:
        """The numbers of one line; None for one that is no line of metrics."""
        row = read_row(line)
        return None if row is None else self.add_row(row)

    def add_row(self, row: dict[str, float]) -> dict[str, float]:
        """As much of a line's numbers as is kept."""
        kept = self._kept(row)
        row = {name: value for name, value in row.items() if name in kept}
        self._go_back(row["step"])
        self._last = row
        self._ends_with_last = self._count % self._every == 0
        self._count += 1
        if self._ends_with_last:
            self._append(row)
        self._note_evaluation(row)
        return row

    def document(self, most_values: int = MOST_VALUES) -> Curves:
        """As a page has them, with the newest line; no more than about so many values."""
        every = max(1, -(-len(self) * len(self._columns) // max(1, most_values)))
        columns: Columns = {
            name: [_shown(name, value) for value in values[::every]] for name, values in self._columns.items()
        }
        if not self._ends_with_last or (len(self) - 1) % every > 0:
            for name, values in columns.items():
                values.append(_shown(name, self._last.get(name, UNKNOWN)))
        return {"x": "step", "columns": columns}

    def _kept(self, row: dict[str, float]) -> set[str]:
        """Names of the columns, with new ones as far as there is room."""
        new = [name for name in row if name not in self._columns and (not self._names or name.startswith(self._names))]
        return {*self._columns, *new[: MOST_NAMES - len(self._columns)]}

    def _append(self, row: dict[str, float]) -> None:
        count = len(self)
        for name in row:
            if name not in self._columns:
                self._columns[name] = array("d", [UNKNOWN]) * count
        for name, values in self._columns.items():
            values.append(row.get(name, UNKNOWN))
        if len(self) >= max(LEAST_POINTS, min(self._most, MOST_VALUES // len(self._columns))):
            self._ends_with_last = count % 2 == 0
            self._columns = {name: values[::2] for name, values in self._columns.items()}
            self._every *= 2

    def _go_back(self, step: float) -> None:
        if not self._last or self._last["step"] <= step:
            return
        self.back += 1
        steps = self._columns["step"]
        left = next((i for i, known in enumerate(steps) if known > step), len(steps))
        self._columns = {name: values[:left] for name, values in self._columns.items()}
        self._count = left * self._every
        self.evaluations = [one for one in self.evaluations if (one["step"] or 0) <= step]

    def _note_evaluation(self, row: dict[str, float]) -> None:
        """A line repeats the last evaluation until there is another one, which is told by its step."""
        at = row.get(AT_STEP)
        if at is None or GREEDY not in row or (self.evaluations and self.evaluations[-1]["step"] == at):
            return
        if len(self.evaluations) < MOST_EVALUATIONS:
            self.evaluations.append({
                "step": at, "seconds": row.get(AT_SECONDS), "mean": row[GREEDY], "std": row.get(DEVIATION),
                "episodes": None,
            })


def read_row(line: bytes) -> dict[str, float] | None:
    """The numbers of a line that has a step and a time."""
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    row = {name: float(number) for name, value in found.items() if (number := finite(value)) is not None}
    return {name[:LETTERS]: value for name, value in row.items()} if {"step", "time"} <= row.keys() else None


def shown_row(row: dict[str, float]) -> Columns:
    """One line as columns."""
    return {name: [_shown(name, value)] for name, value in row.items()}


def _shown(name: str, value: float) -> Number:
    """Six digits are more than a screen shows."""
    if value != value:
        return None
    if name in EXACT:
        return int(value) if name == "step" else round(value, 3)
    return float(f"{value:.6g}")
