"""Curves for TensorBoard; the x axis is env steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


class TensorBoardWriter:
    """Writes event files into a directory. Importing TensorBoard takes half a second, so only this imports it."""

    def __init__(self, directory: Path, resume_step: int | None = None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Points after the step that a run resumes from belong to a future that was lost; they are hidden.
        purge_step = None if resume_step is None else resume_step + 1
        self._writer = SummaryWriter(str(directory), purge_step=purge_step)

    def write(self, step: int, time: float, scalars: Mapping[str, float]) -> None:
        """One point on every curve."""
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step, walltime=time)
        self._writer.flush()

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()
