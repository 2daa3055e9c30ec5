"""What one role of a run does with its time."""

from __future__ import annotations

from dataclasses import dataclass

from pappus.kinds import RoleKind


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
    helpers: float | None = None
    """Cores that other threads of its process and its child processes use; None for a role that shares its process."""
    children: float | None = None
    """Cores that its child processes use, of `helpers`."""
    queued: float | None = None
    """Share of its time that its thread was ready, but had no core: while it was busy, and after it had been woken."""
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
    def name(self) -> str:
        """`actor-3`, but `the learner`."""
        return self.role if self.role != self.kind.name else f"the {self.role}"

    @property
    def idle(self) -> float:
        """Share of time spent waiting for other roles."""
        return sum(self.waiting.values())

    @property
    def waited(self) -> float:
        """Share of time spent waiting, whatever for."""
        return self.idle + (self.queued or 0.0)


def percent(share: float) -> str:
    """`41 %`."""
    return f"{100 * share:.0f} %"
