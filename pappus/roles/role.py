"""What every part of a program is: an object that does one bounded piece of work at a time."""

from __future__ import annotations

from pappus.core import Waitable
from pappus.telemetry.metrics import Metrics
from pappus.types import Nest


class Role:
    """One bounded piece of work at a time. Subclasses override what they need."""

    stateful = True
    """Whether `save` can hold something that a successor needs."""
    finished = False
    """Set by a role that has done all that the config asks for."""
    wake_at: float | None = None
    """Set by a role that wants to be stepped at this time (of `time.perf_counter`) even if its port stays silent."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.metrics = Metrics(name)

    def step(self) -> Waitable | None:
        """Make progress and return None, or return the port that stands in the way."""
        raise NotImplementedError

    def receive(self, command: str, argument: int) -> None:
        """A command from whoever runs the program."""
        raise NotImplementedError(f"{self.name} knows no command {command!r}")

    def save(self) -> Nest | None:
        """All that the role needs to go on where it stands; None if it starts afresh instead."""
        return None

    def load(self, state: Nest) -> None:
        """Go on from what `save` returned."""

    def progress(self) -> tuple[int, int] | None:
        """Steps and updates of the run as of now, if this role is the one that counts them."""
        return None

    def close(self) -> None:
        """Release envs and files."""


class Trainer(Role):
    """A role that makes the updates, and can be told that there were enough."""

    def receive(self, command: str, argument: int) -> None:
        """`finish` ends its work."""
        if command != "finish":
            return super().receive(command, argument)
        self.finished = True


class NeverRings:
    """The notifier of what only a command can end."""

    count = 0


class Idle:
    """What a role waits for when it has nothing to do until a command comes."""

    name = "commands"
    notifier = NeverRings()

    def explain(self) -> str:
        return "nothing is asked of it"

    def fileno(self) -> int:
        return -1

    def clear(self) -> None: ...


IDLE = Idle()
