"""The costs of groups of runs: in total, and until they reached a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np

from pappus.comparing.runs import Group, Run
from pappus.comparing.scores import NAMES
from pappus.telemetry.figures import figure
from pappus.telemetry.wording import aligned

AMOUNTS = {
    "core hours": "core_hours", "GPU seconds held": "gpu_held_seconds", "joules": "joules", "money": "money",
    "seconds": "wall_seconds",
}
"""Columns, and the numbers of a run's costs that they show."""
ONLY_WHERE_USED = ("gpu_held_seconds",)


@dataclass(frozen=True)
class GroupCost:
    """Means over the runs of a group that know them; what no run knows is absent."""

    group: Group
    runs: int
    whole: Mapping[str, float]
    reached: int
    """Runs that came to the target."""
    to_target: Mapping[str, float]
    """Means over these."""


def costs_of(groups: Sequence[Group], kind: str, target: float | None) -> list[GroupCost]:
    """The costs of groups; without a `target` that of each run's own config counts."""
    found = []
    for group in groups:
        runs = [run for members in group.runs.values() for run in members]
        reached = [one for run in runs if (one := cost_to(run, kind, target))]
        found.append(GroupCost(group, len(runs), _means([_whole(run) for run in runs]), len(reached), _means(reached)))
    return found


def cost_to(run: Run, kind: str, target: float | None) -> dict[str, float]:
    """The costs of a run until its return first reached the target; empty if it never did."""
    if target is None:
        return _amounts(_whole(run).get("to_target", {}))
    columns = run.history.columns
    values = columns.get(NAMES[kind], np.zeros(0))
    rows = np.flatnonzero(values >= target)
    if len(rows):
        return _amounts({
            name: float(columns[f"cost/{name}"][rows[0]]) for name in AMOUNTS.values() if f"cost/{name}" in columns
        })
    final = run.final(NAMES[kind])
    return _amounts(_whole(run)) if final is not None and final >= target else {}


def lines_of(costs: Sequence[GroupCost], target: float | None) -> list[str]:
    """The costs as a table; nothing where no run has any."""
    names = [name for name, key in AMOUNTS.items() if any(key in one.whole for one in costs)]
    if not names:
        return []
    goal = "its target" if target is None else figure(target)
    some = any(one.reached for one in costs)
    to_it = [f"reached {goal}", *(f"{name} to it" for name in names)] if some else []
    rows = [["cost of a run (mean)", *names, *to_it]]
    for one in costs:
        row = [one.group.name, *(_cell(one.whole, name) for name in names)]
        if some:
            row += [f"{one.reached} of {one.runs}", *(_cell(one.to_target, name) for name in names)]
        rows.append(row)
    return ["", *aligned(rows)]


def plain(cost: GroupCost) -> dict[str, Any]:
    """The same for JSON."""
    whole, to_target = dict(cost.whole), dict(cost.to_target)
    return {"group": cost.group.name, "whole": whole, "reached": cost.reached, "to_target": to_target}


def _whole(run: Run) -> dict[str, Any]:
    found = run.summary.get("cost")
    return found if isinstance(found, dict) else {}


def _amounts(block: Mapping[str, Any]) -> dict[str, float]:
    known = {key: block.get(key) for key in AMOUNTS.values()}
    return {
        key: value for key, value in known.items()
        if isinstance(value, int | float) and np.isfinite(value) and (value or key not in ONLY_WHERE_USED)
    }


def _means(blocks: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    amounts = [_amounts(block) for block in blocks]
    found = {key: [one[key] for one in amounts if key in one] for key in AMOUNTS.values()}
    return {key: fmean(values) for key, values in found.items() if values}


def _cell(amounts: Mapping[str, float], name: str) -> str:
    value = amounts.get(AMOUNTS[name])
    return "–" if value is None else figure(value)
