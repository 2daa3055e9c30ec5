"""A role: a part of a program that does one bounded piece of work at a time."""

from __future__ import annotations

from pappus.core import Waitable
from pappus.telemetry.metrics import Metrics
from pappus.types import Nest


class Role:
    """One bounded piece of work at a time. Subclasses override what they need."""

    stateful = True
    """Whether `save` may return state that a successor needs."""
    finished = False
    """Set by a role that has done all that the config asks for, or was told to end its work."""
    wake_at: float | None = None
    """Set by a role that must be stepped at this time (of `time.perf_counter`) even if its port stays silent."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.metrics = Metrics(name)

    def step(self) -> Waitable | None:
        """Make progress and return None, or return the port that has to be waited for."""
        raise NotImplementedError

    def receive(self, command: str, argument: int) -> None:
        """Obey a command of the runtime."""
        raise NotImplementedError(f"{self.name} knows no command {command!r}")

    def save(self) -> Nest | None:
        """All that the role needs to continue from here; None if it starts afresh instead."""
        return None

    def load(self, state: Nest) -> None:
        """Continue from what `save` returned."""

    def progress(self) -> tuple[int, int] | None:
        """Steps and updates of the run so far, if this role counts them."""
        return None

    def close(self) -> None:
        """Release envs and files."""


class NeverRings:
    """The notifier of a port that only a command can wake."""

    count = 0


class Idle:
    """The port of a role that has nothing to do until a command comes."""

    name = "commands"
    notifier = NeverRings()

    def explain(self) -> str:
        return "nothing is asked of it"

    def fileno(self) -> int:
        return -1

    def clear(self) -> None: ...


IDLE = Idle()
