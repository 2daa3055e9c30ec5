"""A role: a part of a program that does one bounded piece of work at a time; and ports that any role may wait for."""

from __future__ import annotations

from pathlib import Path

from pappus.core import Waitable
from pappus.layout import Layout
from pappus.polling import readable
from pappus.telemetry.accounts import DROPPED, Account
from pappus.telemetry.metrics import Metrics
from pappus.types import Nest

SERVED_SECONDS = 0.002
"""How often to look at the first of two ports while the second serves a connection."""


class Role:
    """One bounded piece of work at a time. Subclasses override what they need."""

    stateful = True
    """Whether `save` may return state that a successor needs."""
    layout: Layout = ()
    """The tensors in the flat `weights` of what `save` returns, for a role that trains."""
    finished = False
    """Set by a role that has done all that the config asks for, or was asked to finish."""
    afresh = "it keeps no state"
    """Why it starts afresh, where `save` returns None."""
    over = ""
    """Set before `close`: why the run is over; empty where it may go on, since it was interrupted."""
    lost = ""
    """What `load` could not bring back, in words."""
    wake_at: float | None = None
    """Set by a role that must be stepped at this time (of `time.perf_counter`) even if its port stays silent."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.metrics = Metrics(name)
        self.account = Account()

    def keep_account(self, account: Account) -> None:
        """Count steps in a row that outlives this process, from where a predecessor stood."""
        self.account = account
        account.take_over(self.handed_on())

    def handed_on(self) -> int:
        """Steps that this role and its predecessors have handed to other roles."""
        return 0

    def drop(self, steps: int) -> None:
        """Count steps that will not be trained on."""
        if steps:
            self.account.words[DROPPED] += steps
            self.metrics.count("steps_dropped", steps)

    @property
    def busy(self) -> bool:
        """Whether it is in the middle of work that `save` cannot hold. The inline runtime saves when no role is."""
        return False

    def step(self) -> Waitable | None:
        """Make progress and return None, or return the port that has to be waited for."""
        raise NotImplementedError

    def receive(self, command: str, argument: int) -> None:
        """Handle a command of the runtime."""
        raise NotImplementedError(f"{self.name} knows no command {command!r}")

    def save(self) -> Nest | None:
        """All that the role needs to continue from here; None if it starts afresh instead. `StorageError` if it keeps
        files of its own and cannot write them: then the role goes on as if nobody had asked."""
        return None

    def stored_in(self, directory: Path) -> None:
        """The run directory that the next `save` or `load` belongs to, for a role that keeps files of its own."""

    def committed(self) -> None:
        """The checkpoint with what `save` returned last is complete."""

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
        return "it has no command"

    def fileno(self) -> int:
        return -1

    def clear(self) -> None: ...


IDLE = Idle()


class WaitAny:
    """Two ports, each of which may let a role continue. The waiting time is booked under the first."""

    def __init__(self, first: Waitable, second: Waitable) -> None:
        self.name, self._first, self._second = first.name, first, second
        self.fileno, self.clear = first.fileno, first.clear

    def explain(self) -> str:
        return f"{self._first.explain()}; and {self._second.name}: {self._second.explain()}"

    def sleep(self, commands: int, seconds: float) -> bool:
        """Sleep until one of them has something or a command comes; return whether it was a command."""
        serve = getattr(self._second, "sleep", None)
        if serve is not None:  # a connection must be served meanwhile, and cannot wait for two things
            return bool(serve(commands, min(seconds, SERVED_SECONDS)))
        ports = {port.fileno(): port for port in (self._first, self._second) if port.fileno() >= 0}
        woken = readable([commands, *ports], seconds)
        for fd in woken:
            if fd in ports:
                ports[fd].clear()
        return commands in woken
