"""Numbers and outcomes as text for users."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from pappus.telemetry.cost import shown
from pappus.telemetry.figures import figure
from pappus.telemetry.role_view import percent
from pappus.telemetry.run_log import Summary
from pappus.telemetry.run_stats import NO_EPISODE, RunStats

NOT_HERE = ("spec:", "data:")
"""Envs that are stepped elsewhere, or nowhere."""
OUTCOMES = {
    "steps done": "Trained", "time is up": "Time was up after", "target reached": "Solved after",
    "interrupted": "Interrupted and saved after", "storage failed": "Storage failed after",
    "budget spent": "The budget was spent after",
    "stopped by a callback": "Stopped by a callback after", "a callback failed": "A callback failed after",
}

LABEL = 18
"""Letters before the text of a final line."""
COPIED = ("run", "evaluate", "look", "curves", "go on", "what happened")
UNFINISHED = ("interrupted", "storage failed", "a callback failed")
"""Exit reasons of runs that are told how to go on."""


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """A table: the first column to the left, the others to the right, a line under the heads."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return [lines[0].rstrip(), "  ".join("─" * width for width in widths), *map(str.rstrip, lines[1:])]


def duration(seconds: float) -> str:
    """`1:02:03` or `2:03`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def printable(text: str) -> str:
    """The text without control characters, which could repaint a terminal."""
    return "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in text)


def remaining(run_stats: RunStats) -> str:
    """Time to go at the present rate."""
    left = run_stats.seconds_left
    return "–" if left is None else duration(left)


def done(run_stats: RunStats) -> str:
    """`41 % · 410,000 of 1,000,000 steps`, or `41 % of the time · 73,000 steps` where that is used up first."""
    share, limit, steps = percent(run_stats.progress), run_stats.nearest_limit, f"{run_stats.env_steps:,}"
    if limit == "steps":
        return f"{share} · {steps} of {run_stats.config.steps:,} steps"
    return f"{share} of the {'time' if limit == 'seconds' else f'budget of {limit}'} · {steps} steps"


def returns(run_stats: RunStats) -> str:
    """`return 132.4, length 132`; of a run without training episodes `greedy return 132.4`."""
    if not run_stats.plays:
        shown = run_stats.eval_return
        return "not evaluated yet" if shown is None else f"greedy return {figure(shown)}"
    if run_stats.episodic_return is None or run_stats.episodic_length is None:
        return NO_EPISODE
    return f"return {figure(run_stats.episodic_return)}, length {figure(run_stats.episodic_length)}"


def measured(run_stats: RunStats, most: int) -> str:
    """`success 0.83 · distance 1.2`: what envs and callbacks measure, the first few."""
    found = list(run_stats.measured_here().items())
    shown = [f"{name.removeprefix('env/').removeprefix('callback/')} {figure(value)}" for name, value in found[:most]]
    return " · ".join([*shown, *(["…"] if len(found) > most else [])])


def losses(run_stats: RunStats, most: int) -> str:
    """`policy_loss -0.012 · value_loss 0.31`: the first few."""
    found = list(run_stats.losses().items())
    return " · ".join(f"{name.replace('_', ' ')} {figure(value)}" for name, value in found[:most])


def lag(run_stats: RunStats) -> str:
    """`1.2 (max 4)`, in versions of the weights."""
    return "–" if run_stats.policy_lag is None else f"{run_stats.policy_lag[0]:.1f} (max {run_stats.policy_lag[1]:.0f})"


def queue_depth(run_stats: RunStats) -> str:
    return "–" if run_stats.queue_depth is None else f"{run_stats.queue_depth:.0f}"


def title(run_stats: RunStats) -> str:
    config = run_stats.config
    processes = "cluster (ray)" if config.runtime == "ray" else "processes (local)"
    runtime = "one thread (inline)" if config.inline else processes
    return f"{config.system_name} · {config.env} · seed {config.seed} · {runtime}"


def wrapped(line: str, width: int) -> list[str]:
    """One of the final lines, cut between words, below the column where its text begins. What is to be copied, such as
    a command or a path, stays whole."""
    label = line[:LABEL].strip()
    if len(line) <= width or label in COPIED:
        return [line]
    return textwrap.wrap(
        line, width, subsequent_indent=" " * LABEL * (line[:2] == "  "), break_long_words=False, break_on_hyphens=False
    )


def result_line(summary: Summary) -> str:
    """The run's end in one line: `Solved after 104,800 steps in 0:31: return 480.1 (last 100 episodes), …`."""
    return f"{_ended(summary)} {summary.steps:,} steps in {duration(summary.wall_seconds)}: return {_outcome(summary)}"


