"""Progress as plain lines, for files, pipes and simple terminals."""

from __future__ import annotations

from collections.abc import Callable

from pappus.telemetry.run_stats import RunStats
from pappus.telemetry.verdict import percent
from pappus.telemetry.wording import figure, lag, printable, remaining, returns, title

LINE_SECONDS = 10.0


class PlainView:
    """A line every ten seconds or ten percent, whichever comes first."""

    def __init__(self, run_stats: RunStats, write: Callable[[str], None], clock: Callable[[], float], run: str) -> None:
        self._run_stats, self._write, self._clock = run_stats, write, clock
        self._written = clock()
        self._tenth = int(10 * run_stats.progress)
        self._bottleneck = ""
        write(printable(f"{title(run_stats)} · {run_stats.config.steps:,} steps → {run}"))

    def update(self) -> None:
        """Write a line if one is due."""
        tenth = int(10 * self._run_stats.progress)
        if tenth == self._tenth and self._clock() - self._written < LINE_SECONDS:
            return
        self._tenth, self._written = tenth, self._clock()
        self._write(status_line(self._run_stats))
        self._write_verdict()

    def event(self, text: str) -> None:
        """Write an event at once."""
        self._write(f"  {printable(text)}")

    def close(self, lines: list[str]) -> None:
        """Write the final lines."""
        for line in lines:
            self._write(printable(line))

    def _write_verdict(self) -> None:
        """Only when another role became the bottleneck: the shares themselves change all the time."""
        verdict = self._run_stats.verdict()
        bottleneck = verdict.partition(":")[0]
        if bottleneck != self._bottleneck:
            self._bottleneck = bottleneck
            self._write(f"       {verdict}")


def status_line(run_stats: RunStats) -> str:
    """`  41 %  412,160 steps  48,211 steps/s  return 132.4, length 132  lag 1.2 (max 4)  queue 3  ETA 0:12`."""
    depth = "–" if run_stats.queue_depth is None else f"{run_stats.queue_depth:.0f}"
    parts = [
        f"{percent(run_stats.progress):>5}",
        f"{run_stats.env_steps:,} steps",
        f"{figure(run_stats.steps_per_second)} steps/s",
        returns(run_stats),
        f"lag {lag(run_stats)}",
        f"queue {depth}",
        f"ETA {remaining(run_stats)}",
    ]
    return "  ".join(parts)
