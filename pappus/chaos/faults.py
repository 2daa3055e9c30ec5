"""The kinds of fault. Each disturbs the training, waits for it to recover, and reports the outcome."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pappus.chaos.training import Progress, Subject, Training, runs
from pappus.transports.addresses import Address

RECOVERY_SECONDS = 120.0
"""For a run to learn again; a hang must be found first."""
DELAY_SECONDS = (0.5, 2.5)
FULL_SECONDS = 8.0
"""How long a disk stays full."""
LEAST_BYTES = 65_536
"""The smallest limit on files of the main process: its messages to new processes go through files, too."""
HOUR = 3600.0
FLOOD_CONNECTIONS, FLOOD_BYTES = 20, 65_536


@dataclass
class Outcome:
    """What became of one fault."""

    target: str
    """The process or file that was disturbed."""
    seconds: float | None = None
    """From the fault until updates resumed; None: they did not."""
    steps_undone: int = 0
    """Steps trained on that the resumed run has lost."""
    problem: str = ""
    """What went wrong; empty if the fault was survived."""


@dataclass(frozen=True)
class FaultKind:
    """One kind of fault."""

    inject: Callable[[Training, float], Outcome]
    weight: int
    """How often it is drawn, relative to others."""
    refusal: Callable[[Subject], str] = lambda subject: ""
    """Why it does not apply to a run; empty if it does."""

    @property
    def says(self) -> str:
        """Its first line."""
        return (self.inject.__doc__ or "").partition("\n")[0]


def kill(training: Training, draw: float) -> Outcome:
    """kill -9 of a process whose death the run survives by design"""
    return _end_role(training, draw, signal.SIGKILL)


def crash(training: Training, draw: float) -> Outcome:
    """SIGSEGV in such a process, like a crash in native code of an env"""
    return _end_role(training, draw, signal.SIGSEGV)


def hang(training: Training, draw: float) -> Outcome:
    """SIGSTOP of such a process, forever: supervision must detect and replace it"""
    return _end_role(training, draw, signal.SIGSTOP)


def delay(training: Training, draw: float) -> Outcome:
    """SIGSTOP of any process for about a second, then SIGCONT"""
    name, pid, before = _choose(training, draw, essential=None)
    began = time.monotonic()
    _send(pid, signal.SIGSTOP)
    least, most = DELAY_SECONDS
    time.sleep(least + (draw * 1000 % 1) * (most - least))
    _send(pid, signal.SIGCONT)
    return _learns_again(training, Outcome(name), before, began)


def end(training: Training, draw: float) -> Outcome:
    """kill -9 of an essential process (a learner), which ends the run; then the run is resumed"""
    name, pid, before = _choose(training, draw, essential=True)
    began, known = time.monotonic(), training.family()
    _send(pid, signal.SIGKILL)
    code = training.await_end(known)
    return _resumed(training, Outcome(name, problem=_unless(code, 1)), before, began)


def kill_run(training: Training, draw: float) -> Outcome:
    """kill -9 of the run's main process; then the run is resumed"""
    before, began = training.progress(), time.monotonic()
    code = training.end(signal.SIGKILL)
    return _resumed(training, Outcome("main", problem=_unless(code, -signal.SIGKILL)), before, began)


def preempt(training: Training, draw: float) -> Outcome:
    """SIGTERM, as from a scheduler; the run must save, end within its grace period, and resume where it was"""
    before, began = training.progress(), time.monotonic()
    code = training.end(signal.SIGTERM)
    return _resumed(training, Outcome("main", problem=_unless(code, 130)), before, began)


def corrupt(training: Training, draw: float) -> Outcome:
    """flipped bytes in the newest checkpoint while the run is down; the previous one must do"""
    if not training.wait_for(lambda: len(training.checkpoints()) > 1, RECOVERY_SECONDS):
        return Outcome("checkpoint", problem="there never were two checkpoints")
    before, began = training.progress(), time.monotonic()
    problem = _unless(training.end(signal.SIGKILL), -signal.SIGKILL)
    newest = training.checkpoints()[-1]
    files = sorted(newest.glob("*.safetensors"))
    file = files[int(draw * len(files))]
    content = bytearray(file.read_bytes())
    for place in random.Random(draw).sample(range(len(content)), min(8, len(content))):
        content[place] ^= 0xFF
    file.write_bytes(content)
    told = len(training.log())
    outcome = _resumed(training, Outcome(f"{newest.name}/{file.name}", problem=problem), before, began)
    if not outcome.problem and f"resumed from {newest} " in training.log()[told:]:
        outcome.problem = f"the run was resumed from the corrupt {newest.name}"
    return outcome


def clock(training: Training, draw: float) -> Outcome:
    """the clock set back by an hour: the run is killed, its files are redated, and it resumes an hour earlier"""
    before, began = training.progress(), time.monotonic()
    problem = _unless(training.end(signal.SIGKILL), -signal.SIGKILL)
    now, checkpoints = time.time(), training.checkpoints()
    for age, path in enumerate(checkpoints):
        for file in (*path.glob("*"), path):
            os.utime(file, (now + HOUR - age, now + HOUR - age))
    told = len(training.log())
    outcome = _resumed(training, Outcome("main", problem=problem), before, began, clock_back=HOUR)
    older = [path for path in checkpoints[:-1] if f"resumed from {path} " in training.log()[told:]]
    if older and not outcome.problem:
        outcome.problem = f"the run was resumed from {older[0].name}, which is not the newest checkpoint"
    return outcome


