"""What a user sees of a run: a live view on a terminal and in a notebook, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console as RichConsole

from pappus.telemetry.live_view import LiveView
from pappus.telemetry.notebook_view import NotebookView, in_notebook
from pappus.telemetry.role_view import percent
from pappus.telemetry.run_log import Summary
from pappus.telemetry.run_stats import RunStats
from pappus.telemetry.wording import farewell, figure, lag, measured, printable, queue_depth, remaining, returns, title

REFRESH_SECONDS = 0.25
LINE_SECONDS = 10.0


class Output(RichConsole):
    """rich ends the program when the pipe breaks; a run must go on."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


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
        verdict = self._run_stats.verdict()
        bottleneck = verdict.partition(":")[0]
        if bottleneck != self._bottleneck:  # the shares themselves change all the time
            self._bottleneck = bottleneck
            self._write(f"       {verdict}")

    def event(self, text: str) -> None:
        self._write(f"  {printable(text)}")

    def close(self, lines: list[str]) -> None:
        for line in lines:
            self._write(printable(line))


def status_line(run_stats: RunStats) -> str:
    """`  41 %  412,160 steps  48,211 steps/s  return 132.4, length 132  lag 1.2 (max 4)  queue 3  ETA 0:12`."""
    speed = f"{figure(run_stats.steps_per_second)} steps/s"
    behind = [f"lag {lag(run_stats)}", f"queue {queue_depth(run_stats)}"] if run_stats.plays else []
    return "  ".join([
        f"{percent(run_stats.progress):>5}", f"{run_stats.env_steps:,} steps", speed, returns(run_stats),
        *([text] if (text := measured(run_stats, 3)) else []), *behind,
        f"ETA {remaining(run_stats)}",
    ])


class Console:
    """Shows a run and never raises: when output fails it stops, and the run goes on."""

    def __init__(
        self, run_stats: RunStats, run: Path | str = "", output: Output | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_stats, self._clock = run_stats, clock
        self._run = _short(run or run_stats.config.run_dir)
        self._output = output or _standard_output()
        self._view: LiveView | PlainView | NotebookView | None = None
        self._updated = -float("inf")
        self._over = False

    def update(self) -> None:
        """Show the present state, at most four times a second."""
        if self._clock() - self._updated >= REFRESH_SECONDS:
            self._updated = self._clock()
            self._attempt(lambda view: view.update())

    def event(self, event: object) -> None:
        self._attempt(lambda view: view.event(str(event)))

    def close(self, summary: Summary | None = None) -> None:
        """Print the final lines: how the run ended, where it is, what to try next."""
        verdict, config = self._run_stats.verdict(whole_run=True), self._run_stats.config
        lines = farewell(summary, self._run, verdict, curves="tensorboard" in config.hooks.loggers)
        self._attempt(lambda view: view.close(lines))
        self._over = True

    def _attempt(self, show: Callable[[LiveView | PlainView | NotebookView], None]) -> None:
        if self._over:
            return
        try:
            self._view = self._view or self._make_view()
            show(self._view)
        except Exception as error:
            self._give_up(error)

    def _make_view(self) -> LiveView | PlainView | NotebookView:
        if in_notebook():
            return NotebookView(self._run_stats, self._run)
        if self._output.is_terminal and not self._output.is_dumb_terminal and self._output.encoding.startswith("utf"):
            return LiveView(self._run_stats, self._output, self._run)
        return PlainView(self._run_stats, self._write_line, self._clock, self._run)

    def _write_line(self, line: str) -> None:
        """Not through rich, which would wrap long lines."""
        encoding = self._output.encoding
        self._output.file.write(line.encode(encoding, "replace").decode(encoding) + "\n")
        self._output.file.flush()

    def _give_up(self, error: Exception) -> None:
        self._over = True
        if self._view:
            with contextlib.suppress(Exception):  # gives the terminal back where there still is one
                self._view.close([])
        self._run_stats.event(f"the console ended: {type(error).__name__}: {error}")
        if isinstance(error, OSError) and self._output.file is sys.stdout:  # a pipe, or a terminal, that is closed
            _silence_standard_output()


def _short(run: Path | str) -> str:
    """A path below the working directory as one would type it."""
    path = Path(run)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _standard_output() -> Output:
    """rich would also color a file when FORCE_COLOR is set; a run's log should stay plain."""
    return Output(force_terminal=None if sys.stdout.isatty() else False, force_jupyter=False)


def _silence_standard_output() -> None:
    """Python flushes stdout once more at exit; into a broken pipe that would change the exit code."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
