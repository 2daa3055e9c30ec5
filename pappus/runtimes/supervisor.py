"""What runtimes with many processes share: they receive reports, save checkpoints, and restart processes that die."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pappus import errors
from pappus.config import SupervisionConfig
from pappus.edges.edge import Edge
from pappus.errors import NonFiniteError, PappusError, RecordingError, RoleDied, UserError
from pappus.runtimes.connections import PacketConnection
from pappus.runtimes.controller import Controller
from pappus.runtimes.heartbeats import LONG_SECONDS, Hang, Heartbeats, WatchClock, env_of, report_seconds
from pappus.runtimes.interrupts import interrupts
from pappus.runtimes.stall_watch import StallWatch
from pappus.telemetry.processes import STOPPED
from pappus.telemetry.run_stats import Fault
from pappus.topologies.program import Program, RoleSpec

TICK_SECONDS = 0.1
WATCH_SECONDS = 0.25
LONG_LIFE = 60.0
"""A process that ran for so many seconds starts a new row of deaths; see `ManagedProcess.record_death`."""
FIRST_DELAY = 0.1
"""Seconds before the second restart in a row; each further one waits twice as long."""


HOPELESS = tuple(kind.__name__ for kind in (NonFiniteError, RecordingError, UserError))
"""Errors that a successor would meet again."""


@dataclass
class Save:
    """A checkpoint that is being written: who has not answered yet, until when, and what went wrong."""

    directory: Path
    waiting: set[str]
    deadline: float
    problems: list[str] = field(default_factory=list)


class ManagedProcess:
    """One group of roles through all its incarnations: its connection and its deaths."""

    def __init__(self, group: str, specs: list[RoleSpec], heartbeats: Heartbeats) -> None:
        self.group, self.specs, self.heartbeats = group, specs, heartbeats
        self.essential = any(spec.essential for spec in specs)
        self.saved = any(spec.saved for spec in specs)
        self.steps_envs = any(spec.kind.steps_envs for spec in specs)
        self.incarnation = 0
        self.pid: int | None = None
        self.line: PacketConnection | None = None
        self.restart_at: float | None = None
        self.deaths_in_a_row = 0
        self.first_notice = ""
        self.failure: dict[str, str] = {}
        """What the process reported about the error that ended it."""
        self.hang: Hang | None = None
        """Why it is being killed."""
        self.kill_at = math.inf
        self.born = 0.0
        self.answered_a_save = False
        """Since it was born."""

    def close(self) -> None:
        if self.line is not None:
            self.line.close()
            self.line = None

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to the process; it is lost if the process is dead."""
        if self.line is not None:
            with contextlib.suppress(OSError):
                self.line.send(message)

    def receive(self) -> list[dict[str, Any]]:
        """All messages that have arrived; a connection that has ended is closed."""
        try:
            return self.line.receive() if self.line is not None else []
        except OSError:
            self.close()
            return []

    def record_death(self, notice: str) -> float:
        """Count a death; the seconds to wait before a restart.

        A row ends with what outlives the process. One whose state is saved loses all its progress with every death,
        and saving may be what it dies of, however long it lives until then: its row ends with a state that was written
        (`answered`), or with a long life in which it was asked to save. The row of any other ends with progress
        (`progressed`), or a long life.
        """
        if time.monotonic() - self.born >= LONG_LIFE and (self.answered_a_save or not self.saved):
            self.deaths_in_a_row = 0
        if self.deaths_in_a_row == 0:
            self.first_notice = notice
        self.deaths_in_a_row += 1
        self.pid = None
        return 0.0 if self.deaths_in_a_row == 1 else FIRST_DELAY * 2.0 ** (self.deaths_in_a_row - 2)

    def progressed(self) -> None:
        """It has reported counts of what it did."""
        if not self.saved:
            self.deaths_in_a_row = 0

    def answered(self, problem: str) -> None:
        """It was asked to save, and has done so unless there was a problem."""
        self.answered_a_save = True
        if not problem:
            self.deaths_in_a_row = 0

    def notice(self, how: str, fault: str = "") -> str:
        """What is known of a death: one line, then its traceback or what faulthandler wrote."""
        details = self.failure.get("died", "") or fault
        env = env_of(self.specs, details)
        how = str(self.hang or how) + (f", in a step of env {env}" if env and self.hang else "")
        return f"{self.group} died ({how})" + (f"\n{details}" if details else "")

    def fault(self, notice: str) -> tuple[str, Fault]:
        """The role that a death is counted for, and as what."""
        in_env = bool(env_of(self.specs, notice))
        what: Fault = "hangs" if self.hang else "env_crashes" if in_env else "crashes"
        return (self.hang.role if self.hang else self.specs[0].name), what

    def fatal_error(self, notice: str) -> PappusError:
        """The error that ends the run: the role's own sentence if it had one, its traceback otherwise."""
        sentence, kind = self.failure.get("error", ""), self.failure.get("kind", "")
        error = getattr(errors, kind, None) if sentence else None
        if error is not None:
            return error(sentence)  # type: ignore[no-any-return]
        row = f" {self.deaths_in_a_row} times in a row" if self.deaths_in_a_row > 1 else ""
        return RoleDied(f"{self.group} died{row}; the first time:\n{notice}" if row else notice)


