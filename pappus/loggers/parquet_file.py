"""`--log parquet`: metrics.parquet in the run directory, with pyarrow."""

from __future__ import annotations

import os
import time as clock
from collections.abc import Mapping
from typing import Any

from pappus.hooks.logger import LoggedRun
from pappus.telemetry.run_log import Summary

NAME = "metrics.parquet"
EVERY_SECONDS, GROWTH = 60.0, 1.1
"""A Parquet file cannot grow: it is written anew when a minute has passed and it has a tenth more rows, and at the
end."""


class ParquetLogger:
    """One row per line of metrics.jsonl; nulls where a line has no value."""

    def begin(self, run: LoggedRun) -> None:
        import pyarrow
        import pyarrow.parquet

        self._arrow: Any = pyarrow
        self._path = run.directory / NAME
        self._columns: dict[str, list[float | None]] = {"step": [], "time": []}
        if self._path.is_file():
            old = pyarrow.parquet.read_table(self._path).to_pydict()
            kept = [i for i, step in enumerate(old["step"]) if run.resumed_at is None or step <= run.resumed_at]
            self._columns = {name: [values[i] for i in kept] for name, values in old.items()}
        self._rows = len(self._columns["step"])
        self._written, self._at = self._rows, clock.monotonic()

    def write(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        row = {"step": step, "time": time, **metrics}
        for name in row:
            self._columns.setdefault(name, [None] * self._rows)
        for name, values in self._columns.items():
            values.append(row.get(name))
        self._rows += 1
        if clock.monotonic() - self._at >= EVERY_SECONDS and self._rows >= GROWTH * self._written:
            self._save()

    def end(self, summary: Summary) -> None:
        self._save()

    def _save(self) -> None:
        partial = self._path.with_name(f".{NAME}.partial")
        kinds = {name: self._arrow.int64() if name == "step" else self._arrow.float64() for name in self._columns}
        columns = {name: self._arrow.array(values, kinds[name]) for name, values in self._columns.items()}
        self._arrow.parquet.write_table(self._arrow.table(columns), partial)
        os.replace(partial, self._path)
        self._written, self._at = self._rows, clock.monotonic()
