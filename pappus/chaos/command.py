"""The command: options, the loop over the plan, and the exit code."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from pappus.arguments import Parser, whole
from pappus.chaos.faults import KINDS, RECOVERY_SECONDS, Outcome
from pappus.chaos.plan import plan
from pappus.chaos.processes import ZOMBIE, adopt_orphans, bury, descendants
from pappus.chaos.report import Report
from pappus.chaos.training import Subject, Training
from pappus.errors import UserError, closest
from pappus.settings import load_file

FILE = "chaos.json"
CLIENT_SECONDS = 20.0
"""For a client to leave when it was asked to."""
ENDLESS = str(10**12)
DEFAULTS = {
    "runtime": "local", "steps": ENDLESS, "checkpoint.every-seconds": "5", "supervision.hang-seconds": "5",
    "evaluation.every-seconds": "15",
}
"""Options of the training, unless others are given: it ends with the chaos, saves often, and finds hangs soon."""


@dataclass(frozen=True)
class Options:
    """What the command adds to those of `pappus train`."""

    minutes: float
    seed: int
    every: float
    """Mean seconds between two faults."""
    target: float | None
    faults: tuple[str, ...]
    once: bool
    dry_run: bool


def parse(words: Sequence[str]) -> tuple[Options, list[str]]:
    """The options of chaos, and the words that are left for the training."""
    kinds = "\n".join(f"  {name:<10} {kind.says}" for name, kind in KINDS.items())
    parser = Parser(
        prog="pappus chaos", description="Train while injecting faults; other options are those of pappus train.",
        allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, epilog=f"kinds of fault:\n{kinds}",
    )
    parser.add_argument("--minutes", type=float, default=10.0, help="duration, from the first update on (default: 10)")
    parser.add_argument("--seed", type=whole, default=1, help="seed of faults and training (default: 1)")
    parser.add_argument("--every", type=float, default=10.0, help="mean seconds between two faults (default: 10)")
    parser.add_argument("--target-return", type=float, help="return that must be reached, in training or evaluation")
    parser.add_argument("--faults", default=",".join(KINDS), help="kinds of fault, comma-separated (default: all)")
    parser.add_argument("--once", action="store_true", help="inject each kind of fault once, then stop")
    parser.add_argument("--dry-run", action="store_true", help="print the schedule of faults and exit")
    given, rest = parser.parse_known_args(words)
    faults = tuple(name for name in given.faults.split(",") if name)
    for name in faults:
        if name not in KINDS:
            near = closest(name, list(KINDS))
            raise UserError(f"--faults {name!r} is no kind of fault{near}; see pappus chaos --help")
    if not given.minutes > 0 or not given.every > 0:
        raise UserError(f"--minutes {given.minutes:g} and --every {given.every:g} must be positive")
    options = Options(
        given.minutes, given.seed, given.every, given.target_return, faults, given.once, given.dry_run
    )
    return options, rest


def training_words(words: Sequence[str], seed: int) -> list[str]:
    """The words of the training, with what suits chaos where nothing is given."""
    given = {word[2:].partition("=")[0].replace("_", "-") for word in words if word.startswith("--")}
    if clash := given & {"resume", "resume-or-start", "seeds", "vary", "jobs", "trace"}:
        raise UserError(f"--{min(clash)} is not for chaos, which starts and resumes one run of its own; leave it out")
    given |= _names_in_file(words)
    added = [word for name, value in DEFAULTS.items() if name not in given for word in (f"--{name}", value)]
    return [*words, *added, "--seed", str(seed)]


def _names_in_file(words: Sequence[str]) -> set[str]:
    """Options that a `--config` file gives."""
    files = [word.partition("=")[2] for word in words if word.startswith("--config=")]
    files += [value for name, value in pairwise(words) if name == "--config"]
    return {name.replace("_", "-") for file in files for name in _dotted(load_file(Path(file)))}


def _dotted(settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in settings.items():
        yield f"{prefix}{name}"
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{name}.")


def _print(line: str) -> None:
    print(line, flush=True)


class Chaos:
    """One training and its faults."""

    def __init__(self, options: Options, subject: Subject, system: str, say: Callable[[str], None] = _print) -> None:
        self._options, self._subject, self._say = options, subject, say
        refusals = {name: KINDS[name].refusal(subject) for name in options.faults}
        weights = {name: KINDS[name].weight for name, why in refusals.items() if not why}
        self.plan = plan(options.seed, 60 * options.minutes, options.every, weights, options.once)
        self.report = Report(
            system, subject.env, options.seed, options.minutes, options.target,
            {name: why for name, why in refusals.items() if why}, planned=len(self.plan),
        )

    def run(self) -> int:
        """Train with faults, and report; the exit code."""
        if self._options.dry_run:
            for planned in self.plan:
                self._say(f"{planned.at:8.1f} s  {planned.kind}")
            return 0
        adopt_orphans()
        before = _shared_memory()
        with tempfile.TemporaryDirectory(prefix="pappus-chaos-") as temporary:
            training = Training(self._subject, Path(temporary))
            try:
                self._hurt(training)
                self._finish(training)
            finally:
                _kill_all(training)
            self.report.left_behind = [
                *self.report.left_behind, *_files_in(Path(temporary)), *sorted(_shared_memory() - before),
                *_unfinished(self._subject.directory),
            ]
        return self._tell(training)

    def _hurt(self, training: Training) -> None:
        """Start the training, and carry out the plan."""
        training.start()
        nothing = training.progress()
        if not training.wait_for(lambda: training.learns_since(nothing) or not training.alive, RECOVERY_SECONDS):
            raise UserError(f"the training made no update within {RECOVERY_SECONDS:.0f} s; use a faster one")
        if not training.alive:
            raise UserError(f"the training ended before its first update:\n{training.output[-2000:]}")
        if self._subject.listens:
            training.start_client()
        began = time.monotonic()
        for planned in self.plan:
            ended = training.wait_for(lambda: not training.alive, planned.at - (time.monotonic() - began))
            if ended and not self._went_on(training):
                return
            if time.monotonic() - began >= 60 * self._options.minutes:
                return
            at = time.monotonic() - began
            outcome = KINDS[planned.kind].inject(training, planned.draw)
            self.report.faults.append((planned, at, outcome))
            took = "" if outcome.seconds is None else f", well after {outcome.seconds:.1f} s"
            self._say(f"{at:7.1f} s  {planned.kind} of {outcome.target}{took}{_colon(outcome)}")
        rest = 0.0 if self._options.once else 60 * self._options.minutes - (time.monotonic() - began)
        training.wait_for(lambda: not training.alive, rest)

    def _went_on(self, training: Training) -> bool:
        """A run that ended by itself is resumed; False if it has done all its steps."""
        code = training.await_end({training.pid})
        if code == 0:
            self.report.problems.append("the training was over before the chaos: give more --steps")
            return False
        self.report.problems.append(f"the training ended by itself with exit code {code}: {training.output[-500:]}")
        training.start()
        return True

    def _finish(self, training: Training) -> None:
        """End the training in order, and look at what it came to."""
        if training.alive:
            code = training.end(signal.SIGTERM)
            if code not in (130, 3):  # 3: the disk was full for longer than lines could wait
                self.report.problems.append(f"the last part did not end in order: exit code {code}")
        if training.client is not None:
            training.client.send_signal(signal.SIGCONT)
            training.client.send_signal(signal.SIGTERM)
            try:
                training.client.wait(CLIENT_SECONDS)
            except subprocess.TimeoutExpired:
                self.report.problems.append(f"the client did not end within {CLIENT_SECONDS:g} s of SIGTERM")
                training.client.send_signal(signal.SIGKILL)
        bury(training.pid)
        self.report.left_behind = [
            f"process {pid} ({seen.title})" for pid, seen in descendants(os.getpid()).items() if seen.state != ZOMBIE
        ]
        self._look(training)

    def _look(self, training: Training) -> None:
        report, curve = self.report, training.curve()
        report.parts, report.killed_parts = training.parts, training.killed_parts
        progress = training.progress()
        report.steps, report.updates = progress.steps, progress.updates
        names = ("charts/episodic_return", "eval/episodic_return")
        returns = [line[name] for line in curve for name in names if line.get(name) is not None]
        trained = [line[names[0]] for line in curve if line.get(names[0]) is not None]
        report.best_return, report.last_return = max(returns, default=None), trained[-1] if trained else None

    def _tell(self, training: Training) -> int:
        for line in self.report.lines():
            self._say(line)
        path = self._subject.directory / FILE
        path.write_text(json.dumps(self.report.to_dict(), indent=1) + "\n")
        self._say(f"  report     {path}")
        return 1 if self.report.failures() else 0


def _colon(outcome: Outcome) -> str:
    return f": NOT SURVIVED, {outcome.problem}" if outcome.problem else ""


def _kill_all(training: Training) -> None:
    """What is left when something went wrong here."""
    for child in (training.child, training.client):
        if child is not None and child.poll() is None:
            child.send_signal(signal.SIGKILL)
            child.wait(20.0)


def _shared_memory() -> set[str]:
    """Files of runs in shared memory; there should never be any."""
    folder = Path("/dev/shm")
    return {str(path) for path in folder.glob("*pappus*")} if folder.is_dir() else set()


def _files_in(temporary: Path) -> list[str]:
    """Sockets, tokens and other files that the run made for its processes."""
    return [str(path) for path in temporary.rglob("*") if not path.is_dir()]


def _unfinished(directory: Path) -> list[str]:
    return [str(path) for path in (directory / "checkpoints").glob(".*")]
