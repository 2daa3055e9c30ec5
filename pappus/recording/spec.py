"""What both ends of a replay edge agree on."""

from __future__ import annotations

from dataclasses import dataclass

from pappus.core import ReplayAlgorithm
from pappus.experience import Transitions
from pappus.recording.layout import Layout
from pappus.recording.sequences import SequenceLayout
from pappus.recording.transitions import TransitionLayout
from pappus.replay.service.service import Service
from pappus.replay.tables.table import Table
from pappus.replay.wire.sockets import SharedMemory
from pappus.types import EnvSpec, Nest


@dataclass(frozen=True)
class ReplaySpec:
    """The table of a run, and how it is sampled."""

    layout: Layout
    table: Table
    max_steps: int
    batch_size: int
    importance_exponent: float
    seed: int
    prefetch: int = 16
    """Batches that a learner's thread fetches ahead."""
    path: str = ""
    """The unix socket through which processes reach the service."""

    @property
    def row_bytes(self) -> int:
        """Bytes of one step of one env in the table."""
        return sum(column.nbytes for column in self.layout.signature.values())

    def service(self, memory: SharedMemory | None = None) -> Service:
        """A new, empty service."""
        allocate = None if memory is None else memory.allocate
        return Service([self.table], self.max_steps, seed=self.seed, allocate=allocate)


def layout_for(env: EnvSpec, algorithm: ReplayAlgorithm, state: Nest) -> Layout:
    """The layout for the items that an algorithm learns from; `state` is the recurrent state of one env."""
    experience = algorithm.experience
    if isinstance(experience, Transitions):
        return TransitionLayout(env, algorithm, experience)
    return SequenceLayout(env, algorithm, state, experience)
