"""How several runs side by side are shown: a line per run, repainted on a terminal; elsewhere one when a run begins or
ends; as JSON; or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pappus.telemetry.figures import figure
from pappus.telemetry.terminal import Terminal

SHORT = {
    "target reached": "solved", "steps done": "done", "time is up": "time is up", "interrupted": "interrupted",
    "stopped by a callback": "stopped", "storage failed": "disk failed", "a callback failed": "failed",
}
LEGEND = "± is half of the 95 % interval of the mean over seeds (Student's t)"
COLUMNS, GAP = ("run", "state", "steps", "steps/s", "return", "greedy"), 2
REPORT_LOOKS = 20
"""As JSON, runs are told again after so many looks."""


@dataclass(frozen=True)
class Row:
    """What is known of one run."""

    run: str
    state: str
    steps: int | None
    steps_per_second: float | None
    episodic_return: float | None
    eval_return: float | None
    solved_at_step: int | None

    def cells(self) -> list[str]:
        known = (self.steps_per_second, self.episodic_return, self.eval_return)
        outcome, _, rest = self.state.partition(", ")
        state = ", ".join(one for one in (SHORT.get(outcome, outcome), rest) if one)
        return [
            state, "–" if self.steps is None else f"{self.steps:,}",
            *("–" if value is None else figure(value) for value in known),
        ]

    def line(self) -> str:
        """`seed-1: solved after 104,800 steps, 3,211/s, return 480.1, greedy 500`."""
        state, steps, speed, shown, greedy = self.cells()
        known = [f"{speed}/s", f"return {shown}", f"greedy {greedy}"]
        after = f" after {steps} steps" if self.steps else ""
        return ", ".join([f"{self.run}: {state}{after}", *(text for text in known if "–" not in text)])


def elided(name: str, width: int) -> str:
    """A name cut in its middle: its end says the seed."""
    return name if len(name) <= width else f"{name[: (width - 1) // 2]}…{name[-(width // 2):]}"


def table(rows: Sequence[Row], title: str, width: int) -> RenderableType:
    """A line per run, which fits a terminal of 80 columns."""
    grid = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="dim")
    for column in COLUMNS:
        grid.add_column(column, justify="left" if column in ("run", "state") else "right", no_wrap=True)
    cells = [row.cells() for row in rows]
    beside = sum(GAP + max(map(len, column)) for column in zip(COLUMNS[1:], *cells, strict=True))
    for row, others in zip(rows, cells, strict=True):
        grid.add_row(elided(row.run, max(8, width - beside)), *others)
    return Group(Text(title, overflow="fold"), grid)


class PopulationView:
    """Shows what `rows` finds, as the terminal's style says."""

    def __init__(self, terminal: Terminal, directory: str, jobs: int, rows: Callable[[], list[Row]]) -> None:
        self._terminal, self._directory, self._rows = terminal, directory, rows
        self._console = Console(file=terminal.file)
        self._states: dict[str, str] = {}
        self._looks = 0
        self._live: Live | None = None
        if terminal.style == "json":
            terminal.object("start", run=directory, runs=[row.run for row in rows()], jobs=jobs)
        elif terminal.style == "shown" and self._console.is_terminal:
            self._live = Live(self._table(), console=self._console, auto_refresh=False, transient=True)
            self._live.start()

    def update(self) -> None:
        self._looks += 1
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
            return
        for row in self._rows() if self._terminal.style != "quiet" else ():
            changed = self._states.get(row.run, "waits") != row.state
            self._states[row.run] = row.state
            if self._terminal.style == "json":
                if changed or (row.state == "trains" and self._looks % REPORT_LOOKS == 0):
                    self._terminal.object("run", **asdict(row))
            elif changed:
                self._terminal.print(row.line())

    def say(self, text: str) -> None:
        """A line for whoever watches."""
        if self._terminal.style == "shown":
            self._console.print(Text(text), soft_wrap=True)

    def close(self, verdict: Sequence[str], **outcome: Any) -> None:
        """The table once more, for good, and what the runs say together."""
        if self._live is not None:
            self._live.stop()
        if self._terminal.style == "json":
            self._terminal.object("end", run=self._directory, verdict=verdict, **outcome)
            return
        if self._terminal.style == "shown":
            self._console.print(self._table())
        legend = [LEGEND] if any("±" in line for line in verdict) else []
        for line in (*verdict, f"look: pappus page {self._directory}", *legend):
            self._console.print(Text(line))

    def _table(self) -> RenderableType:
        return table(self._rows(), self._directory, self._console.width)
