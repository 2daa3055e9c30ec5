"""What a user sees of a run: a live view on a terminal and in a notebook, plain lines anywhere else."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeAlias

from rich.console import Console as RichConsole

from pappus.telemetry.live_view import LiveView
from pappus.telemetry.notebook_view import NotebookView, in_notebook
from pappus.telemetry.plain_views import JsonView, PlainView, QuietView
from pappus.telemetry.role_stats import Event
from pappus.telemetry.run_log import Summary
from pappus.telemetry.run_stats import RunStats
from pappus.telemetry.terminal import Terminal
from pappus.telemetry.wording import farewell

REFRESH_SECONDS = 0.25
View: TypeAlias = LiveView | PlainView | NotebookView | QuietView | JsonView


class Output(RichConsole):
    """rich ends the program when the pipe breaks; a run must go on."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Console:
    """Shows a run and never raises: when output fails it stops, and the run goes on."""

    def __init__(
        self, run_stats: RunStats, run: Path | str = "", output: Output | None = None,
        clock: Callable[[], float] = time.monotonic, terminal: Terminal | None = None,
    ) -> None:
        """`terminal` is that of the command, which may have said something already."""
        self._terminal = terminal or Terminal()
        self._run_stats, self._clock = run_stats, clock
        self._run = _short(run or run_stats.config.run_dir)
        self._output = output or _standard_output()
        self._view: View | None = None
        self._updated = -float("inf")
        self._over = False
        self._showing = threading.Lock()
        """A thread beside the run shows why that does not move."""

    def update(self) -> None:
        """Show the present state, at most four times a second."""
        if self._clock() - self._updated >= REFRESH_SECONDS:
            self._updated = self._clock()
            self._attempt(lambda view: view.update())

    def metrics(self, step: int, time: float, scalars: Mapping[str, float]) -> None:
        """A line of metrics.jsonl."""
        self._attempt(lambda view: view.metrics(step, time, scalars))

    def event(self, event: Event | str) -> None:
        self._attempt(lambda view: view.event(event))

    def close(self, summary: Summary | None = None, error: str = "") -> None:
        """Print the final lines: how the run ended, where it is, what to try next; or that it failed of an `error`."""
        verdict, config = self._run_stats.verdict(whole_run=True), self._run_stats.config
        lines = farewell(
            None if error else summary, self._run, verdict, curves="tensorboard" in config.hooks.loggers
        )
        self._attempt(lambda view: view.close(lines, summary, error))
        self._over = True

    def _attempt(self, show: Callable[[View], None]) -> None:
        if self._over:
            return
        with self._showing:
            try:
                self._view = self._view or self._make_view()
                show(self._view)
            except Exception as error:
                self._give_up(error)

    def _make_view(self) -> View:
        self._terminal.clear()
        if self._terminal.style == "json":
            return JsonView(self._run_stats, self._terminal, self._run)
        if self._terminal.style == "quiet":
            return QuietView(self._terminal, self._run)
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
                self._view.close([], None, "")
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
