"""A sweep's study as text, JSON and HTML, written anew whenever a trial ends."""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Sequence
from pathlib import Path

from pappus.sweeping.plan import Plan
from pappus.sweeping.result import Verdict
from pappus.sweeping.space import Parameter, Range, Value
from pappus.sweeping.study import Trial
from pappus.telemetry.files import write_json, write_text
from pappus.telemetry.wording import aligned, duration

STEM = "study"
WIDTH, HEIGHT, MARGIN = 420, 220, 44
COLORS = {"complete": "#2a6f97", "pruned": "#c0c0c0", "failed": "#c1121f", "running": "#e9c46a"}
STYLE = (
    "body{font:14px sans-serif;margin:2em;max-width:75em}table{border-collapse:collapse}"
    "td,th{padding:.2em .7em;text-align:right;border-bottom:1px solid #ddd}"
    "svg{margin:.5em}pre{background:#f4f4f4;padding:1em}"
)


def write_pages(
    directory: Path, plan: Plan, trials: Sequence[Trial], best: Trial | None, verdict: Verdict | None
) -> None:
    """study.txt, study.json and study.html."""
    write_text(directory / f"{STEM}.txt", text_page(plan, trials, best, verdict) + "\n")
    write_json(directory / f"{STEM}.json", {
        "system": plan.system, "env": plan.env, "objective": dataclasses.asdict(plan.objective),
        "trials": [dataclasses.asdict(trial) for trial in trials], "best": None if best is None else best.number,
        "verdict": None if verdict is None else dataclasses.asdict(verdict),
    })
    write_text(directory / f"{STEM}.html", html_page(plan, trials, best, verdict))


def head(plan: Plan, trials: Sequence[Trial]) -> str:
    """The space and the progress of a sweep, in a line."""
    counts = {state: sum(trial.state == state for trial in trials) for state in COLORS}
    states = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    seeds = ", ".join(map(str, plan.seeds))
    return (
        f"{plan.system} on {plan.env}: {plan.objective.what}, mean over seeds {seeds}; "
        f"{sum(trial.state != 'running' for trial in trials)} of {plan.trials} trials ended ({states or 'none begun'})"
    )


def line_of(plan: Plan, trial: Trial, best: Trial | None) -> str:
    """One line for a trial that has ended."""
    values = ", ".join(f"{name.rpartition('.')[2]} {shown(value)}" for name, value in trial.values.items())
    outcome = result_of(trial) if trial.state == "complete" else state_of(plan, trial)
    which = "best so far" if best is not None and best.number == trial.number else ""
    known = f"best: {best.number} with {result_of(best)}" if best is not None else ""
    tested = " (defaults)" if trial.is_default else ""
    return f"trial {trial.number:>3}  {outcome:>18}  {values}{tested}  [{which or known}]"


def text_page(plan: Plan, trials: Sequence[Trial], best: Trial | None, verdict: Verdict | None) -> str:
    """The study as text: every trial, the best one, and its result on held-out seeds."""
    lines = [head(plan, trials), "", *aligned(_rows(plan, trials))]
    if best is not None:
        lines += ["", f"best: trial {best.number}, {result_of(best)}"]
        lines += [f"  --{name} {value}" for name, value in best.values.items()]
    if verdict is not None:
        lines += ["", f"on seeds that no trial had: {', '.join(map(str, plan.held_out))}", verdict.text]
    return "\n".join(lines)


def html_page(plan: Plan, trials: Sequence[Trial], best: Trial | None, verdict: Verdict | None) -> str:
    """The same as one HTML file, with a picture of the results over trials and over each option."""
    heads, *rows = _rows(plan, trials)
    pictures = [_scatter("trial", [(trial, float(trial.number)) for trial in trials], plan, log=False)]
    pictures += [_slice(parameter, plan, trials) for parameter in plan.space]
    said = text_page(plan, [], best, verdict).partition("\n\n")[2].partition("\n\n")[2] if best is not None else ""
    return "\n".join([
        f"<!doctype html><meta charset=utf-8><title>{html.escape(plan.system)} on {html.escape(plan.env)}</title>",
        f"<style>{STYLE}</style><h1>Sweep</h1><p>{html.escape(head(plan, trials))}</p>",
        f"<pre>{html.escape(said)}</pre>", *pictures, "<table>", _row(heads, "th"), *(_row(row, "td") for row in rows),
        "</table>", "",
    ])


