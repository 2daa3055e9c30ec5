"""What both sides of a replay edge must agree on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pappus.experience import Experience, Transitions
from pappus.recording.layout import Layout, Recorder
from pappus.recording.sequences import SequenceLayout, SequenceRecorder
from pappus.recording.transitions import HOLD_STEPS, TransitionLayout, TransitionRecorder
from pappus.replay.clients.writer import TrajectoryWriter
from pappus.replay.service.service import Service
from pappus.replay.tables.table import Table
from pappus.replay.wire.sockets import SharedMemory
from pappus.types import ArraySpec, EnvSpec, Nest


@dataclass(frozen=True)
class ReplaySpec:
    """The table of a run, and how it is sampled."""

    layout: TransitionLayout | SequenceLayout
    table: Table
    max_steps: int
    batch_size: int
    importance_exponent: float
    seed: int
    prefetch: int = 16
    """Batches that a learner has fetched ahead, where a thread can do that."""
    path: str = ""
    """The unix socket through which processes reach the service."""

    @property
    def row_bytes(self) -> int:
        """Of one step of one env, as it is stored."""
        columns = self.layout.signature.values()
        return sum(int(np.prod(column.shape)) * np.dtype(column.dtype).itemsize for column in columns)

    def service(self, memory: SharedMemory | None = None) -> Service:
        """A fresh, empty one."""
        allocate = None if memory is None else memory.allocate
        return Service([self.table], self.max_steps, seed=self.seed, allocate=allocate)


def layout_for(
    env: EnvSpec, behaviour: Mapping[str, ArraySpec], state: Nest, experience: Experience
) -> TransitionLayout | SequenceLayout:
    """The layout of an algorithm's kind of items."""
    if isinstance(experience, Transitions):
        return TransitionLayout(env, behaviour, experience)
    return SequenceLayout(env, behaviour, state, experience)


def history_of(layout: Layout) -> int:
    """Steps that a recorder may still refer to."""
    experience = layout.experience
    if isinstance(experience, Transitions):
        return experience.n_step + 1 + HOLD_STEPS
    return experience.burn_in + experience.length + experience.period


def recorder_for(layout: TransitionLayout | SequenceLayout, writer: TrajectoryWriter, envs: int) -> Recorder:
    """The recorder of an algorithm's kind of items."""
    if isinstance(layout, TransitionLayout):
        return TransitionRecorder(layout, writer, envs)
    return SequenceRecorder(layout, writer, envs)
