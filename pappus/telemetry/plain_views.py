"""A run as lines of text: for pipes and files, for `--quiet`, and as JSON for other programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pappus.telemetry.figures import figure
from pappus.telemetry.role_stats import Event
from pappus.telemetry.role_view import percent
from pappus.telemetry.run_log import Summary
from pappus.telemetry.run_stats import RunStats
from pappus.telemetry.terminal import Terminal
from pappus.telemetry.wording import (
    lag,
    losses,
    measured,
    printable,
    queue_depth,
    remaining,
    result_line,
    returns,
    title,
)

LINE_SECONDS = 10.0
FORMAT = 1
"""Of the JSON lines; a change that programs would notice makes it 2."""


class PlainView:
    """A line every ten seconds or ten percent, whichever comes first."""

    def __init__(self, run_stats: RunStats, write: Callable[[str], None], clock: Callable[[], float], run: str) -> None:
        self._run_stats, self._write, self._clock = run_stats, write, clock
        self._written = clock()
        self._tenth = int(10 * run_stats.progress)
        self._bottlenecks: set[str] = set()
        """Each is told once."""
        write(printable(f"{title(run_stats)} · {run_stats.config.steps:,} steps → {run}"))

    def update(self) -> None:
        """Write a line if one is due."""
        tenth = int(10 * self._run_stats.progress)
        if tenth == self._tenth and self._clock() - self._written < LINE_SECONDS:
            return
        self._tenth, self._written = tenth, self._clock()
        self._write(status_line(self._run_stats))
        if self._run_stats.stall or self._run_stats.trained:
            return  # a stall was told, and says more than shares; the last lines tell of the whole run
        verdict = self._run_stats.verdict()
        bottleneck = verdict.partition(":")[0]
        if bottleneck not in self._bottlenecks:  # the shares themselves change all the time
            self._bottlenecks.add(bottleneck)
            self._write(f"       {verdict}")

    def metrics(self, step: int, time: float, scalars: Mapping[str, float]) -> None:
        """`RunStats` has it already."""

    def event(self, event: Event | str) -> None:
        self._write(f"  {printable(str(event))}")

    def close(self, lines: Sequence[str], summary: Summary | None, error: str) -> None:
        for line in lines:
            self._write(printable(line))


def status_line(run_stats: RunStats) -> str:
    """`  41 %  412,160 steps  48,211 steps/s  return 132.4, length 132  value loss 0.3  lag 1.2 (max 4)  ETA 0:12`."""
    speed = f"{figure(run_stats.steps_per_second)} steps/s"
    behind = [f"lag {lag(run_stats)}", f"queue {queue_depth(run_stats)}"] if run_stats.plays else []
    own, lost = measured(run_stats, 3), losses(run_stats, 2)
    return "  ".join([
        f"{percent(run_stats.progress):>5}", f"{run_stats.env_steps:,} steps", speed, returns(run_stats),
        *(text for text in (own, lost) if text), *behind, f"ETA {remaining(run_stats)}",
    ])


class QuietView:
    """Nothing but the result."""

    def __init__(self, terminal: Terminal, run: str) -> None:
        self._terminal, self._run = terminal, run

    def update(self) -> None: ...

    def metrics(self, step: int, time: float, scalars: Mapping[str, float]) -> None: ...

    def event(self, event: Event | str) -> None: ...

    def close(self, lines: Sequence[str], summary: Summary | None, error: str) -> None:
        """One line; of a run that failed none, since its error is told."""
        if summary is not None and not error:
            self._terminal.print(printable(f"{result_line(summary)} → {self._run}"))


class JsonView:
    """A JSON object per line: `start`, then `metrics` and `event`, then `end`."""

    def __init__(self, run_stats: RunStats, terminal: Terminal, run: str) -> None:
        self._terminal, self._run = terminal, run
        config = run_stats.config
        terminal.object(
            "start", format=FORMAT, system=config.system_name, env=config.env, seed=config.seed, steps=config.steps,
            runtime="inline" if config.inline else config.runtime, run=run,
        )

    def update(self) -> None: ...

    def metrics(self, step: int, time: float, scalars: Mapping[str, float]) -> None:
        self._terminal.object("metrics", step=step, time=time, metrics=dict(scalars))

    def event(self, event: Event | str) -> None:
        role, text, time = (event.role, event.text, event.time) if isinstance(event, Event) else ("", event, None)
        self._terminal.object("event", time=time, role=role, text=text)

    def close(self, lines: Sequence[str], summary: Summary | None, error: str) -> None:
        content = {} if summary is None else summary.to_dict()
        self._terminal.object("end", run=self._run, error=error or None, **content)
