"""What do a callback and a logger cost a run?

    python -m benchmarks.hooks
    python -m benchmarks.hooks --rounds 9 --seconds 20

Runs without and with them in turn, each order as often as the other. Speed depends on what else the machine does; env
steps per CPU second of all processes of the run depend on it less. The third figure is what the threads of callback and
logger compute, as a share of one core: what they can take from anybody, and hardly depends on anything.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from statistics import median

import pappus
from pappus.hooks.callback import CurrentRun, Episode
from pappus.loggers.csv_file import CsvLogger
from pappus.telemetry.run_log import Summary

THREADS = "thread_seconds.json"
"""In a run's directory: what callback and logger have computed."""


class Watches(pappus.Callback):
    """Hears everything, keeps sums, logs two metrics a second."""

    def __init__(self) -> None:
        self.episodes, self.best = 0, 0.0

    def on_metrics(self, run: CurrentRun, metrics: object) -> None:
        run.log({"episodes": self.episodes, "best": self.best})

    def on_episode(self, run: CurrentRun, episode: Episode) -> None:
        self.episodes += 1
        self.best = max(self.best, episode.episodic_return)

    def on_end(self, run: CurrentRun, summary: Summary) -> None:
        note(run.directory, "callback")


class Measured(CsvLogger):
    """`--log csv`, which says what it took."""

    def end(self, summary: Summary) -> None:
        super().end(summary)
        note(self._path.parent, "logger")


def note(directory: Path, who: str) -> None:
    """Write down what this thread has computed so far."""
    (directory / f"{who}.{THREADS}").write_text(json.dumps(time.thread_time()))


def measured(system: str, seconds: float, watched: bool, directory: Path) -> tuple[float, float, float]:
    """Steps per second, steps per CPU second, and cores that callback and logger take."""
    log = ["benchmarks.hooks:Measured"] if watched else ["none"]
    result = pappus.train(
        system, "CartPole-v1", {"evaluation.episodes": 1}, [Watches()] if watched else [], log=log, seconds=seconds,
        steps=10**9, run_dir=directory,
    )
    table, computed = result.metrics, sum(json.loads(path.read_text()) for path in directory.glob(f"*.{THREADS}"))
    steps, cpu = table["step"], table["charts/cpu_seconds"]
    learning = (steps > 0) & (steps < steps[-1])
    first, last = learning.nonzero()[0][[0, -1]]
    per_cpu = (steps[last] - steps[first]) / (cpu[last] - cpu[first])
    return result.summary.steps_per_second, per_cpu, computed / result.summary.wall_seconds


def main() -> None:
    """Print each pair, and the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", default="impala")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    pairs = []
    for number in range(arguments.rounds):
        found = {}
        for watched in (False, True) if number % 2 else (True, False):
            with tempfile.TemporaryDirectory() as folder:
                found[watched] = measured(arguments.system, arguments.seconds, watched, Path(folder) / "run")
        pairs.append((found[False], found[True]))
        (speed, cpu, _), (watched_speed, watched_cpu, cores) = pairs[-1]
        print(
            f"round {number}: steps/s {watched_speed:,.0f} / {speed:,.0f} = {watched_speed / speed:.3f}, "
            f"per CPU second {watched_cpu:,.0f} / {cpu:,.0f} = {watched_cpu / cpu:.3f}, "
            f"threads {100 * cores:.2f} % of a core, load {os.getloadavg()[0]:.1f}", flush=True,
        )
    for name, i in (("steps/s", 0), ("steps per CPU second", 1)):
        ratios = [pair[1][i] / pair[0][i] for pair in pairs]
        both = [median(pair[k][i] for pair in pairs) for k in (1, 0)]
        ratio = both[0] / both[1]
        print(f"{name}: medians {both[0]:,.0f} / {both[1]:,.0f} = {ratio:.3f}, of pairs {median(ratios):.3f}")
    print(f"callback and logger: {100 * median(pair[1][2] for pair in pairs):.2f} % of a core")


if __name__ == "__main__":
    main()
