"""Trials of a sweep, `jobs` runs at a time: each is a `pappus train` in a process and a folder of its own.

    study ──values──▶ trial ──one run per seed──▶ trials/0007/seed-1/metrics.jsonl ──return at each rung──▶ study

What is known of a trial is in the study and in its runs' folders alone. So a sweep that was killed at any moment goes
on: trials that had ended are never run again, and those that had not go on from their runs' newest checkpoints.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pappus.errors import INCOMPLETE, RunError, UserError
from pappus.population import STOP_SECONDS
from pappus.run_process import OUTPUT, start_run
from pappus.sweeping.plan import Plan
from pappus.sweeping.study import Study, Trial
from pappus.telemetry.files import locked
from pappus.telemetry.history import read_history
from pappus.telemetry.processes import on_ending
from pappus.telemetry.run_log import DONE

LOOK_SECONDS = 0.5
FAILURES = 3
"""This many failed trials at the start, with no other outcome, end a sweep: the command is at fault."""


@dataclass
class Active:
    """A trial whose runs have not all ended."""

    trial: Trial
    directory: Path
    seeds: tuple[int, ...]
    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    """By seed, once started."""
    rung: int = 0
    """The last one that it has passed."""
    ending: bool = False
    """Its runs were told to stop."""

    def folder(self, seed: int) -> Path:
        return self.directory / f"seed-{seed}"

    def summary(self, seed: int) -> dict[str, Any]:
        """How a run ended; empty while it has not, or where something is left of it."""
        try:
            content = dict(json.loads((self.folder(seed) / "summary.json").read_text()))
        except (OSError, ValueError):
            return {}
        return content if content.get("exit_reason") in DONE else {}

    @property
    def waiting(self) -> list[int]:
        """Seeds whose runs have not begun here and had not ended before."""
        return [seed for seed in self.seeds if seed not in self.processes and not self.summary(seed)]

    @property
    def running(self) -> list[subprocess.Popen[bytes]]:
        return [process for process in self.processes.values() if process.poll() is None]


class Sweep:
    """The trials of a plan."""

    def __init__(
        self, directory: Path, plan: Plan, study: Study, tell: Callable[[Study, Trial], None], trust: bool = False
    ) -> None:
        """`tell` is called with every trial that has ended."""
        self._directory, self._plan, self._study, self._tell, self._trust = directory, plan, study, tell, trust
        self._active = [self._begun(trial) for trial in study.trials() if trial.state == "running"]

    def run(self) -> bool:
        """Run the trials that are left; whether all have ended."""
        try:
            with on_ending(_interrupt):
                self._run()
        except KeyboardInterrupt:
            print("pappus: each run saves and stops; Ctrl-C once more kills them")
            self._stop()
            return False
        return True

    def _run(self) -> None:
        while self._fill():
            time.sleep(LOOK_SECONDS)
            for active in list(self._active):
                self._look_after(active)

    def _fill(self) -> bool:
        """Start runs in free slots; whether any trial is running."""
        room = self._plan.jobs - sum(len(active.running) for active in self._active)
        for active in self._active:
            for seed in active.waiting if not active.ending else ():
                if room > 0 and _free(active.folder(seed)):
                    active.processes[seed] = self._start(active, seed)
                    room -= 1
        while room > 0 and len(self._study.trials()) < self._plan.trials and not self._waits():
            active = self._begun(self._study.ask())
            self._active.append(active)
            for seed in active.seeds[:room]:
                active.processes[seed] = self._start(active, seed)
                room -= 1
        return bool(self._active)

    def _waits(self) -> bool:
        """Whether a run of a trial that has begun is still to be started."""
        return any(active.waiting and not active.ending for active in self._active)

    def _begun(self, trial: Trial) -> Active:
        directory = self._directory / "trials" / f"{trial.number:04d}"
        return Active(trial, directory, self._plan.seeds, rung=max(trial.rungs, default=0))

    def _start(self, active: Active, seed: int) -> subprocess.Popen[bytes]:
        words = self._plan.command(active.trial.values, seed)
        return start_run(active.folder(seed), words, self._trust, again=True)

    def _look_after(self, active: Active) -> None:
        number = active.trial.number
        if active.ending:
            if not active.running:
                self._active.remove(active)
            return
        failed = [seed for seed, process in active.processes.items() if process.poll() not in (None, 0, INCOMPLETE)]
        if failed:
            self._end(active, "failed")
            self._check_failures(active.folder(failed[0]) / OUTPUT)
        elif self._is_hopeless(active):
            self._end(active, "pruned")
        elif not active.running and not active.waiting:
            result = self._plan.objective.result([active.summary(seed) for seed in active.seeds])
            self._study.note(number, {"values": [self._value(active, seed) for seed in active.seeds]})
            self._end(active, "complete" if result is not None else "failed", result)

    def _value(self, active: Active, seed: int) -> float | None:
        return self._plan.objective.value(active.summary(seed))

    def _is_hopeless(self, active: Active) -> bool:
        """Report the rungs that a trial has passed; whether to prune it. Runs that ended early pass all remaining rungs
        at their last return."""
        objective = self._plan.objective
        started = [seed for seed in active.seeds if seed not in active.waiting]
        histories = [read_history(active.folder(seed)) for seed in started]
        ended = [bool(active.summary(seed)) for seed in started]
        while active.rung < objective.rungs:
            value = objective.at_rung(active.rung + 1, histories, ended)
            if value is None:
                return False
            active.rung += 1
            prune = self._study.report(active.trial.number, active.rung, value)
            if prune and not all(ended):  # what has ended costs nothing more
                return True
        return False

    def _end(self, active: Active, state: Any, result: float | None = None) -> None:
        self._study.tell(active.trial.number, state, result)
        active.ending = True
        for process in active.running:
            process.terminate()
        self._tell(self._study, self._study.trial(active.trial.number))

    def _check_failures(self, output: Path) -> None:
        """Raise `RunError` if all trials so far failed."""
        ended = [trial for trial in self._study.trials() if trial.state != "running"]
        if len(ended) >= min(FAILURES, self._plan.trials) and all(trial.state == "failed" for trial in ended):
            self._stop()
            raise RunError(f"all of the first {len(ended)} trials failed; the newest says why in {output}")

    def _stop(self) -> None:
        """Tell all runs to save and stop, and wait; kill them on a second signal or after a deadline."""
        running = [process for active in self._active for process in active.running]
        for process in running:
            process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + STOP_SECONDS
        try:
            for process in running:
                process.wait(max(0.0, deadline - time.monotonic()))
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            for process in running:
                if process.poll() is None:
                    print("pappus: a run did not stop in time and is killed", file=sys.stderr)
                    process.kill()
                    process.wait()


def _free(directory: Path) -> bool:
    """Whether no process writes there: runs of a killed sweep take a moment to save."""
    if not directory.is_dir():
        return True
    try:
        with locked(directory):
            return True
    except UserError:
        return False


def _interrupt(number: signal.Signals) -> None:
    raise KeyboardInterrupt