def _turn(process: ManagedProcess) -> int:
    """When a process is started: first those that others connect to, then actors, and the learner after them. Until it
    publishes weights, actors leave the cores to those that still start."""
    return 0 if process.saved and not process.essential else 1 if process.steps_envs else 2


class Supervisor:
    """One run's processes. Subclasses start them (`_start`), receive reports (`_listen`) and stop them (`_stop`)."""

    most_coming = math.inf
    """Processes to ask for before the first of them runs."""

    def __init__(
        self, program: Program, controller: Controller, supervision: SupervisionConfig, incarnation: int
    ) -> None:
        self._program, self._controller, self._supervision = program, controller, supervision
        self._incarnation = incarnation
        self._watch_clock = WatchClock()
        groups = program.groups()
        self._processes = {
            group: ManagedProcess(group, specs, Heartbeats(specs, supervision, report_seconds(specs, len(groups))))
            for group, specs in groups.items()
        }
        self._unstarted = deque(sorted(self._processes.values(), key=_turn))
        self._spared = 0
        """Actors that were not started, since the run was ending."""
        self._checkpoint: Path | None = None
        """The newest one: processes that are restarted begin with it."""
        self._next_watch = 0.0
        self._stalls = StallWatch(program, self._processes, controller, supervision.stall_seconds, self)
        self._saving: Save | None = None
        self._progress: tuple[int, int] | None = None
        """Steps and updates of the state that was saved last: the run continues while other roles still write."""

    def run(self, checkpoint: Path | None = None) -> None:
        """Supervise until the controller says that the run is over."""
        self._checkpoint = checkpoint
        if checkpoint is not None:
            self._controller.continued("only the inline runtime saves envs and queues")
        with interrupts(self._controller, self._supervision):
            try:
                self._open()
                self._controller.started(self)
                while not self._controller.decide():
                    self._start_some()
                    self._listen(TICK_SECONDS)
                    self._watch(self._watch_clock.look())
                    self._watch_saving()
                    self._restart_due()
                self._stop()
            finally:
                self._clean_up()

    def command(self, role: str, command: str, argument: int) -> None:
        """Send a command to a role; the controller repeats it for a role that is being restarted."""
        for process in self._processes.values():
            if any(spec.name == role for spec in process.specs):
                process.send({"role": role, "command": command, "argument": argument})

    def save(self, directory: Path) -> None:
        """Have the roles whose state is saved write it; the others start afresh anyway."""
        asked = {process.group for process in self._processes.values() if process.saved}
        self._saving = Save(directory, set(asked), time.monotonic() + LONG_SECONDS)
        for group in asked:
            self._ask_to_save(self._processes[group], directory)

    def _ask_to_save(self, process: ManagedProcess, directory: Path) -> None:
        process.heartbeats.asked_to_save()
        process.send({"save": str(directory)})

    def _open(self) -> None:
        """Prepare what processes need."""

    def _start(self, process: ManagedProcess) -> None:
        raise NotImplementedError

    def _listen(self, seconds: float) -> None:
        raise NotImplementedError

    def _stop(self) -> None:
        raise NotImplementedError

    def _clean_up(self) -> None:
        raise NotImplementedError

    def _start_some(self) -> None:
        """Start those that have not been, for a tick at most: a run with a thousand must hear signals meanwhile. One
        that ends already needs no actors, but whoever saves or evaluates."""
        until = time.monotonic() + TICK_SECONDS
        while self._unstarted and self._coming() < self.most_coming and time.monotonic() < until:
            process = self._unstarted.popleft()
            if process.steps_envs and self._controller.finishing:
                self._spared += 1
            else:
                self._start(process)

    def _coming(self) -> int:
        """Processes that were asked for and do not run yet."""
        absent = sum(process.pid is None for process in self._processes.values())
        return absent - len(self._unstarted) - self._spared

    def _edges_of(self, process: ManagedProcess) -> dict[str, Edge]:
        return {end.edge: self._program.edges[end.edge] for spec in process.specs for end in spec.ends()}

    def _hear(self, process: ManagedProcess) -> None:
        for message in process.receive():
            process.heartbeats.hear(message, self._watch_clock.look())
            if "report" in message:
                self._stalls.hear(message["report"], self._watch_clock.look())
                if message["report"]["counts"]:
                    process.progressed()
                if "process" in message:
                    self._controller.role_measured(message["report"]["role"], *message["process"])
                self._controller.report(message["report"])
            elif "finished" in message:
                self._controller.role_finished(message["finished"])
            elif "saved" in message:
                process.answered(message["problem"])
                self._note_saved(process.group, message)
            elif "died" in message:
                process.failure = message

    def _note_saved(self, group: str, message: dict[str, Any]) -> None:
        """One process has answered; when all have, the checkpoint is made or given up."""
        save = self._saving
        if save is None or Path(message["saved"]) != save.directory:
            return  # that one was given up
        self._progress = message["progress"] or self._progress
        save.waiting.discard(group)
        save.problems += [message["problem"]] if message["problem"] else []
        if save.waiting:
            return
        self._saving = None
        if save.problems:
            return self._controller.save_failed("; ".join(save.problems))
        checkpoint = self._controller.saved(save.directory, self._progress)
        if checkpoint is not None:
            self._checkpoint = checkpoint
            for process in self._processes.values():
                if process.saved:
                    process.send({"committed": str(checkpoint)})

    def _watch_saving(self) -> None:
        if self._saving is not None and time.monotonic() > self._saving.deadline:
            self._give_up_saving(f"{', '.join(self._saving.waiting)} did not write it within {LONG_SECONDS:.0f} s")

    def _give_up_saving(self, reason: str) -> None:
        self._saving = None
        self._controller.save_failed(reason)

    def _newest_checkpoint(self) -> Path | None:
        """What a process begins with; None where it is gone, with the run's directory."""
        if self._checkpoint is not None and not self._checkpoint.is_dir():
            self._controller.event(f"{self._checkpoint} is gone; roles that need it start without it")
            self._checkpoint = None
        return self._checkpoint

    def _watch(self, now: float) -> None:
        """Look for stalls and hangs now and then: a round of the loop may be for one report of one of a thousand
        processes."""
        if now >= self._next_watch:
            self._next_watch = now + WATCH_SECONDS
            if self._saving is not None or self._controller.finishing:
                self._stalls.excuse(now)
            else:
                self._stalls.look(now)
            self._watch_hangs(now)

    def _watch_hangs(self, now: float) -> None:
        """Have those that hang explain themselves where they can, then kill them: the rest is as for any death."""
        alive = [process for process in self._processes.values() if process.pid is not None]
        silent = [process for process in alive if not process.hang and process.heartbeats.hang(now, stopped=True)]
        stopped = {process.group: process for process in silent if self.state(process) == STOPPED}
        late = stopped | {process.group: process for process in silent if process.heartbeats.hang(now)}
        for process in (stopped or late).values():
            process.hang = process.heartbeats.hang(now, process.group in stopped)
            process.kill_at = now + self.ask_for_stack(process)
        for group in late.keys() - stopped.keys() if stopped else ():
            late[group].heartbeats.excuse(now)  # it may have waited for one that was stopped
        for process in alive:
            if now >= process.kill_at:
                process.kill_at = math.inf
                self._kill(process)

    def state(self, process: ManagedProcess) -> str:
        """A letter, as ps shows it; empty where it cannot be known."""
        return ""

    def ask_for_stack(self, process: ManagedProcess) -> float:
        """Have a process that hangs write where it is; the seconds that this takes, 0 where it cannot."""
        return 0.0

    def stack(self, process: ManagedProcess) -> str:
        """What it has written since it was asked."""
        return ""

    def _kill(self, process: ManagedProcess) -> None:
        raise NotImplementedError

    def _begin(self, process: ManagedProcess, line: PacketConnection) -> None:
        """The next incarnation is reached through a connection; it saves what its predecessor was asked to save."""
        process.close()
        process.line, process.failure, process.born = line, {}, time.monotonic()
        process.hang, process.kill_at, process.answered_a_save = None, math.inf, False
        process.heartbeats.begin(self._watch_clock.look())
        if self._saving is not None and process.group in self._saving.waiting:
            self._ask_to_save(process, self._saving.directory)

    def _came(self, process: ManagedProcess, pid: int, node: str = "") -> None:
        process.pid = pid
        for role in process.specs:
            self._controller.role_started(role.name, pid, node)
            if process.incarnation:
                self._controller.role_restarted(role.name)

    def _died(self, process: ManagedProcess, notice: str, essential: bool) -> None:
        """Record the failure and schedule a restart; raise the error that ends the run if there is none."""
        self._controller.role_failed(*process.fault(notice))
        if essential or process.failure.get("kind") in HOPELESS:
            raise process.fatal_error(notice)
        delay = process.record_death(notice)
        if process.deaths_in_a_row > self._supervision.max_deaths_in_a_row:
            raise process.fatal_error(process.first_notice)
        first_line, _, details = notice.partition("\n")
        self._controller.event(f"{first_line}; restarting\n{details}".rstrip(), process.group)
        process.restart_at = time.monotonic() + delay

    def _restart_due(self) -> None:
        for process in self._processes.values():
            if process.restart_at is not None and time.monotonic() >= process.restart_at:
                process.restart_at = None
                process.incarnation += 1
                self._start(process)

    def _in_order(self) -> list[list[ManagedProcess]]:
        """Processes in the order in which they stop: those whose output others consume come first."""
        processes = self._processes.values()
        return [[process for process in processes if process.essential is essential] for essential in (False, True)]
