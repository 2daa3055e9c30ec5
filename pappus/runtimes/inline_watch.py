"""Looks at the only thread of the inline runtime from beside it: where it is, when it is stuck in a step."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence

from pappus.roles.role import Role
from pappus.runtimes.controller import Controller
from pappus.runtimes.heartbeats import WatchClock
from pappus.runtimes.stacks import dump, frames_of, of_role, place
from pappus.runtimes.stall_watch import Pace


class InlineWatch:
    """`look` is called about once a second by a thread beside the run. Native code that holds Python's interpreter
    keeps that thread from looking, too."""

    def __init__(
        self, controller: Controller, seconds: float, rounds: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without `seconds` it never says anything. `rounds` counts turns that all roles have had."""
        self._controller, self._seconds, self._rounds = controller, seconds, rounds
        self._roles: Sequence[Role] = ()
        self._trains: Sequence[Role] = ()
        self._thread = threading.get_ident()
        self._clock, self._pace = WatchClock(clock), Pace(seconds)
        self._seen = -1
        self._told = ""
        """The role that is stuck, once that was told."""

    def begin(self, roles: Sequence[Role], trains: Sequence[Role]) -> None:
        """The roles have been built; those of `trains` make updates."""
        self._trains, self._roles = trains, roles

    def look(self) -> None:
        now, rounds = self._clock.look(), self._rounds()
        stuck = next((role.name for role in self._roles if role.metrics.clock.is_busy), "")
        if rounds != self._seen or not stuck or self._controller.finishing:
            since = self._pace.moved_at
            self._seen = rounds
            self._pace.moved(now, any(role.metrics.begun for role in self._trains))
            if self._told:
                self._controller.event(f"{self._told} moves again after {now - since:.0f} s")
                self._controller.moves_again(now - since)
                self._told = ""
        elif self._seconds and self._pace.stands_still(now):
            self._tell(stuck, now - self._pace.moved_at)

    def _tell(self, role: str, seconds: float) -> None:
        frames = of_role(frames_of(sys._current_frames().get(self._thread)))
        sentence = f"nothing moves for {seconds:.0f} s: {role} has been stuck in {place(frames)}"
        if not self._told:
            self._told = role
            self._controller.event(f"{sentence}\n{dump(frames)}")
        self._controller.stalls(sentence)
        self._controller.speak()
