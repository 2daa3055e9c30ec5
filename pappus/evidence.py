"""What shows that settings work: runs that were made, with the results that they had."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pappus.errors import UserError
from pappus.ops.intervals import half_interval, interval


@dataclass(frozen=True)
class Evidence:
    """Runs of one system on one env."""

    system: str
    env: str
    seeds: Sequence[int]
    values: Sequence[float | None]
    """By seed: env steps until the target return was reached (None: never), or without a target the greedy return at
    the end."""
    date: str
    """Day of the commit, or of the runs where that is known: 2026-11-15."""
    commit: str
    target: float | None = None
    options: Sequence[str] = ()
    """Words of the command line, beside system, env and seed."""
    steps_per_second: float | None = None
    """Median over the runs."""
    source: str = ""
    """The page that has more."""
    machine: str = "2 cores"
    on_gpu: bool = False
    """Whether the learner computed on a GPU, for which there are presets of their own."""

    @property
    def name(self) -> str:
        """How `python -m benchmarks.evidence` finds it: ppo-CartPole-v1."""
        return re.sub("[/:]", "-", f"{self.system}-{self.env}")

    @property
    def what(self) -> str:
        return "greedy return at the end" if self.target is None else f"steps to a return of {self.target:g}"

    @property
    def known(self) -> list[float]:
        """The values of seeds that have one."""
        return [value for value in self.values if value is not None]

    @property
    def range(self) -> tuple[float, float]:
        """The 95 % interval of the mean."""
        middle = sum(self.known) / len(self.known)
        return middle - half_interval(self.known), middle + half_interval(self.known)

    def command(self, seeds: str | None = None) -> str:
        """The command line that repeats it."""
        words = [f"--target-return {self.target:g}"] if self.target is not None else []
        chosen = seeds or ",".join(map(str, self.seeds))
        return " ".join(["pappus train", self.system, f"--env {self.env}", *words, *self.options, f"--seeds {chosen}"])

    def __str__(self) -> str:
        found = interval(self.known) if self.known else "never"
        missed = len(self.values) - len(self.known)
        among = f"{len(self.known)} of {len(self.values)} seeds" if missed else f"{len(self.values)} seeds"
        speed = f", {self.steps_per_second:,.0f} steps/s" if self.steps_per_second else ""
        among += ", 95 % interval" if len(self.known) > 1 else ""
        where = f"{self.machine}, {self.date}, commit {self.commit}"
        return f"{self.system}: {self.what}: {found} ({among}{speed}; {where})"


def evidence_of(content: Any, source: str) -> Evidence:
    """The evidence in a file that a sweep wrote; `UserError` for anything else."""
    names = {field.name for field in dataclasses.fields(Evidence)}
    try:
        if not isinstance(content, Mapping):
            raise TypeError("it is no mapping")
        found = Evidence(**{name: value for name, value in content.items() if name in names})
        if len(found.seeds) != len(found.values) or not found.seeds:
            raise ValueError("seeds and values differ in number")
        str(found), [float(value) for value in found.known]
    except (TypeError, ValueError) as error:
        raise UserError(f"the evidence in {source} cannot be read: {error}") from None
    return found


def plain(evidence: Evidence) -> dict[str, Any]:
    """As YAML and JSON have it."""
    return {key: list(one) if isinstance(one, tuple) else one for key, one in dataclasses.asdict(evidence).items()}
