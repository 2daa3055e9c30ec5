"""Notices that nothing moves, and has it explained: one line when that begins, one when it is over.

What is usual is measured: a run whose updates take 20 s is not stuck after 5 s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pappus.runtimes.heartbeats import START_SECONDS, TIMES_FIRST, TIMES_USUAL
from pappus.runtimes.stacks import Frame, at_work, dump, of_role, place
from pappus.runtimes.stalls import Doing, Explanation, WaitGraph, explain, together
from pappus.telemetry.metrics import Report
from pappus.telemetry.processes import STOPPED
from pappus.topologies.program import Program

if TYPE_CHECKING:
    from pappus.runtimes.controller import Controller
    from pappus.runtimes.supervisor import ManagedProcess

SHARE = 0.5
"""Of the time in which nothing moves, a role that is to blame says nothing for so much at least, and the other way
round."""
AGAIN_SECONDS = 1.0
"""Between two looks at a stall that goes on."""


class Pace:
    """How long the pauses are in which nothing is counted. All times are those of a `WatchClock`."""

    def __init__(self, least: float) -> None:
        self._least = least
        self.moved_at = 0.0
        self._longest = self._first = 0.0
        self._begun = False

    def moved(self, now: float, trained: bool, usual: bool = True) -> None:
        """Something was counted, by a role that trains or by another. The pause before it counts if it was `usual`."""
        pause, self.moved_at = now - self.moved_at, now
        if self._begun and usual:
            self._longest = max(self._longest, pause)
        elif usual:
            self._first = max(self._first, pause)
        self._begun = self._begun or trained

    def excuse(self, now: float) -> None:
        """The pause until now had its reason."""
        self.moved_at = now

    def allowed(self) -> float:
        if not self._begun:
            return max(START_SECONDS, self._least)
        return max(self._least, TIMES_USUAL * self._longest, TIMES_FIRST * self._first)

    def stands_still(self, now: float) -> bool:
        return now - self.moved_at > self.allowed()


class Seen(Protocol):
    """What a runtime can tell of a process."""

    def state(self, process: ManagedProcess) -> str:
        """A letter, as ps shows it; empty where it cannot be known."""

    def ask_for_stack(self, process: ManagedProcess) -> float:
        """Have it write where it is; the seconds that this takes, 0 where it cannot."""

    def stack(self, process: ManagedProcess) -> str:
        """What it has written since."""


@dataclass
class Stall:
    """One that goes on: since when, and who was asked where it is."""

    since: float
    due: float
    """When to tell it: those that were asked need a moment."""
    asked: dict[str, ManagedProcess]
    told: str = ""
    culprits: str = ""
    stacks: dict[str, list[Frame]] = field(default_factory=dict)


class StallWatch:
    """Watches the roles of a run. Without `seconds` it never says anything."""

    def __init__(
        self, program: Program, processes: Mapping[str, ManagedProcess], controller: Controller, seconds: float,
        seen: Seen,
    ) -> None:
        self._processes, self._controller, self._seconds, self._seen = processes, controller, seconds, seen
        self._kinds, self._graph = program.kinds, WaitGraph(program)
        trains = [role for role, kind in self._kinds.items() if kind.trains]
        self._trains = [role for role in trains if not self._kinds[role].background] or trains
        self._waits: dict[str, str] = {}
        self._pace = Pace(seconds)
        self._stall: Stall | None = None
        self._next_look = 0.0

    def hear(self, report: Report, now: float) -> None:
        """A role's report: what it waits for, and whether it got anything done."""
        role, waiting = report["role"], report["waiting"]
        what = max(waiting, key=lambda one: waiting[one], default="")
        self._waits[role] = what if what and waiting[what] > report["busy"] else ""
        if report["counts"] and not self._kinds[role].evaluates:
            usual = self._stall is None or not self._stopped()
            self._pace.moved(now, role in self._trains or not self._trains, usual)

    def excuse(self, now: float) -> None:
        """The run is ending, or saves: then it may stand still."""
        self._pace.excuse(now)
        self._end(now)

    def look(self, now: float) -> None:
        """Tell a stall that begins, or ends."""
        if not self._seconds or now < self._next_look:
            return
        still = self._pace.stands_still(now)
        silent = self._silent(now, still)
        if self._stall is None and (silent or still):
            self._begin(now, silent)
        elif self._stall is not None and now >= self._stall.due:
            if not silent and not still:
                return self._end(now, moves=True)
            self._tell(now, silent, still)
            self._next_look = now + AGAIN_SECONDS

    def _silent(self, now: float, still: bool) -> dict[str, float]:
        """The roles that say nothing for longer than is usual; where nothing moves, for much of that time."""
        enough, found = SHARE * (now - self._pace.moved_at), dict[str, float]()
        for process in self._processes.values():
            if process.pid is not None:
                beats = process.heartbeats
                least = max(enough, 2 * beats.rhythm)
                quiet = beats.silent(now).items() if still else ()
                found |= beats.late(now, self._seconds) | {role: silent for role, silent in quiet if silent > least}
        return found

    def _stopped(self) -> bool:
        """Whether any process is stopped or gone: how long that lasts says nothing of what is usual."""
        return any(
            process.pid is None or self._seen.state(process) == STOPPED for process in self._processes.values()
        )

    def _begin(self, now: float, silent: Mapping[str, float]) -> None:
        asked, wait = {}, 0.0
        for process in self._processes.values():
            roles = [spec.name for spec in process.specs if spec.name in silent]
            runs = bool(roles) and self._seen.state(process) != STOPPED
            if runs and (seconds := self._seen.ask_for_stack(process)):
                asked[roles[0]], wait = process, max(wait, seconds)
        since = min([now - seconds for seconds in silent.values()], default=self._pace.moved_at)
        self._stall = Stall(since, now + wait, asked)

    def _tell(self, now: float, silent: Mapping[str, float], still: bool) -> None:
        stall = self._stall
        assert stall is not None
        for role, process in stall.asked.items() if not stall.told else ():
            stall.stacks[role] = of_role(at_work(self._seen.stack(process)))
        doing = self._doing(silent, stall.stacks)
        pause = now - self._pace.moved_at
        if still or pause > SHARE * max(silent.values()):
            found = explain(doing, self._graph, self._trains)
            sentence = f"nothing moves for {pause:.0f} s: {found.sentence}"
        else:
            found = explain({role: doing[role] for role in silent}, self._graph)
            sentence = f"{found.sentence}; the others go on"
        self._controller.stalls(sentence)  # first: who reads the log may ask the doctor at once
        if not stall.told:
            stall.told, stall.culprits = sentence, self._subject(found, doing)
            stacks = [dump(frames) for role in found.culprits if (frames := stall.stacks.get(role))]
            self._controller.event("\n".join([sentence, *stacks[:1]]))

    def _subject(self, found: Explanation, doing: Mapping[str, Doing]) -> str:
        return together(found.culprits, doing) if found.culprits else "the run"

    def _doing(self, silent: Mapping[str, float], stacks: Mapping[str, list[Frame]]) -> dict[str, Doing]:
        doing = {}
        for process in self._processes.values():
            state = self._seen.state(process) if process.pid is not None else ""
            for spec in process.specs:
                if spec.kind.evaluates and spec.name not in silent:
                    continue  # nobody waits for it
                quiet = silent.get(spec.name, 0.0)
                waits = "" if quiet or state == STOPPED else self._waits.get(spec.name, "")
                doing[spec.name] = Doing(
                    spec.kind.name, waits, quiet, state, process.pid is not None and spec.name in self._waits,
                    place(stacks.get(spec.name, [])),
                )
        return doing

    def _end(self, now: float, moves: bool = False) -> None:
        """Forget a stall: whoever it was due to `moves` again, or need not any more."""
        stall, self._stall = self._stall, None
        if stall is None or not stall.told:
            return
        seconds = now - stall.since
        self._controller.moves_again(seconds)
        if moves:
            verb = "move" if " and " in stall.culprits else "moves"
            self._controller.event(f"{stall.culprits} {verb} again after {seconds:.0f} s")
