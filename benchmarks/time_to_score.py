"""How long until a score, from the command on, and what it costs: a machine with a GPU, as a user would type it.

    python -m benchmarks.time_to_score --env ALE/Pong-v5 --target 18 --systems ppo pqn --seeds 11 12 13 --keep kept
    python -m benchmarks.time_to_score --systems ppo --each="--actors 1" --each="--actors 4"

Every run is `pappus train SYSTEM --env ENV --seed N` with a greedy evaluation every few seconds; it ends when one of
them reaches the target, or after `--seconds`. Use of the GPU and its power are what nvidia-smi says once a second, that
of the CPU is what the run's processes computed. `--keep DIR` keeps the runs for `benchmarks.plot_curve`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

QUERY = ("nvidia-smi", "--query-gpu=utilization.gpu,power.draw", "--format=csv,noheader,nounits", "--loop=1")


@dataclass
class GpuMeter:
    """Use in percent and watts, once a second while it is open; nothing where there is no GPU."""

    samples: list[tuple[float, float]] = field(default_factory=list)

    def __enter__(self) -> GpuMeter:
        self._process: Any = None
        if shutil.which(QUERY[0]):
            self._process = subprocess.Popen(QUERY, stdout=subprocess.PIPE, text=True)
            self._thread = threading.Thread(target=self._read)
            self._thread.start()
        return self

    def _read(self) -> None:
        for line in self._process.stdout:
            use, watts = line.split(",")
            self.samples.append((float(use), float(watts)))

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._thread.join()

    def mean(self) -> tuple[float, float]:
        """Mean use and power."""
        count = max(1, len(self.samples))
        return sum(use for use, _ in self.samples) / count, sum(watts for _, watts in self.samples) / count


def train(directory: Path, words: list[str]) -> tuple[dict[str, Any], tuple[float, float]]:
    """The summary of one run, and the mean use and power of the GPU."""
    command = [sys.executable, "-m", "pappus", "train", *words, "--run-dir", str(directory)]
    with GpuMeter() as meter:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    summary: dict[str, Any] = json.loads((directory / "summary.json").read_text())
    return summary, meter.mean()


def reached(directory: Path, target: float) -> tuple[int, float] | None:
    """The step and the second of training of the first evaluation that reached the target."""
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    evaluated = [row for row in rows if row.get("eval/episodic_return") is not None]
    good = [row for row in evaluated if row["eval/episodic_return"] >= target]
    return (int(good[0]["eval/step"]), float(good[0]["eval/seconds"])) if good else None


def cores_used(directory: Path) -> float:
    """CPU seconds of all processes per second of the run."""
    rows = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    first, last = rows[0], rows[-1]
    used = last["cost/cpu_seconds"] - first["cost/cpu_seconds"]
    return float(used / max(1e-9, last["time"] - first["time"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="ALE/Pong-v5")
    parser.add_argument("--target", type=float, default=18.0)
    parser.add_argument("--systems", nargs="+", default=["ppo"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--each", action="append", metavar="OPTIONS", help="further options, in one word")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--look", type=float, default=10.0, help="seconds between two evaluations")
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    table = Table(title=f"{arguments.env}: {arguments.target:g}")
    columns = ("system", "options", "seed", "steps", "seconds", "steps/s", "GPU %", "W", "cores", "greedy at the end")
    for column in columns:
        table.add_column(column, justify="left" if column in columns[:2] else "right")
    limits = ["--seconds", f"{arguments.seconds:g}", "--target-return", f"{arguments.target:g}"]
    looks = ["--evaluation.every-seconds", f"{arguments.look:g}"]
    with tempfile.TemporaryDirectory() as temporary:
        parent = arguments.keep or Path(temporary)
        for system, options, seed in product(arguments.systems, arguments.each or [""], arguments.seeds):
            run = parent / "-".join([system, *options.replace("--", "").split(), str(seed)])
            words = [system, "--env", arguments.env, "--seed", str(seed), *limits, *looks, *options.split()]
            summary, (use, watts) = train(run, words)
            when = reached(run, arguments.target)
            table.add_row(
                system, options, str(seed), *((f"{when[0]:,}", f"{when[1]:.0f}") if when else ("–", "–")),
                f"{summary['steps_per_second']:,.0f}", f"{use:.0f}", f"{watts:.0f}", f"{cores_used(run):.1f}",
                "–" if summary["eval_return"] is None else f"{summary['eval_return']:.1f}",
            )
            Console(width=120, stderr=True).print(table)  # so far: a long benchmark may be cut short
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
