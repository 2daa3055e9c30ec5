"""Curves for TensorBoard; the x axis is env steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class TensorBoardWriter:
    """Writes event files into a directory. Importing TensorBoard takes half a second, so only this imports it."""

    def __init__(self, directory: Path, resume_step: int | None = None) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from torch.utils.tensorboard import SummaryWriter

        self._summary: Any = Summary
        # Points after the step that a run resumes from belong to a future that was lost; they are hidden.
        purge_step = None if resume_step is None else resume_step + 1
        self._writer: Any = SummaryWriter(str(directory), purge_step=purge_step)

    def write(self, step: int, time: float, scalars: Mapping[str, float]) -> None:
        """One point on every curve, all in one event: `add_scalar` would wake the writing thread for each of them."""
        points = [self._summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._writer.file_writer.add_summary(self._summary(value=points), step, walltime=time)
        self._writer.flush()

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()
