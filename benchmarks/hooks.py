"""What do a callback and a logger cost a run?

    python -m benchmarks.hooks
    python -m benchmarks.hooks --system seed-vtrace --seconds 240

They hear of one run for a few seconds, hear nothing for as long, and so on in turn: runs differ from each other, and a
machine that does something else besides changes from minute to minute, by more than what is looked for. The first
figure compares the env steps of neighbouring stretches, with the standard error over all pairs. The second, what the
threads of callback and logger compute as a share of one core, is all that they can take from anybody.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from pathlib import Path
from statistics import mean, median, stdev

import numpy as np

import pappus
from pappus.hooks.beside import Hooks
from pappus.hooks.callback import CurrentRun, Episode
from pappus.loggers.csv_file import CsvLogger
from pappus.telemetry.run_log import Summary
from pappus.types import Array

CALLBACK, LOGGER = "callback_seconds", "logger_seconds"
"""Files in the run's directory: what each thread has computed."""


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
        (run.directory / CALLBACK).write_text(str(time.thread_time()))


class Measured(CsvLogger):
    """`--log csv`, which says what it took."""

    def end(self, summary: Summary) -> None:
        super().end(summary)
        (self._path.parent / LOGGER).write_text(str(time.thread_time()))


class InTurn:
    """Lets events pass to all hooks in every second stretch of time."""

    def __init__(self, stretch: float) -> None:
        self._stretch, self._tell = stretch, Hooks.tell

    def passes(self, moment: float) -> bool:
        """Whether hooks hear of that time (in seconds since 1970)."""
        return int(moment / self._stretch) % 2 == 1

    def tell(self, hooks: Hooks, event: str, step: int, *values: object) -> None:
        if self.passes(time.time()):
            self._tell(hooks, event, step, *values)

    def wants(self, hooks: Hooks, event: str) -> bool:
        return self.passes(time.time())

    def ratios(self, moments: Array, steps: Array) -> list[float]:
        """Speed with hooks over speed without, of neighbouring stretches that lie within the run as a whole."""
        first, last = math.ceil(moments[0] / self._stretch), int(moments[-1] / self._stretch)
        ends = np.interp(np.arange(first, last + 1) * self._stretch, moments, steps)
        done = np.diff(ends)
        return [
            done[i] / done[i + 1] if self.passes((first + i + 0.5) * self._stretch) else done[i + 1] / done[i]
            for i in range(0, len(done) - 1, 2)
        ]


def main() -> None:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", default="impala")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--stretch", type=float, default=4.0)
    arguments = parser.parse_args()
    in_turn = InTurn(arguments.stretch)
    Hooks.tell = lambda hooks, event, step, *values: in_turn.tell(hooks, event, step, *values)  # type: ignore[method-assign]
    Hooks.wants = lambda hooks, event: in_turn.wants(hooks, event)  # type: ignore[method-assign]
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        result = pappus.train(
            arguments.system, "CartPole-v1", {"evaluation.episodes": 1}, [Watches()], seconds=arguments.seconds,
            log=["benchmarks.hooks:Measured"], steps=10**10, run_dir=run,
        )
        learning = result.metrics["step"] > 0
        ratios = in_turn.ratios(result.metrics["time"][learning], result.metrics["step"][learning])
        computed = sum(float((run / name).read_text()) for name in (CALLBACK, LOGGER))
    logs = [math.log(ratio) for ratio in ratios]
    middle, error = math.exp(mean(logs)), stdev(logs) / math.sqrt(len(logs))
    print(f"{len(ratios)} pairs of {arguments.stretch:g} s, load {load:.1f} → {os.getloadavg()[0]:.1f}")
    print(f"speed with / without: geometric mean {middle:.3f} ± {error:.3f}, median {median(ratios):.3f}")
    print(f"callback and logger compute {100 * 2 * computed / result.summary.wall_seconds:.2f} % of a core")


if __name__ == "__main__":
    main()
