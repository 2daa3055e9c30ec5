"""The live view of a run on a terminal."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean

from rich.console import Console as RichConsole
from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pappus.kinds import RoleKind
from pappus.telemetry.figures import figure, memory
from pappus.telemetry.role_stats import Event
from pappus.telemetry.role_view import RoleView, percent
from pappus.telemetry.run_log import Summary
from pappus.telemetry.run_stats import RunStats
from pappus.telemetry.wording import (
    done,
    lag,
    losses,
    measured,
    printable,
    queue_depth,
    remaining,
    returns,
    title,
    wrapped,
)

NARROW = 90
OTHER_LINES = 17
"""Lines of the view that are not rows of roles."""
EVENTS_SHOWN = 3


class LiveView:
    """Repaints itself in place; when closed it disappears, and only the final lines stay."""

    def __init__(self, run_stats: RunStats, output: RichConsole, run: str) -> None:
        self._run_stats, self._output, self._run = run_stats, output, run
        self._live = Live(console=output, auto_refresh=False, transient=True)
        self._live.start()

    def update(self) -> None:
        self._live.update(picture(self._run_stats, self._run, self._output.width, self._output.height), refresh=True)

    def metrics(self, step: int, time: float, scalars: Mapping[str, float]) -> None:
        """`RunStats` has it already."""

    def event(self, event: Event | str) -> None:
        """The same."""
        self.update()

    def close(self, lines: Sequence[str], summary: Summary | None, error: str) -> None:
        """Give the terminal back and print the final lines."""
        self._live.stop()
        for index, line in enumerate(lines):
            for part in wrapped(printable(line), self._output.width):
                self._output.print(Text(part, style="" if index else "bold"), soft_wrap=True)


def picture(run_stats: RunStats, run: str, width: int, height: int) -> RenderableType:
    """The whole view, for a terminal of that size."""
    header = Text.assemble(_flow(run_stats), "\n", (printable(run), "dim"), no_wrap=True, overflow="ellipsis")
    views = shown_roles(run_stats.views(), rows=max(4, height - OTHER_LINES))
    return Group(
        Panel(header, title=Text(printable(title(run_stats)), style="bold"), title_align="left", width=width),
        _progress(run_stats, width), _numbers(run_stats), _roles(views, width < NARROW), _events(run_stats),
        _judgement(run_stats),
    )


def _judgement(run_stats: RunStats) -> Text:
    """The verdict; of a run that stands still, why."""
    if run_stats.stall:
        return Text(f"■ {printable(run_stats.stall)}", style="bold red")
    return Text(f"▸ {run_stats.verdict()}", style="bold")


def shown_roles(views: Sequence[RoleView], rows: int) -> list[RoleView]:
    """All roles, or one row per kind where they would not fit."""
    if len(views) <= rows:
        return list(views)
    kinds = dict.fromkeys(view.kind for view in views)
    return [_together(kind, [view for view in views if view.kind == kind]) for kind in kinds]


def _together(kind: RoleKind, views: Sequence[RoleView]) -> RoleView:
    if len(views) == 1:
        return views[0]
    reasons = dict.fromkeys(what for view in views for what in view.waiting)
    states = [view.state for view in views]
    nodes = Counter(view.node for view in views if view.node)
    return RoleView(
        role=f"{kind.name} ×{len(views)}", kind=kind, state=max(set(states), key=states.count),
        busy=fmean(view.busy for view in views),
        waiting={what: fmean(view.waiting.get(what, 0.0) for view in views) for what in reasons},
        restarts=sum(view.restarts for view in views), members=len(views),
        memory=round(fmean(view.memory or 0 for view in views)) or None,
        node=", ".join(f"{node} ×{count}" for node, count in nodes.items()),
    )


def _flow(run_stats: RunStats) -> Text:
    """`actor ×4 51,200/s ──▶ queue 3 ──▶ learner 48,211/s`."""
    stages = []
    for kind, members in run_stats.windows().items():
        if kind.evaluates:
            continue
        rate = sum(totals.rate("env_steps") or totals.rate("steps_read") for totals in members)
        if kind.trains and run_stats.queue_depth is not None:
            stages.append(f"queue {run_stats.queue_depth:.0f}")
        many = f" ×{len(members)}" if len(members) > 1 else ""
        stages.append(f"{kind.name}{many}" + (f" {figure(rate)}/s" if rate else ""))
    return Text(" ──▶ ".join(stages) or f"starting {run_stats.cast()}", style="cyan")


def _progress(run_stats: RunStats, width: int) -> RenderableType:
    steps = f" {done(run_stats)} · ETA {remaining(run_stats)}"
    bar = ProgressBar(total=1.0, completed=run_stats.progress, width=max(8, width - len(steps) - 1))
    line = Table.grid()
    line.add_row(bar, Text(steps, no_wrap=True, overflow="ellipsis"))
    return line


def _numbers(run_stats: RunStats) -> RenderableType:
    limits = ", ".join(f"{kind} {figure(limit)}" for kind, limit in run_stats.limits().items())
    greedy = "" if run_stats.eval_return is None else f" · greedy {figure(run_stats.eval_return)}"
    lines = Table.grid(padding=(0, 1))
    lines.add_column(style="dim", no_wrap=True, min_width=len("policy lag"))
    lines.add_column(overflow="ellipsis", no_wrap=True)
    speed, updates = figure(run_stats.steps_per_second), figure(run_stats.updates_per_second)
    depth = queue_depth(run_stats)
    lines.add_row("speed", f"{speed} steps/s, {updates} updates/s" if run_stats.plays else f"{speed} updates/s")
    lines.add_row("limits", f"{limits} steps/s" if limits else "–")
    if run_stats.plays:
        lines.add_row("episodes", f"{run_stats.episodes:,} · {returns(run_stats)}{greedy}")
        lines.add_row("policy lag", f"{lag(run_stats)} · queue depth {depth} · restarts {run_stats.restarts}")
    else:
        lines.add_row("evaluation", f"{returns(run_stats)} · restarts {run_stats.restarts}")
    if lost := losses(run_stats, 4):
        lines.add_row("losses", printable(lost))
    if own := measured(run_stats, 8):
        lines.add_row("measured", printable(own))
    if run_stats.storage:
        lines.add_row("storage", Text(run_stats.storage, style="red"))
    return lines


def _roles(views: Sequence[RoleView], narrow: bool) -> RenderableType:
    table = Table(box=None, padding=(0, 1), pad_edge=False, header_style="dim")
    where = ["node"] if any(view.node for view in views) else []
    for name in ("role", *where, "busy ▒ waiting", "waits for", *([] if narrow else ["state", "restarts"]), "memory"):
        number, sentence = name in ("restarts", "memory"), name in ("waits for", "state", "node")
        table.add_column(name, justify="right" if number else "left", no_wrap=not sentence)
    for view in views:
        cells = [Text(view.role), *([_one_line(view.node)] if where else [])]
        cells += [_bar(view, 8 if narrow else 20), _one_line(_waits(view))]
        state = view.state if view.silent_seconds < 2 else f"silent for {view.silent_seconds:.0f} s"
        cells += [] if narrow else [_one_line(state), Text(str(view.restarts or ""))]
        each = " each" if view.members > 1 and view.memory else ""  # pages that they share are in no sum
        table.add_row(*cells, Text(memory(view.memory) + each))
    return table


def _one_line(text: str) -> Text:
    """In a column that may wrap, so that rich narrows this one first, but cut off instead of wrapped."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def _bar(view: RoleView, width: int) -> Text:
    full = round(width * min(1.0, view.busy))
    idle = round(width * min(1.0, view.busy + view.idle)) - full
    rest = " " * (width - full - idle)  # neither: it waited for a core
    return Text.assemble(("█" * full, "green"), ("▒" * idle, "yellow"), f"{rest} {percent(view.busy):>5}")


def _waits(view: RoleView) -> str:
    longest = sorted(view.waiting.items(), key=lambda item: -item[1])[:2]
    return ", ".join(f"{what} {percent(share)}" for what, share in longest if share >= 0.005)


def _events(run_stats: RunStats) -> RenderableType:
    lines = []
    for event in list(run_stats.events)[-EVENTS_SHOWN:]:
        moment = datetime.datetime.fromtimestamp(event.time)
        first = printable(str(event)).partition("\n")[0]
        lines.append(Text(f"{moment:%H:%M:%S} {first}", style="dim", no_wrap=True, overflow="ellipsis"))
    return Group(*lines)
