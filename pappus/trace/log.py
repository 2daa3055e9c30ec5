"""The trace of a run: what each role met at its ports. A text file for every life of a role, a line for every entry.

    RUN/trace/trace.json      machine and versions
              config.yaml     the config of the run
              actor-0.0.log   actor-0 until its first death (incarnation 0)
              actor-0.1.log   its successor

    invariant   a line is in its file before anything that depends on it can be seen by another role

A write of one line survives the process that made it, however that ends. The last line may be torn, and is ignored
then: nothing that depends on it was ever seen.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from pathlib import Path

from pappus.errors import RecordingError, RunError

FOLDER = "trace"
"""Where the trace is, within a run's directory."""
ENTRY = re.compile(rb"[a-z]+( [0-9a-z.-]+)*")
NAME = re.compile(r"(.+)\.(\d+)\.log")
BEGIN, READ, COMMIT, TAKE, TOTAL, PUBLISH, HASH = "begin", "read", "commit", "take", "total", "publish", "hash"
INSERT, DRAW, UPDATE, EVICT = "insert", "draw", "update", "evict"


class TraceError(RunError):
    """A trace that cannot be followed, or a replay that differs from it; the message names the first difference."""


class TraceEnded(Exception):
    """A role has done all that its trace says; what it would do next had no effect in the run."""


class TraceLog:
    """Writes the trace of one life of a role. Its first line is the id of the process, for whoever looks at it."""

    def __init__(self, folder: Path, role: str, incarnation: int) -> None:
        self.life = f"{role}.{incarnation}"
        self._path = folder / f"{self.life}.log"
        self._at_end: list[Callable[[], None]] = []
        try:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except OSError as error:
            raise self._failure(error.strerror) from None
        self.write("pid", os.getpid())

    def write(self, what: str, *values: int | str) -> None:
        line = " ".join([what, *map(str, values)]).encode() + b"\n"
        try:
            written = os.write(self._file, line)
        except OSError as error:
            raise self._failure(error.strerror) from None
        if written < len(line):
            raise self._failure("the disk is full")

    def at_end(self, write_last: Callable[[], None]) -> None:
        """Have something written when the role ends as asked."""
        self._at_end.append(write_last)

    def close(self) -> None:
        for write_last in self._at_end:
            write_last()
        with contextlib.suppress(OSError):
            os.close(self._file)

    def _failure(self, why: str | None) -> RecordingError:
        return RecordingError(f"trace {str(self._path)!r} cannot be written: {why}; make room, or leave --trace out")


class Life:
    """One life of a role, from its trace: who it was, and what it met, entry by entry."""

    def __init__(self, role: str, incarnation: int, lines: list[bytes]) -> None:
        self.role, self.incarnation, self._lines, self._at = role, incarnation, lines, 1
        self.spent: list[Callable[[], bool]] = []
        """For every port: whether all that was seen of this life in the run has been seen in the replay."""

    @classmethod
    def load(cls, path: Path) -> Life | None:
        """From a file; None if it has no entry beside the id of the process."""
        found = NAME.fullmatch(path.name)
        assert found is not None
        lines = path.read_bytes().split(b"\n")[:-1]
        for number, line in enumerate(lines, 1):
            if not ENTRY.fullmatch(line):
                raise TraceError(f"line {number} of {str(path)!r} is no entry of a trace: {line!r:.60}; it was changed")
        return cls(found[1], int(found[2]), lines) if len(lines) > 1 else None

    @property
    def key(self) -> str:
        """How other traces call it."""
        return f"{self.role}.{self.incarnation}"

    @property
    def name(self) -> str:
        return f"{self.role} (incarnation {self.incarnation})" if self.incarnation else self.role

    def all(self, what: str) -> list[list[str]]:
        """The values of all entries of one kind."""
        word = what.encode() + b" "
        return [line.decode().split()[1:] for line in self._lines if line.startswith(word)]

    def cut_after(self, what: str) -> None:
        """Forget what came after the last entry of a kind."""
        word = what.encode() + b" "
        while self._lines and not self._lines[-1].startswith(word):
            self._lines.pop()

    def leave_out(self, what: str) -> None:
        word = what.encode() + b" "
        self._lines = [line for line in self._lines if not line.startswith(word)]

    def peek(self, *kinds: str) -> tuple[str, list[str]]:
        """The next entry, which must be of one of these kinds. `TraceEnded` if there is none."""
        if self._at >= len(self._lines):
            raise TraceEnded
        what, *values = self._lines[self._at].decode().split()
        if what not in kinds:
            raise TraceError(
                f"{self.name} is about to {' or '.join(kinds)}, and its trace says {self.upcoming()!r}: the code, the "
                "config or the trace is not that of the run"
            )
        return what, values

    def next(self, what: str) -> list[int]:
        """The numbers of the next entry, which is then past."""
        values = [int(value) for value in self.peek(what)[1]]
        self._at += 1
        return values

    def skip(self) -> None:
        """The next entry is past."""
        self._at += 1

    def upcoming(self) -> str:
        """The next entry, as it is written."""
        return self._lines[self._at].decode() if self._at < len(self._lines) else ""


def load_lives(folder: Path) -> dict[str, list[Life]]:
    """All lives of every role, in their order. Those that were killed before they met anything are left out."""
    paths = [path for path in folder.iterdir() if NAME.fullmatch(path.name)]
    lives: dict[str, list[Life]] = {}
    for life in sorted(filter(None, map(Life.load, paths)), key=lambda life: life.incarnation):
        lives.setdefault(life.role, []).append(life)
    return lives
