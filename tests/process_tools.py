"""Looking at processes from outside, as `ps` does."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.warm_processes import Command, start, start_interpreter


def descendants(pid: int) -> dict[int, str]:
    """All processes below `pid`, by title."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                after_name = (entry / "stat").read_text().rpartition(")")[2].split()
                title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            except OSError:
                continue
            if after_name[0] != "Z":
                parents[int(entry.name)] = (int(after_name[1]), title)
    found: dict[int, str] = {}
    frontier = {pid}
    while frontier:
        frontier = {child for child, (parent, _) in parents.items() if parent in frontier}
        found |= {child: parents[child][1] for child in frontier}
    return found


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """The first true value of `condition`; fails when it does not come in time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"{condition} did not come true within {seconds} s")


class Training:
    """A `pappus train`, or another command that trains, in a process of its own."""

    def __init__(self, directory: Path, *words: str, command: str = "train", interpreter: bool = False) -> None:
        self.directory, self.log = directory, directory.with_suffix(".out")
        self.process: Command = (start_interpreter if interpreter else start)(self.log, command, *words)
        self.known: dict[int, str] = {}

    def until_it_learns(self, steps: int = 1) -> None:
        """Wait until `steps` were trained on."""
        eventually(lambda: self.process.poll() is not None or self.steps() >= steps, 60)
        assert self.process.poll() is None, self.output()
        self.known |= descendants(self.process.pid)

    def steps(self) -> int:
        """Steps trained on, as far as they are logged."""
        path = self.directory / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return max((json.loads(line)["step"] for line in lines if line.endswith("}")), default=0)

    def reports(self, metric: str) -> bool:
        """Whether the metric has been logged."""
        path = self.directory / "metrics.jsonl"
        return path.exists() and f'"{metric}"' in path.read_text()

    def pid(self, title: str) -> int:
        """The process of a role."""
        return int(eventually(lambda: self._find(title)))

    def _find(self, title: str) -> int | None:
        found = descendants(self.process.pid)
        self.known |= found
        return next((pid for pid, name in found.items() if name == f"pappus {title}"), None)

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)

    def wait(self, seconds: float = 30.0) -> int:
        """The exit code."""
        return self.process.wait(seconds)

    def summary(self) -> dict[str, Any]:
        """The content of summary.json."""
        content: dict[str, Any] = json.loads((self.directory / "summary.json").read_text())
        return content

    def output(self) -> str:
        """All that it printed."""
        return self.log.read_text()

    def nothing_is_left(self, seconds: float = 5.0) -> None:
        """Every process that it ever had is gone."""
        eventually(lambda: not any(alive(pid) for pid in self.known), seconds)

    def end(self) -> None:
        """Make sure that a failed test leaves nothing either."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
