"""Signs of life: a role that says nothing for longer than it ever needed hangs, and its process is replaced.

A role reports several times a second, also while it waits. What keeps it silent is one long piece of work: a step of an
env, an update, a checkpoint. How long these take is measured, per role, as the longest silence so far.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pappus.config import SupervisionConfig
from pappus.topologies.program import RoleSpec

LONG_SECONDS = 900.0
"""For work that cannot be measured before: to start, and to write a checkpoint. Tables take minutes."""
TIMES_LONGEST = 20.0
"""A silence so many times as long as the longest before it is a hang."""
TIMES_START = 2.0
"""The same for the start of a role: an env whose first reset takes a minute may need one again."""
START_SECONDS = 20.0
"""Silence of a role that has not counted anything yet, and of a run before its first update, is worth a line after
this."""
TIMES_USUAL = 2.0
"""Silence so many times as long as the longest before it is worth a line."""
TIMES_FIRST = 1.5
"""The same for the first piece of work, which may have been longer than any other will be."""
LOOK_SECONDS = 1.0
"""A watcher that did not look for longer was itself stopped, or the machine slept: that time counts against nobody."""
REPORT_SECONDS = 0.25
"""Between two reports of a role."""
MOST_REPORTS = 400
"""Reports per second that the main process hears from all who step envs; it needs a tenth of a core for so many."""
ENV_FRAMES = "/pappus/envs/"
"""Part of a traceback, or of a stack, that leads into an env."""


class Hang(NamedTuple):
    """A role that was silent for too long."""

    role: str
    silent: float
    allowed: float

    def __str__(self) -> str:
        return f"hung: {self.role} gave no sign of life for {self.silent:.0f} s, and had {self.allowed:.0f} s"


def report_seconds(specs: Sequence[RoleSpec], processes: int) -> float:
    """Between two reports of a process, of so many: a thousand actors have less to say each."""
    steps_envs = any(spec.kind.steps_envs for spec in specs)
    return max(REPORT_SECONDS, processes / MOST_REPORTS) if steps_envs else REPORT_SECONDS


class WatchClock:
    """Seconds that a watcher watched."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._looked, self._seconds = clock, clock(), 0.0

    def look(self) -> float:
        """The time now; called at least once a second by a watcher that is awake."""
        now = self._clock()
        self._seconds += min(LOOK_SECONDS, now - self._looked)
        self._looked = now
        return self._seconds


class _Pulse:
    """One role's signs of life."""

    def __init__(self, spec: RoleSpec, least: float, late: float) -> None:
        kind, run = spec.kind, spec.arguments.get("run")
        steps_envs = kind.steps_envs or kind.evaluates
        timeout = run.config.env_options.step_timeout if steps_envs and run is not None else 0.0
        self.limit: float = timeout and timeout + late
        self._least = least + late
        self._counts = not self.limit and (steps_envs or kind.trains)
        """Its first real work, such as an update, ends with its first count; before, it has only waited."""
        self._longest = 0.0
        self.begin(0.0)

    def begin(self, now: float) -> None:
        self.heard = now
        self.starting, self._start = True, 0.0

    def beat(self, now: float, counted: bool, saved: bool) -> None:
        silent, self.heard = now - self.heard, now
        if self.starting:
            self._start = max(self._start, silent)
            self.starting = self._counts and not counted
        elif not saved:
            self._longest = max(self._longest, silent)

    def allowed(self) -> float:
        """Seconds of silence, once it has started."""
        return self.limit or max(self._least, TIMES_LONGEST * self._longest, TIMES_START * self._start)

    def usual(self, least: float) -> float:
        """Seconds of silence that are nothing special, at least `least`."""
        if self.starting:
            return max(START_SECONDS, least)
        return max(least, TIMES_USUAL * self._longest, TIMES_FIRST * self._start)


class Heartbeats:
    """The signs of life of one process, whose roles may have a thread each and report every `rhythm` seconds. All times
    are those of a `WatchClock`."""

    def __init__(
        self, specs: Sequence[RoleSpec], supervision: SupervisionConfig, rhythm: float = REPORT_SECONDS
    ) -> None:
        self.rhythm, late = rhythm, rhythm - REPORT_SECONDS
        self._late = late
        self._pulses = {spec.name: _Pulse(spec, supervision.hang_seconds, late) for spec in specs}
        self._kills = bool(supervision.hang_seconds)
        """Whether a role hangs that has no limit of its own."""
        self._saving = False

    def begin(self, now: float) -> None:
        """A new incarnation starts."""
        self._saving = False
        for pulse in self._pulses.values():
            pulse.begin(now)

    def asked_to_save(self) -> None:
        self._saving = True

    def hear(self, message: dict[str, Any], now: float) -> None:
        """A message of the process."""
        report = message.get("report")
        if report is not None and report["role"] in self._pulses:
            self._pulses[report["role"]].beat(now, bool(report["counts"]), self._saving)
        if "saved" in message:
            self._saving = False
            self.excuse(now)

    def excuse(self, now: float) -> None:
        """A silence had another's reason, such as a process that was waited for."""
        for pulse in self._pulses.values():
            pulse.heard = now

    def hang(self, now: float, stopped: bool = False) -> Hang | None:
        """The role that hangs, if one does. Threads of a process that starts or saves wait for each other; one that a
        signal has `stopped` does neither."""
        long = not stopped and (self._saving or any(pulse.starting for pulse in self._pulses.values()))
        for role, pulse in self._pulses.items():
            if not pulse.limit and not self._kills:
                continue
            silent, allowed = now - pulse.heard, LONG_SECONDS if long else pulse.allowed()
            if silent > allowed:
                return Hang(role, silent, allowed)
        return None

    def late(self, now: float, least: float) -> dict[str, float]:
        """The roles that have been silent for longer than is usual, and at least for `least`, with the seconds."""
        if self._saving:
            return {}
        silent, least = self.silent(now), least + self._late
        return {role: seconds for role, seconds in silent.items() if seconds > self._pulses[role].usual(least)}

    def silent(self, now: float) -> dict[str, float]:
        """Seconds since every role gave a sign of life."""
        return {role: now - pulse.heard for role, pulse in self._pulses.items()}


def env_of(specs: Sequence[RoleSpec], details: str) -> str:
    """The env in which a process broke or hung, by its traceback or stack; empty if it was elsewhere."""
    runs = [spec.arguments["run"] for spec in specs if "run" in spec.arguments]
    return str(runs[0].config.env) if runs and ENV_FRAMES in details else ""
