"""A summary of a data set as text for people and as plain values for machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pappus.data.listing import size_text
from pappus.data.statistics import Moments
from pappus.data.summary import SAID, Summary

QUANTILES = {"min": 0.0, "5 %": 0.05, "25 %": 0.25, "median": 0.5, "75 %": 0.75, "95 %": 0.95, "max": 1.0}
BARS = " ▁▂▃▄▅▆▇█"
BINS = 40
ROWS = 24
"""Entries of observations and actions that the text shows; machines get all."""


def report(found: Summary) -> str:
    """For people."""
    data = found.dataset
    limit = f", time limit {found.time_limit:,} steps" if found.time_limit else ""
    facts = [
        ("data set", f"{data.path} ({data.data_format}, {size_text(found.bytes)})"),
        ("env", (data.env or "unknown") + limit),
        ("observation", _one_line(data.observation_space)), ("action", _one_line(data.action_space)),
        ("episodes", f"{data.num_episodes:,}: {_ends(found)}"), ("steps", f"{data.num_steps:,}"),
        *_distribution("return", _finite(found.returns)), *_distribution("length", found.lengths),
        ("reward", _moments_text(found.rewards, 0)),
        *_observation_facts(found), *_action_facts(found), *_behaviour_facts(found),
    ]
    width = max(len(name) for name, _ in facts)
    lines = [f"{name:<{width}}  {text}".rstrip() for name, text in facts]
    lines += [f"problem: {problem}" for problem in found.problems[:SAID]]
    more = len(found.problems) - SAID
    lines += [f"problem: and {more:,} more"] if more > 0 else []
    lines += [f"warning: {warning}" for warning in found.warnings]
    return "\n".join(lines if found.problems else [*lines, "no problems found"])


def _one_line(space: object) -> str:
    return " ".join(str(space).split())


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _ends(found: Summary) -> str:
    return ", ".join(f"{found.ends.count(end):,} {end}" for end in ("terminated", "truncated", "cut off"))


def _distribution(name: str, values: Sequence[float]) -> list[tuple[str, str]]:
    if not values:
        return [(name, "none")]
    if min(values) == max(values):
        return [(name, f"{values[0]:,.6g} in every episode")]
    quantiles = ", ".join(f"{label} {value:,.6g}" for label, value in _quantiles(values).items())
    return [(name, f"mean {np.mean(values):,.6g}; {quantiles}"), ("", _histogram(values))]


def _finite(values: Sequence[float]) -> list[float]:
    return [value for value in values if np.isfinite(value)]


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    return {label: float(np.quantile(values, share)) for label, share in QUANTILES.items()}


def _histogram(values: Sequence[float]) -> str:
    counts, edges = np.histogram(values, bins=BINS)
    heights = np.ceil(counts / counts.max() * (len(BARS) - 1)).astype(int)
    return f"{edges[0]:,.6g} {''.join(BARS[height] for height in heights)} {edges[-1]:,.6g}"


def _observation_facts(found: Summary) -> list[tuple[str, str]]:
    rows = [
        (f"{name or 'observation'}{f'[{i}]' if len(moments.mean) > 1 else ''}", _moments_text(moments, i))
        for name, moments in found.observations.items()
        for i in range(len(moments.mean))
    ]
    return _shortened(rows)


def _shortened(rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    return rows if len(rows) <= ROWS else [*rows[:ROWS], ("", f"and {len(rows) - ROWS:,} more (--json shows all)")]


def _moments_text(moments: Moments, i: int) -> str:
    if not moments.count:
        return "none"
    low, mean, high, std = (values[i] for values in (moments.low, moments.mean, moments.high, moments.std))
    return f"min {low:.4g}, mean {mean:.4g}, max {high:.4g}, std {std:.4g}"


def _action_facts(found: Summary) -> list[tuple[str, str]]:
    facts: list[tuple[str, str]] = []
    if found.choices is not None:
        most = sum(np.log(len(counts)) for counts in found.choices.counts)
        for i, shares in enumerate(found.choices.shares()):
            name = "actions" if len(found.choices.counts) == 1 else f"actions[{i}]"
            shown = ", ".join(f"{value}: {_percent(share)}" for value, share in enumerate(shares[:ROWS]))
            facts.append((name, shown + (" …" if len(shares) > ROWS else "")))
        facts.append(("", f"entropy {found.choices.entropy():.3f} of {most:.3f} nats"))
    if found.actions is not None and found.at_bounds is not None:
        at = [f", {_percent(share)} at a bound" for share in found.at_bounds.share]
        facts += _shortened([(f"actions[{i}]", _moments_text(found.actions, i) + at[i]) for i in range(len(at))])
    if found.coverage is not None:
        effective, visited = found.coverage.effective(), found.coverage.visited
        facts.append(("coverage", f"{effective:,.0f} effective state-action cells, {visited:,} visited at least once"))
    return facts


def _behaviour_facts(found: Summary) -> list[tuple[str, str]]:
    entropy = found.behaviour_entropy
    names = ", ".join(found.behaviour) or "nothing recorded"
    said = "" if entropy is None else f"entropy {entropy:.3f} nats (mean -log_prob of what it did); "
    return [("behaviour", f"{said}columns: {names}" if found.behaviour else names)]


def as_values(found: Summary) -> dict[str, Any]:
    """For machines: numbers, text and lists of them."""
    data, coverage, choices = found.dataset, found.coverage, found.choices
    return {
        "path": str(data.path), "env": data.env, "format": data.data_format, "bytes": found.bytes,
        "observation_space": str(data.observation_space), "action_space": str(data.action_space),
        "time_limit": found.time_limit, "episodes": data.num_episodes, "steps": data.num_steps,
        "ends": {end: found.ends.count(end) for end in ("terminated", "truncated", "cut off")},
        "return": _values_of(_finite(found.returns)), "length": _values_of(found.lengths),
        "reward": _moments_values(found.rewards),
        "observations": {name or "observation": _moments_values(one) for name, one in found.observations.items()},
        "actions": None if found.actions is None else _moments_values(found.actions),
        "actions_at_bounds": None if found.at_bounds is None else found.at_bounds.share.tolist(),
        "action_shares": None if choices is None else [shares.tolist() for shares in choices.shares()],
        "action_entropy": None if choices is None else choices.entropy(),
        "coverage": None if coverage is None else {"effective": coverage.effective(), "visited": coverage.visited},
        "behaviour": {name: _moments_values(one) for name, one in found.behaviour.items()},
        "behaviour_entropy": found.behaviour_entropy,
        "problems": found.problems, "warnings": found.warnings,
    }


def _values_of(values: Sequence[float]) -> dict[str, float] | None:
    return {"mean": float(np.mean(values)), **_quantiles(values)} if values else None


def _moments_values(moments: Moments) -> dict[str, Any] | None:
    if not moments.count:
        return None
    columns = {"min": moments.low, "mean": moments.mean, "max": moments.high, "std": moments.std}
    return {name: column.tolist() for name, column in columns.items()}
