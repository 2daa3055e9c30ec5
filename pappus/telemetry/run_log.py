"""What a run leaves behind: metrics.jsonl, TensorBoard events, log.txt and summary.json."""

from __future__ import annotations

import contextlib
import datetime
import json
import mmap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pappus.telemetry.curves import Curves
from pappus.telemetry.doctor_file import DOCTOR
from pappus.telemetry.files import git_hash, jsonable, versions, write_json
from pappus.telemetry.patient_file import PatientFile
from pappus.telemetry.storage import Storage

STOPPED, TIME, BUDGET = "stopped by a callback", "time is up", "budget spent"
DONE = ("steps done", TIME, BUDGET, "target reached", STOPPED)
"""Exit reasons of runs that have come to their end; others may go on."""


@dataclass(frozen=True)
class Summary:
    """One run's outcome. Unknown numbers are None, never NaN."""

    system: str
    env: str
    seed: int
    steps: int
    updates: int
    wall_seconds: float
    """From the command to the end."""
    train_seconds: float
    """From the first update to the last."""
    steps_per_second: float
    episodic_return: float | None
    eval_return: float | None
    solved_at_step: int | None
    exit_reason: str
    extras: dict[str, Any] = field(default_factory=dict)
    """Further keys of the file, such as `precision`."""

    def to_dict(self) -> dict[str, Any]:
        """The content of `summary.json`: every field, the extras, versions and commit."""
        content = {**vars(self), "versions": versions(), "git_hash": git_hash(), **self.extras}
        del content["extras"]
        return content


class RunLog:
    """The files of one run directory. Opening an existing one continues it; `resume_step` is where from. None of its
    methods raises `OSError`: `storage` tells what could not be written."""

    def __init__(
        self, directory: Path | str, wall_time: Callable[[], float] = time.time, resume_step: int | None = None,
        tensorboard: bool = True,
    ) -> None:
        self.directory, self.storage = Path(directory), Storage()
        self.directory.mkdir(parents=True, exist_ok=True)
        self._wall_time = wall_time
        self._texts: dict[str, str] = {}
        repair(self.directory / "metrics.jsonl")
        self._metrics = PatientFile(self.directory / "metrics.jsonl", self.storage)
        self._log = PatientFile(self.directory / "log.txt", self.storage)
        self._curves = self._open_curves(resume_step) if tensorboard else None

    def keep(self, name: str, text: str) -> None:
        """Write a file that the run directory must have, and write it anew if it vanishes."""
        self._texts[name] = text
        (self.directory / name).write_text(text, encoding="utf-8")

    def write(self, step: int, scalars: Mapping[str, float]) -> float:
        """One line of metrics.jsonl, `{"step": …, "time": …, NAME: VALUE, …}`, and a point on every curve; its time."""
        now = self._wall_time()
        line = {"step": step, "time": now, **scalars}
        self._metrics.append((json.dumps(jsonable(line), allow_nan=False) + "\n").encode())
        if self._curves is not None:
            self._curves.write(step, now, scalars)
        self._restore_texts()
        return now

    def event(self, text: object, at: float | None = None) -> None:
        """One line of log.txt; further lines of the text (a traceback) are indented."""
        moment = datetime.datetime.fromtimestamp(self._wall_time() if at is None else at)
        line = f"{moment:%Y-%m-%d %H:%M:%S} " + str(text).rstrip().replace("\n", "\n    ") + "\n"
        self._log.append(line.encode(errors="replace"))

    def write_doctor(self, content: Mapping[str, Any]) -> None:
        """What the doctor says now. On a full disk it is left out: it is soon said again."""
        with contextlib.suppress(OSError):
            write_json(self.directory / DOCTOR, content, durable=False)

    def write_summary(self, summary: Summary) -> None:
        """Write summary.json by rename: it is whole or absent."""
        try:
            write_json(self.directory / "summary.json", summary.to_dict())
        except OSError as error:
            self.storage.failed("summary.json", f"{str(self.directory)!r} has no summary.json: {error.strerror}")
            self.storage.lose("summary.json")

    def settle(self) -> None:
        """Write what waits for room; what cannot be written even now is lost."""
        for file in self._files():
            file.settle()

    def close(self) -> None:
        for file in self._files():
            file.close()

    def _files(self) -> list[PatientFile | Curves]:
        return [self._metrics, self._log, *([self._curves] if self._curves is not None else [])]

    def _restore_texts(self) -> None:
        for name, text in self._texts.items():
            if not (self.directory / name).exists():
                with contextlib.suppress(OSError):  # tried again with the next line
                    (self.directory / name).write_text(text, encoding="utf-8")

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_curves(self, resume_step: int | None) -> Curves | None:
        """Opened before training, which the import of tensorboard would hold up for a tenth of a second."""
        try:
            return Curves(self.directory, self.storage, self._wall_time(), resume_step)
        except ImportError as error:
            self.event(f"no TensorBoard events, only metrics.jsonl: {error}; install tensorboard to have them")
            return None


def repair(path: Path) -> None:
    """Finish or cut off the last line of a JSON-lines file whose writer was killed."""
    if not path.exists() or path.stat().st_size == 0:
        return
    with path.open("r+b") as file:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            start = content.rfind(b"\n") + 1
            tail = content[start:]
        if not tail:
            return
        try:
            json.loads(tail)
        except ValueError:
            file.truncate(start)
        else:
            file.seek(0, 2)
            file.write(b"\n")
