"""The run that is hurt: a child process that trains, ends, and is started again with the same command."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pappus.chaos.processes import ZOMBIE, bury, descendants, end_with_parent

POLL_SECONDS = 0.02
OUTPUT = "chaos.log"
"""What the training prints, beside its directory."""
EXIT_SECONDS = 40.0
"""For a run that was asked to end, or whose main process is gone, until none of its processes is left."""


class Child(Protocol):
    """The part of `subprocess.Popen` that is used."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, number: int) -> None: ...


def launch(output: Path, words: Sequence[str], environment: Mapping[str, str]) -> Child:
    """Start a command of pappus that writes what it says to a file."""
    module = ["-m", "pappus"]
    if back := environment.get(CLOCK):
        module = ["-m", "pappus.chaos.clock", back]
    with output.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-P", *module, *words], stdin=subprocess.DEVNULL, stdout=file, stderr=file,
            start_new_session=True, preexec_fn=end_with_parent, env=environment,
        )


CLOCK = "PAPPUS_CHAOS_CLOCK"
"""Environment variable: seconds by which the clock of the next part is back."""


@dataclass(frozen=True)
class Subject:
    """What is trained, and what of it may be hurt."""

    words: tuple[str, ...]
    """The command after `pappus train`."""
    directory: Path
    groups: Mapping[str, bool]
    """By process of the run: whether the run ends when it dies."""
    listens: str = ""
    """The address at which others may join; empty: nowhere."""
    env: str = ""


class Progress(NamedTuple):
    """How far a run has come, as its metrics say."""

    size: int
    """Bytes of metrics.jsonl."""
    steps: int
    updates: int


class Training:
    """One run through all its parts. `temporary` is the folder for its sockets, which nobody else uses."""

    def __init__(self, subject: Subject, temporary: Path) -> None:
        self.subject, self.directory = subject, subject.directory
        self.environment = {
            **os.environ, "TMPDIR": str(temporary),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        }
        self.parts: list[dict[str, Any]] = []
        """What summary.json said at the end of each part that had one."""
        self.killed_parts = 0
        """Parts that were killed as a whole, and have none."""
        self.child: Child | None = None
        self.client: Child | None = None

    def start(self, clock_back: float = 0.0) -> None:
        """Begin, or go on after an end."""
        words = ["train", *self.subject.words, "--run-dir", str(self.directory), "--resume-or-start"]
        shift = {CLOCK: f"{clock_back:g}"} if clock_back else {}
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        output = self.directory.with_name(f"{self.directory.name}-{OUTPUT}")
        self.child = launch(output, words, {**self.environment, **shift})

    def start_client(self) -> None:
        """An actor elsewhere, as far as the run knows."""
        words = ["actor", "--connect", f"tcp:{self.subject.listens}", "--env", self.subject.env, "--envs", "4"]
        self.client = launch(Path(os.devnull), [*words, "--patience", "600"], self.environment)

    @property
    def output(self) -> str:
        """What all parts have printed."""
        path = self.directory.with_name(f"{self.directory.name}-{OUTPUT}")
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def pid(self) -> int:
        assert self.child is not None
        return self.child.pid

    @property
    def alive(self) -> bool:
        return self.child is not None and self.child.poll() is None

    def roles(self) -> dict[str, int]:
        """The processes of the run that hold roles, by name."""
        found = {seen.title.removeprefix("pappus "): pid for pid, seen in descendants(self.pid).items()
                 if seen.state != ZOMBIE}
        return {name: pid for name, pid in found.items() if name in self.subject.groups}

    def progress(self) -> Progress:
        lines, size = self._lines(0)
        for line in reversed(lines):
            if "charts/updates" in line:
                return Progress(size, int(line["step"]), int(line["charts/updates"]))
        return Progress(size, 0, 0)

    def learns_since(self, before: Progress) -> bool:
        """Whether lines that came after `before` show updates that are made."""
        updates = [line["charts/updates"] for line in self.lines_since(before) if "charts/updates" in line]
        return len(updates) > 1 and max(updates) > min(updates)

    def lines_since(self, before: Progress) -> list[dict[str, Any]]:
        """Lines of metrics.jsonl that came after `before`."""
        return self._lines(before.size)[0]

    def log(self) -> str:
        """log.txt, which all parts share."""
        path = self.directory / "log.txt"
        return path.read_text(errors="replace") if path.exists() else ""

    def family(self) -> set[int]:
        """The numbers of all its processes."""
        return {self.pid, *descendants(self.pid)}

    def curve(self) -> list[dict[str, Any]]:
        """All lines of metrics.jsonl."""
        return self._lines(0)[0]

    def _lines(self, begin: int) -> tuple[list[dict[str, Any]], int]:
        try:
            content = (self.directory / "metrics.jsonl").read_bytes()
        except OSError:
            return [], 0
        lines = []
        for line in content[min(begin, len(content)):].split(b"\n"):
            with contextlib.suppress(ValueError):
                lines.append(json.loads(line))
        return [line for line in lines if isinstance(line, dict) and "step" in line], len(content)

    def checkpoints(self) -> list[Path]:
        """Complete checkpoints, the newest last."""

        def sequence(path: Path) -> int:
            try:
                return int(json.loads((path / "checkpoint.json").read_text())["sequence"])
            except (OSError, ValueError, KeyError, TypeError):
                return 0

        return sorted((self.directory / "checkpoints").glob("step-*"), key=sequence)

    def wait_for(self, condition: Callable[[], Any], seconds: float) -> bool:
        """Whether a condition came true in time."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def end(self, number: signal.Signals) -> int | None:
        """Send a signal that ends the main process; its exit code when nothing of the run is left, or None."""
        assert self.child is not None
        known = self.family()
        self.child.send_signal(number)
        return self.await_end(known)

    def await_end(self, known: set[int]) -> int | None:
        """The exit code of a run that is ending, once none of its `known` processes is left; None: it did not end."""
        child = self.child
        assert child is not None

        def gone() -> bool:
            bury(child.pid, *([self.client.pid] if self.client is not None else []))
            return child.poll() is not None and not any(map(runs, known - {child.pid}))

        if not self.wait_for(gone, EXIT_SECONDS):
            return None
        self._note_part()
        return child.wait(1.0)

    def _note_part(self) -> None:
        """Read the summary of a part that has ended: the next part removes it."""
        try:
            self.parts.append(json.loads((self.directory / "summary.json").read_text()))
        except (OSError, ValueError):
            self.killed_parts += 1


def runs(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != ZOMBIE
    except (OSError, IndexError):
        return False
