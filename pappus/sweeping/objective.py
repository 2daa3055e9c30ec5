"""The objective of a sweep, and the intermediate returns by which trials are pruned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from pappus.telemetry.history import GREEDY, TRAINING, History

UNSOLVED = 2
"""A run that does not reach the target counts as this many times its step budget."""


@dataclass(frozen=True)
class Objective:
    """steps: fewest env steps to a target return. return: highest greedy return at the end."""

    kind: Literal["steps", "return"]
    budget: int
    """Steps of a run."""
    target: float | None
    rungs: int
    """Number of equally spaced steps at which trials are compared by their returns."""
    by_evaluations: bool
    """Whether these are returns of greedy evaluations; otherwise of training episodes."""

    @property
    def minimises(self) -> bool:
        return self.kind == "steps"

    @property
    def what(self) -> str:
        return f"steps to a return of {self.target:g}" if self.minimises else "greedy return at the end"

    def result(self, summaries: Sequence[Mapping[str, Any]]) -> float | None:
        """The mean over the seeds of a trial; None if a run has no return."""
        values = [self.value(summary) for summary in summaries]
        if self.minimises:
            values = [UNSOLVED * self.budget if value is None else value for value in values]
        known = [value for value in values if value is not None]
        return float(np.mean(known)) if known and len(known) == len(values) else None

    def value(self, summary: Mapping[str, Any]) -> float | None:
        """Of one run: the steps that it took, or its greedy return; None if there is none."""
        value = summary.get("solved_at_step" if self.minimises else "eval_return")
        return None if value is None else float(value)

    def at_rung(self, rung: int, histories: Sequence[History], ended: Sequence[bool]) -> float | None:
        """The mean return over the seeds at a rung (1 is the first), between the points of a curve linearly; None where
        a run has not come so far. One that has ended stays where it was."""
        step = rung * self.budget / self.rungs
        found = []
        for history, over in zip(histories, ended, strict=True):
            steps, _, values = history.points(GREEDY if self.by_evaluations else TRAINING)
            if not len(steps) or (steps[-1] < step and not over):
                return None
            found.append(float(np.interp(step, steps, values)))
        return float(np.mean(found)) if found else None
