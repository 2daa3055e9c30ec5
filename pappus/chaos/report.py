"""What a run with faults came to: lines to read, and chaos.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from pappus.chaos.faults import Outcome
from pappus.chaos.plan import Planned

PARTS = ("trained", "stored", "dropped", "lost", "in_flight")


@dataclass
class Report:
    """Everything that is told at the end."""

    system: str
    env: str
    seed: int
    minutes: float
    target: float | None
    not_applicable: Mapping[str, str]
    """Kinds of fault that do not apply to the system, and why."""
    planned: int = 0
    faults: list[tuple[Planned, float, Outcome]] = field(default_factory=list)
    """Each with the second at which it came."""
    steps: int = 0
    updates: int = 0
    best_return: float | None = None
    last_return: float | None = None
    parts: Sequence[Mapping[str, Any]] = ()
    """The summaries of all parts of the run that had one."""
    killed_parts: int = 0
    left_behind: Sequence[str] = ()
    problems: list[str] = field(default_factory=list)
    """What went wrong beside the faults themselves."""

    def accounts(self) -> dict[str, Any]:
        """The accounts of all parts that have one, added up."""
        known = [part["accounts"] for part in self.parts if "accounts" in part]
        sums: dict[str, Any] = {name: sum(one[name] for one in known) for name in ("received", *PARTS)}
        return {**sums, "parts": len(known), "exact": all(map(exact, known))}

    def failures(self) -> list[str]:
        """Why the exit code is not 0."""
        found = [
            f"{planned.kind} of {outcome.target} at {at:.0f} s: {outcome.problem}"
            for planned, at, outcome in self.faults if outcome.problem
        ]
        if not self.accounts()["exact"]:
            found.append(f"accounts do not match: {[part.get('accounts') for part in self.parts]}")
        found += [f"left behind: {thing}" for thing in self.left_behind]
        if self.target is not None and (self.best_return is None or self.best_return < self.target):
            found.append(f"the target return of {self.target:g} was not reached")
        return found + self.problems

    def to_dict(self) -> dict[str, Any]:
        """The content of chaos.json."""
        faults = [
            {"kind": planned.kind, "planned_at": planned.at, "at": round(at, 2), **asdict(outcome)}
            for planned, at, outcome in self.faults
        ]
        return {
            "system": self.system, "env": self.env, "seed": self.seed, "minutes": self.minutes,
            "planned": self.planned, "faults": faults, "not_applicable": dict(self.not_applicable),
            "kinds": {kind: row for kind, row in self._kinds().items()},
            "steps": self.steps, "updates": self.updates, "target_return": self.target,
            "best_return": self.best_return, "last_return": self.last_return,
            "accounts": self.accounts(), "parts_killed": self.killed_parts,
            "restarts": self._count("restarts"), "hangs": self._count("hangs"), "crashes": self._count("crashes"),
            "env_crashes": self._count("env_crashes"), "left_behind": list(self.left_behind),
            "failures": self.failures(),
        }

    def lines(self) -> list[str]:
        """The report as text."""
        survived = sum(not outcome.problem for _, _, outcome in self.faults)
        accounts, failures = self.accounts(), self.failures()
        sums = " + ".join(f"{name.replace('_', ' ')} {accounts[name]:,}" for name in PARTS if accounts[name])
        best = "none" if self.best_return is None else f"{self.best_return:.1f}"
        target = "" if self.target is None else f", target {self.target:g}"
        return [
            f"{survived} of {len(self.faults)} faults survived ({self.planned} planned) in {self.minutes:g} min.",
            "  kind       faults  survived  recovered after  at most  steps undone",
            *(_row(kind, row) for kind, row in self._kinds().items()),
            *(f"  {kind:<10} does not apply: {why}" for kind, why in self.not_applicable.items()),
            f"  learning   best return {best}{target}; {self.steps:,} steps, {self.updates:,} updates",
            f"  accounts   received {accounts['received']:,} = {sums or 0} in {accounts['parts']} parts with a summary"
            f"{'' if accounts['exact'] else '; THEY DO NOT MATCH'}; {self.killed_parts} killed as a whole",
            f"  left       {', '.join(self.left_behind) or 'nothing'}",
            *(f"  FAILED     {text}" for text in failures),
        ]

    def _kinds(self) -> dict[str, dict[str, Any]]:
        """Figures by kind of fault, in the order in which they came first."""
        rows = {}
        for kind in dict.fromkeys(planned.kind for planned, _, _ in self.faults):
            outcomes = [outcome for planned, _, outcome in self.faults if planned.kind == kind]
            times = [outcome.seconds for outcome in outcomes if outcome.seconds is not None]
            rows[kind] = {
                "faults": len(outcomes), "survived": sum(not outcome.problem for outcome in outcomes),
                "seconds_mean": fmean(times) if times else None, "seconds_max": max(times, default=None),
                "steps_undone": sum(outcome.steps_undone for outcome in outcomes),
            }
        return rows

    def _count(self, what: str) -> int:
        return sum(sum(part.get(what, {}).values()) for part in self.parts)


def exact(accounts: Mapping[str, Any]) -> bool:
    """Whether every step that was received is somewhere."""
    return bool(accounts["balanced"]) and accounts["received"] == sum(accounts[name] for name in PARTS)


def _row(kind: str, row: Mapping[str, Any]) -> str:
    mean, most = ("–" if row[name] is None else f"{row[name]:.1f} s" for name in ("seconds_mean", "seconds_max"))
    undone = f"{row['steps_undone']:,}"
    return f"  {kind:<10} {row['faults']:>6}  {row['survived']:>8}  {mean:>15}  {most:>7}  {undone:>12}"
