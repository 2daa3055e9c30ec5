"""What a run leaves behind: metrics.jsonl, TensorBoard events, log.txt and summary.json."""

from __future__ import annotations

import datetime
import json
import mmap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pappus.telemetry.files import git_hash, jsonable, versions, write_json


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
    """The files of one run directory. Opening an existing one continues it; `resume_step` is where from."""

    def __init__(
        self, directory: Path | str, wall_time: Callable[[], float] = time.time, resume_step: int | None = None,
        tensorboard: bool = True,
    ) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self._wall_time, self._resume_step = wall_time, resume_step
        repair(self.directory / "metrics.jsonl")
        self._metrics = (self.directory / "metrics.jsonl").open("a", encoding="utf-8")
        self._log = (self.directory / "log.txt").open("a", encoding="utf-8")
        self._curves: Any = self._open_curves() if tensorboard else None

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """One line of metrics.jsonl, `{"step": …, "time": …, NAME: VALUE, …}`, and one point on every curve."""
        now = self._wall_time()
        line = {"step": step, "time": now, **scalars}
        self._metrics.write(json.dumps(jsonable(line), allow_nan=False) + "\n")
        self._metrics.flush()
        self._write_curves(step, now, scalars)

    def event(self, text: object, at: float | None = None) -> None:
        """One line of log.txt; further lines of the text (a traceback) are indented."""
        moment = datetime.datetime.fromtimestamp(self._wall_time() if at is None else at)
        self._log.write(f"{moment:%Y-%m-%d %H:%M:%S} " + str(text).rstrip().replace("\n", "\n    ") + "\n")
        self._log.flush()

    def write_summary(self, summary: Summary) -> None:
        """Write summary.json by rename: it is whole or absent."""
        write_json(self.directory / "summary.json", summary.to_dict())

    def close(self) -> None:
        self._metrics.close()
        self._log.close()
        if self._curves is not None:
            self._curves.close()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_curves(self) -> Any:
        """A writer of TensorBoard events; opened before training, which its import would hold up for a tenth of a
        second."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            self.event(f"no TensorBoard events, only metrics.jsonl: {error}; install tensorboard to have them")
            return None
        make: Any = SummaryWriter
        # Points after the step that a run resumes from belong to a future that was lost; they are hidden.
        return make(str(self.directory), purge_step=None if self._resume_step is None else self._resume_step + 1)

    def _write_curves(self, step: int, now: float, scalars: Mapping[str, float]) -> None:
        """One point on every curve, all in one event: `add_scalar` would wake the writing thread for each of them."""
        if self._curves is None:
            return
        from tensorboard.compat.proto.summary_pb2 import Summary as Points

        points = [Points.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._curves.file_writer.add_summary(Points(value=points), step, walltime=now)
        self._curves.flush()


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