def disk(training: Training, draw: float) -> Outcome:
    """a full disk, as far as a limit on file sizes (RLIMIT_FSIZE) acts like one, for some seconds"""
    before, began = training.progress(), time.monotonic()
    newest = training.checkpoints()[-1:]
    pids = {pid: 1 for pid in training.roles().values()} | {training.pid: max(LEAST_BYTES, before.size)}
    limits = {}
    for pid, most in pids.items():
        with contextlib.suppress(ProcessLookupError):
            limits[pid] = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, limits[pid][1]))
    training.wait_for(lambda: not training.alive, FULL_SECONDS)
    for pid, limit in limits.items():
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limit)
    outcome = _learns_again(training, Outcome("all processes"), before, began)
    if not outcome.problem and not training.wait_for(lambda: training.checkpoints()[-1:] != newest, RECOVERY_SECONDS):
        outcome.problem = "no checkpoint was written after there was room again"
    return outcome


def flood(training: Training, draw: float) -> Outcome:
    """garbage from many connections to the address on which the run listens"""
    before, began, rng = training.progress(), time.monotonic(), random.Random(draw)
    address, taken = Address.parse(training.subject.listens), 0
    for _ in range(FLOOD_CONNECTIONS):
        with contextlib.suppress(OSError), socket.create_connection((address.host, address.port), 2.0) as line:
            line.settimeout(2.0)
            greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" if rng.random() < 0.5 else b""
            taken += 1
            line.sendall(greeting + rng.randbytes(FLOOD_BYTES))
    return _learns_again(training, Outcome(f"{taken} connections to {training.subject.listens}"), before, began)


def partition(training: Training, draw: float) -> Outcome:
    """a remote actor falls silent and is killed; another one replaces it"""
    before, began = training.progress(), time.monotonic()
    if training.client is not None:
        training.client.send_signal(signal.SIGSTOP)
        time.sleep(DELAY_SECONDS[1])
        training.client.send_signal(signal.SIGKILL)
        training.client.wait(10.0)
    training.start_client()
    return _learns_again(training, Outcome("the actor elsewhere"), before, began)


def _nobody_joins(subject: Subject) -> str:
    return "" if subject.listens else "nobody can join this system from elsewhere"


def _none_essential(subject: Subject) -> str:
    return "" if any(subject.groups.values()) else "every process of this system is replaced when it dies"


KINDS: Mapping[str, FaultKind] = {
    "kill": FaultKind(kill, 4),
    "crash": FaultKind(crash, 2),
    "hang": FaultKind(hang, 2),
    "delay": FaultKind(delay, 4),
    "end": FaultKind(end, 1, _none_essential),
    "kill-run": FaultKind(kill_run, 1),
    "preempt": FaultKind(preempt, 1),
    "corrupt": FaultKind(corrupt, 1),
    "clock": FaultKind(clock, 1),
    "disk": FaultKind(disk, 1),
    "flood": FaultKind(flood, 2, _nobody_joins),
    "partition": FaultKind(partition, 2, _nobody_joins),
}
"""Every kind, by the name that `--faults` takes."""


def _choose(training: Training, draw: float, essential: bool | None) -> tuple[str, int, Progress]:
    """A process of the run that is (not) essential, its pid, and the progress of the run."""
    groups = training.subject.groups
    names = sorted(name for name, ends in groups.items() if essential is None or ends is essential)
    name = names[int(draw * len(names))]
    training.wait_for(lambda: name in training.roles(), RECOVERY_SECONDS)
    return name, training.roles().get(name, 0), training.progress()


def _end_role(training: Training, draw: float, number: signal.Signals) -> Outcome:
    """End a role's process by a signal; the run has recovered when the process is replaced and updates go on."""
    name, pid, before = _choose(training, draw, essential=False)
    began = time.monotonic()
    _send(pid, number)
    outcome = Outcome(name)
    if not training.wait_for(lambda: training.roles().get(name, pid) != pid or not training.alive, RECOVERY_SECONDS):
        outcome.problem = f"{name} was not replaced within {RECOVERY_SECONDS:.0f} s"
    return _learns_again(training, outcome, before, began)


def _learns_again(training: Training, outcome: Outcome, before: Progress, began: float) -> Outcome:
    well = training.wait_for(lambda: training.learns_since(before) or not training.alive, RECOVERY_SECONDS)
    if not training.alive:
        outcome.problem = outcome.problem or "the run ended"
    elif not well:
        outcome.problem = outcome.problem or f"no update within {RECOVERY_SECONDS:.0f} s"
    else:
        outcome.seconds = time.monotonic() - began
    return outcome


def _resumed(
    training: Training, outcome: Outcome, before: Progress, began: float, clock_back: float = 0.0
) -> Outcome:
    """Start the next part and wait for updates; the number of steps that are lost."""
    here = training.progress()
    training.start(clock_back)
    outcome = _learns_again(training, outcome, here, began)
    lines = training.lines_since(here)
    if lines:
        outcome.steps_undone = max(0, before.steps - int(lines[0]["step"]))
    return outcome


def _unless(code: int | None, expected: int) -> str:
    """What is wrong with an exit code."""
    if code is None:
        return "the run, or a part of it, did not end"
    return "" if code == expected else f"the run ended with exit code {code}, not {expected}"


def _send(pid: int, number: signal.Signals) -> None:
    if pid and runs(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
