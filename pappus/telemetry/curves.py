"""Curves for TensorBoard: one file of events, written record by record."""

from __future__ import annotations

import io
import itertools
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pappus.telemetry.patient_file import PatientFile
from pappus.telemetry.storage import Storage

VERSION = "brain.Event:2"
NAME = "TensorBoard events"


class Curves:
    """The events of one run. `ImportError` without tensorboard."""

    def __init__(self, directory: Path, storage: Storage, now: float, resume_step: int | None) -> None:
        """Points after `resume_step` belong to a future that was lost; they are hidden."""
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._events: Any = event_pb2
        self._points: Any = summary_pb2
        self._record_writer: Any = RecordWriter
        header = self._record(wall_time=now, file_version=VERSION)
        if resume_step is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            header += self._record(wall_time=now, step=resume_step + 1, file_version=VERSION)
            header += self._record(wall_time=now, step=resume_step + 1, session_log=start)
        stem = f"events.out.tfevents.{now:010.0f}.{socket.gethostname()}.{os.getpid()}"
        path = next(path for i in itertools.count() if not (path := directory / f"{stem}.{i}").exists())
        self._file = PatientFile(path, storage, header, NAME)
        self.settle, self.close = self._file.settle, self._file.close

    def write(self, step: int, now: float, scalars: Mapping[str, float]) -> None:
        """One point on every curve, all in one event."""
        points = [self._points.Summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._file.append(self._record(wall_time=now, step=step, summary=self._points.Summary(value=points)))

    def _record(self, **content: Any) -> bytes:
        buffer = io.BytesIO()
        self._record_writer(buffer).write(self._events.Event(**content).SerializeToString())
        return buffer.getvalue()
