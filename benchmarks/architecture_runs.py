"""What one run of the comparison says of itself: from its metrics, a line a second, and its summary."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = Mapping[str, float]


def measure(directory: Path) -> dict[str, Any]:
    """Everything that is measured of a run, by the names of a result's fields."""
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((directory / "summary.json").read_text())
    training = trained(rows)
    first, last = training[0], training[-1]
    seconds, steps = last["time"] - first["time"], last["step"] - first["step"]
    updates = last["charts/updates"] - first["charts/updates"]
    moved = {edge: count / summary["steps"] for edge, count in summary["bytes_moved"].items()}
    return {
        "steps": summary["steps"],
        "steps_per_second": steps / seconds,
        "updates_per_second": updates / seconds,
        "policy_lag": policy_lag(training),
        "cpu_per_million": (last["cost/cpu_seconds"] - first["cost/cpu_seconds"]) / steps * 1e6,
        "bytes_per_step": moved,
        "evaluator_busy": mean_of(training, "evaluator/busy"),
        "curve": curve(rows),
    }


def trained(rows: Sequence[Row]) -> list[Row]:
    """The lines between which nothing but training and its evaluations went on.

    Lines that are written while a run is saved and evaluated at its end know of no further updates.
    """
    known = [row for row in rows if row["step"] > 0 and "charts/updates" in row]
    lines = [row for row in known if row["charts/updates"] < known[-1]["charts/updates"]]
    if len(lines) < 2 or lines[-1]["step"] == lines[0]["step"]:
        raise ValueError(f"{len(lines)} seconds of training are too few to measure; use more --seconds")
    return lines


def curve(rows: Sequence[Row]) -> list[tuple[float, float, float]]:
    """Env steps, seconds since the first of them and greedy return, of every evaluation once."""
    found = {row["eval/seconds"]: row for row in rows if "eval/seconds" in row}
    if not found:
        raise ValueError("no evaluation ended")
    return [(row["eval/step"], seconds, row["eval/episodic_return"]) for seconds, row in sorted(found.items())]


def policy_lag(rows: Sequence[Row]) -> float:
    """Updates between the weights that acted and those that learn from it, on average.

    A3C's workers know how many updates others made meanwhile. What comes out of replay is as old, in updates, as the
    items that came since it did.
    """
    for name in ("learner/policy_lag", "worker/staleness"):
        if any(name in row for row in rows):
            return mean_of(rows, name)
    drawn = [row for row in rows if row.get("replay/age") is not None and row.get("replay/inserts")]
    return statistics.fmean(
        [row["replay/age"] * row["charts/updates"] / row["replay/inserts"] for row in drawn] or [0.0]
    )


def mean_of(rows: Sequence[Row], name: str) -> float:
    """Over all lines that know it."""
    return statistics.fmean([row[name] for row in rows if row.get(name) is not None] or [0.0])
