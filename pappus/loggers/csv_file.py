"""`--log csv`: metrics.csv in the run directory. A metric that comes later gets a column at the end."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from pappus.hooks.logger import LoggedRun
from pappus.telemetry.run_log import Summary

NAME = "metrics.csv"


class CsvLogger:
    """One row per line of metrics.jsonl; empty cells where a line has no value."""

    def begin(self, run: LoggedRun) -> None:
        self._path, self._names = run.directory / NAME, ["step", "time"]
        rows: list[dict[str, str]] = []
        if self._path.is_file():
            with self._path.open(newline="", encoding="utf-8") as file:
                reader = csv.DictReader(file)
                self._names = list(reader.fieldnames or self._names)
                rows = [row for row in reader if run.resumed_at is None or float(row["step"]) <= run.resumed_at]
        self._file = self._written(rows)

    def write(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        new = [name for name in metrics if name not in self._names]
        if new:
            self._file.close()
            with self._path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            self._names += new
            self._file = self._written(rows)
        csv.DictWriter(self._file, self._names).writerow({"step": step, "time": time, **metrics})
        self._file.flush()

    def end(self, summary: Summary) -> None:
        self._file.close()

    def _written(self, rows: list[dict[str, str]]) -> TextIO:
        """The file with all columns so far and these rows, open for more; it is replaced as a whole."""
        partial: Path = self._path.with_name(f".{NAME}.partial")
        with partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self._names)
            writer.writeheader()
            writer.writerows(rows)
        os.replace(partial, self._path)
        return self._path.open("a", newline="", encoding="utf-8")