def result_of(trial: Trial) -> str:
    """`63,488`, or a return with a digit."""
    value = trial.result
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}"


def state_of(plan: Plan, trial: Trial) -> str:
    """`pruned at 75,000`, the step to which it was compared last."""
    if trial.state != "pruned":
        return trial.state
    return f"pruned at {max(trial.rungs, default=0) * plan.objective.budget // plan.objective.rungs:,}"


def shown(value: Value) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _rows(plan: Plan, trials: Sequence[Trial]) -> list[list[str]]:
    names = [parameter.name for parameter in plan.space]
    rows = [["trial", "state", plan.objective.what, "time", *names]]
    for trial in trials:
        spent = "–" if trial.seconds is None else duration(trial.seconds)
        values = [shown(trial.values[name]) if name in trial.values else "–" for name in names]
        number = f"{trial.number}{' (defaults)' if trial.is_default else ''}"
        rows.append([number, state_of(plan, trial), result_of(trial), spent, *values])
    return rows


def _row(cells: Sequence[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def _slice(parameter: Parameter, plan: Plan, trials: Sequence[Trial]) -> str:
    """Results over the values of one option."""
    known = [trial for trial in trials if parameter.name in trial.values]
    if isinstance(parameter, Range):
        points = [(trial, float(trial.values[parameter.name])) for trial in known]
        return _scatter(parameter.name, points, plan, parameter.log)
    places = {label: float(i) for i, label in enumerate(parameter.labels)}
    name = f"{parameter.name}: {', '.join(parameter.labels)}"
    return _scatter(name, [(trial, places[str(trial.values[parameter.name])]) for trial in known], plan, log=False)


def _scatter(title: str, points: Sequence[tuple[Trial, float]], plan: Plan, log: bool) -> str:
    """Complete trials as points; what was pruned or failed stands below the axis."""
    across = [math.log10(x) if log else x for _, x in points]
    results = [trial.result for trial, _ in points if trial.result is not None]
    low, high = (min(results), max(results)) if results else (0.0, 1.0)
    marks = []
    for (trial, value), x in zip(points, across, strict=True):
        left = MARGIN + (WIDTH - 2 * MARGIN) * _share(x, min(across), max(across))
        share = None if trial.result is None else _share(trial.result, low, high)
        top = HEIGHT - MARGIN / 2 if share is None else HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * share
        told = f"trial {trial.number}: {shown(value)}, {result_of(trial)} {trial.state}"
        circle = f'<circle cx="{left:.1f}" cy="{top:.1f}" r="4" fill="{COLORS[trial.state]}">'
        marks.append(f"{circle}<title>{html.escape(told)}</title></circle>")
    return _framed(title, plan, (low, high), across, log, marks)


def _framed(
    title: str, plan: Plan, span: tuple[float, float], across: Sequence[float], log: bool, marks: Sequence[str]
) -> str:
    ends = [f"{10 ** x if log else x:.3g}" for x in (min(across, default=0.0), max(across, default=1.0))]
    return (
        f'<svg width="{WIDTH}" height="{HEIGHT}" font-size="11"><text x="{MARGIN}" y="14">{html.escape(title)}</text>'
        f'<path d="M{MARGIN} {MARGIN / 2}V{HEIGHT - MARGIN}H{WIDTH - MARGIN / 2}" fill="none" stroke="#888"/>'
        f'<text x="2" y="{MARGIN}">{_short(span[1])}</text><text x="2" y="{HEIGHT - MARGIN}">{_short(span[0])}</text>'
        f'<text x="{MARGIN}" y="{HEIGHT - MARGIN + 14}">{ends[0]}</text>'
        f'<text x="{WIDTH - MARGIN}" y="{HEIGHT - MARGIN + 14}" text-anchor="end">{ends[1]}</text>'
        f"{''.join(marks)}</svg>"
    )


def _short(value: float) -> str:
    return f"{value / 1000:.0f}K" if abs(value) >= 10_000 else f"{value:.4g}"


def _share(value: float, low: float, high: float) -> float:
    return 0.5 if high == low else (value - low) / (high - low)


