"""The bottleneck of a run, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pappus.kinds import RoleKind

BUSY = 0.75
"""A role this busy limits the run; where no role is, latency between roles does."""
CLOSE = 0.15
"""Kinds of roles whose busy shares are this near to each other are in balance."""
NOTICEABLE = 0.05
"""Waiting below this share is not mentioned."""
SILENT_SECONDS = 10.0
"""A role without a report for so long is mentioned."""
ROOM = 1.0
"""Cores that must be free before another actor is good advice."""


@dataclass(frozen=True)
class RoleView:
    """What one role does: shares of its time over the last few seconds."""

    role: str
    kind: RoleKind
    state: str
    busy: float
    waiting: dict[str, float]
    restarts: int = 0
    memory: int | None = None
    silent_seconds: float = 0.0
    node: str = ""
    members: int = 1
    """Roles that it shows together; then `memory` is their mean."""
    computing: float | None = None
    """Share of its time that its thread computed while it was busy; None where the kernel does not say."""
    cpu: float | None = None
    """Cores that it uses: its thread, polling included, and the threads and processes that compute for it."""
    queued: float | None = None
    """Share of its time that its thread was ready, but had no core."""
    asleep: float | None = None
    """Share of its time that it was busy, but slept or waited for something outside."""
    in_envs: float | None = None
    """Share of its time in steps of envs; None for a role without envs."""
    env_asleep: float | None = None
    """Share of its time that it slept in steps of envs, of `asleep`."""
    step_seconds: tuple[float, float] | None = None
    """How long a step of all its envs takes: median and p99."""
    slow_steps: float = 0.0
    """Share of the time in envs that steps take which last longer than 5 times the median."""
    start: float | None = None
    """Seconds until its first count; None before."""

    @property
    def idle(self) -> float:
        """Share of time spent waiting, whatever for."""
        return sum(self.waiting.values())


def percent(share: float) -> str:
    """`41 %`."""
    return f"{100 * share:.0f} %"


def verdict(views: Sequence[RoleView], cores: int, one_thread: bool = False, slack_option: str = "") -> str:
    """One sentence: the bottleneck, the evidence, and what to change. `slack_option` lets actors run further ahead."""
    views = [view for view in views if not view.kind.background]
    slowest = max(views, key=lambda view: view.silent_seconds, default=None)
    if slowest and slowest.silent_seconds > SILENT_SECONDS:
        return f"{_name(slowest)} has not reported for {slowest.silent_seconds:.0f} s: one step takes long, or is stuck"
    measured = [view for view in views if view.busy + view.idle > 0]
    if not measured:
        return "nothing measured yet"
    busiest = max(measured, key=lambda view: view.busy)
    if one_thread:
        return (
            f"one thread does everything, {_name(busiest)} takes {percent(busiest.busy)} of it; "
            "--runtime local runs the roles side by side"
        )
    if busiest.busy < BUSY:
        return _spread(busiest, measured, slack_option)
    rivals = [view for view in measured if view.kind != busiest.kind and busiest.busy - view.busy < CLOSE]
    return _balanced(busiest, rivals[0], cores) if rivals else _bottleneck(busiest, measured, cores)


def _bottleneck(busiest: RoleView, views: Sequence[RoleView], cores: int) -> str:
    share, evidence = max((_waits(view) for view in views if view.kind != busiest.kind), default=(0.0, ""))
    clause = f", {evidence}" if share >= NOTICEABLE else ""
    return f"{_name(busiest)} is the bottleneck: busy {percent(busiest.busy)}{clause}; {_remedy(busiest, views, cores)}"


def _balanced(one: RoleView, other: RoleView, cores: int) -> str:
    return (
        f"balanced: {_name(one)} is busy {percent(one.busy)} and {_name(other)} {percent(other.busy)}; "
        f"to go faster, grow both (this machine has {cores} cores)"
    )


def _spread(busiest: RoleView, views: Sequence[RoleView], slack_option: str) -> str:
    share, clause = max(_waits(view) for view in views)
    detail = f" and {clause}" if share >= NOTICEABLE else ""
    further = f"let actors run further ahead ({slack_option}) or " if slack_option else ""
    remedy = f"{further}give each step more work (--envs-per-actor)"
    if not any(view.kind.steps_envs for view in views):
        remedy = "give each update more work (--batch-size)"
    return (
        f"no role is the bottleneck: the busiest, {_name(busiest)}, is busy {percent(busiest.busy)}{detail}; {remedy}"
    )


def _remedy(busiest: RoleView, views: Sequence[RoleView], cores: int) -> str:
    kind = busiest.kind
    if kind.steps_envs and cores - sum(view.busy for view in views) < ROOM:
        return f"no core of {cores} is free for another {kind.name}, so add envs (--envs-per-actor) or cores"
    return kind.remedy or f"give {kind.name} more resources"


def _waits(view: RoleView) -> tuple[float, str]:
    what, share = max(view.waiting.items(), key=lambda item: item[1], default=("", 0.0))
    return share, f"{_name(view)} waits for {what} {percent(share)} of its time"


def _name(view: RoleView) -> str:
    """`actor-3`, but `the learner`."""
    return view.role if view.role != view.kind.name else f"the {view.role}"