def _ended(summary: Summary) -> str:
    if summary.extras.get("unsaved"):
        return f"{summary.exit_reason.capitalize()}, without a last checkpoint, after"
    return OUTCOMES.get(summary.exit_reason, f"{summary.exit_reason.capitalize()} after")


def farewell(summary: Summary | None, run: Path | str, verdict: str, curves: bool = True) -> list[str]:
    """The final lines: outcome, steps, rates, returns, where the run is, what to try next; `curves`: it has some for
    TensorBoard."""
    if summary is None:
        go_on = [_resume(run)] if any((Path(run) / "checkpoints").glob("step-*")) else []
        return ["The run ended early.", f"  what happened   {Path(run) / 'log.txt'}", *go_on]
    newest = summary.extras.get("storage", {}).get("fallback") or run
    lines = [
        f"{_ended(summary)} {summary.steps:,} steps in "
        f"{duration(summary.wall_seconds)} ({duration(summary.train_seconds)} of it training).",
        f"  speed           {figure(summary.steps_per_second)} steps/s, {summary.updates:,} updates",
        f"  return          {_outcome(summary)}",
        *([f"  faults          {faults}"] if (faults := _faults(summary)) else []),
        *([f"  steps           {accounts}"] if (accounts := _accounts(summary)) else []),
        *([f"  cost            {cost}"] if (cost := _cost(summary)) else []),
        f"  verdict         {verdict}",
        f"  run             {run}",
        *_lost(summary),
        *([] if summary.env.startswith(NOT_HERE) else [f"  evaluate        pappus eval {newest}"]),
        f"  look            pappus page {newest}",
        *([f"  curves          tensorboard --logdir {run}"] if curves else []),
    ]
    return [*lines, _resume(run)] if summary.exit_reason in UNFINISHED else lines


def _cost(summary: Summary) -> str:
    """`computing 12.3 CPU seconds (0.00342 core hours) · peak memory 512 MiB · money 0.01`."""
    found = summary.extras.get("cost")
    return " · ".join(f"{label} {text}" for label, text in shown(found).items()) if found else ""


def _lost(summary: Summary) -> list[str]:
    lost = summary.extras.get("storage", {}).get("lost", {})
    return [f"  lost            {', '.join(f'{count:,} of {what}' for what, count in lost.items())}"] if lost else []


def _accounts(summary: Summary) -> str:
    """`received 12,000 = trained 11,000 + dropped 900 + lost 100`; empty where all were trained on or stored."""
    counts = dict(summary.extras.get("accounts") or {})
    balanced, received = counts.pop("balanced", True), counts.pop("received", 0)
    if balanced and received == counts.get("trained", 0) + counts.get("stored", 0):
        return ""
    parts = " + ".join(f"{what.replace('_', ' ')} {count:,}" for what, count in counts.items() if count)
    return f"received {received:,} = {parts}{'' if balanced else ', which does not balance: this is a bug'}"


def _faults(summary: Summary) -> str:
    """`35 restarts (actor 35), 34 env crashes (actor 34)`; empty where nothing happened."""
    words = {
        "restarts": "restarts", "env_crashes": "env crashes", "hangs": "hangs", "crashes": "other crashes and kills",
    }
    counts = {word: summary.extras.get(what) or {} for what, word in words.items()}
    parts = [
        f"{sum(kinds.values()):,} {word} ({', '.join(f'{kind} {number:,}' for kind, number in kinds.items())})"
        for word, kinds in counts.items() if kinds
    ]
    return ", ".join(parts)


def _outcome(summary: Summary) -> str:
    shown, greedy = summary.episodic_return, summary.eval_return
    parts = [] if shown is None else [f"{figure(shown)} (last 100 episodes)"]
    if greedy is not None:
        parts.append(f"{figure(greedy)} (greedy evaluation)")
    if not parts:
        parts = ["not evaluated: there is no env"] if summary.env.startswith("data:") else [NO_EPISODE]
    if summary.solved_at_step is not None:
        parts.append(f"target reached at step {summary.solved_at_step:,}")
    return ", ".join(parts)


def _resume(run: Path | str) -> str:
    return f"  go on           pappus train --resume {run}"
