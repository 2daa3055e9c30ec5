"""The ports of a replay edge, for roles that share one thread.

    actor ──record──▶ sink ⋯ service ⋯ source ──batch──▶ learner
                                ▲            ◀──priorities──┘
                          replay server

In one thread nothing ever blocks: a port that cannot continue says so. `shared.py` has the same edge between processes;
it uses the same sink.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pappus.core import ItemRules
from pappus.errors import RunError
from pappus.experience import ItemBatch, Transitions
from pappus.recording.logged import Logged
from pappus.recording.sequences import SequenceLayout
from pappus.recording.transitions import TABLE, Layout, Recorder, TransitionLayout
from pappus.replay.clients.client import Client
from pappus.replay.clients.writer import TrajectoryWriter
from pappus.replay.sampling.fields import Batch
from pappus.replay.service.service import CHUNK_LENGTH, Service
from pappus.replay.storage.chunks import plan
from pappus.replay.tables.table import Table
from pappus.replay.wire.sockets import SharedMemory
from pappus.telemetry.metrics import Meter
from pappus.types import ORIGIN, Array, EnvSpec, Nest, Timestep, leaves_of


@dataclass(frozen=True)
class ReplaySpec:
    """The definition of a replay edge, shared by both ends: the table of a run, and how it is sampled."""

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

    @property
    def most_rows(self) -> int:
        """Steps that the service has room for."""
        return plan(self.layout.signature, self.max_steps, CHUNK_LENGTH).rows

    def item_batch(self, batch: Batch) -> ItemBatch:
        """A sampled batch as a learner takes it."""
        return ItemBatch(
            batch.keys, self.layout.batch(batch.data), batch.weights(self.importance_exponent),
            float(batch.info.ages.sum()) / len(batch.keys), origin=batch.data.get(ORIGIN, ()),
        )

    def service(self, memory: SharedMemory | None = None) -> Service:
        allocate = None if memory is None else memory.allocate
        return Service([self.table], self.max_steps, seed=self.seed, allocate=allocate)


def layout_for(env: EnvSpec, algorithm: ItemRules, state: Nest, origins: bool = False) -> Layout:
    """The layout for the items that an algorithm learns from; `state` is the recurrent state of one env. With
    `origins`, items tell whose envs showed them."""
    experience = algorithm.experience
    if isinstance(experience, Transitions):
        return TransitionLayout(env, algorithm, experience, origins)
    return SequenceLayout(env, algorithm, state, experience, not isinstance(algorithm, Logged), origins)


class RecordingSink:
    """The actor's port. If the service is lost, unconfirmed items are counted as lost, and recording starts anew."""

    name = "replay"

    def __init__(
        self, spec: ReplaySpec, envs: int, open_writer: Callable[[int, int], TrajectoryWriter], meter: Meter
    ) -> None:
        """`open_writer(envs, history)` opens a writer on the service."""
        self._layout, self._envs, self._open_writer, self._meter = spec.layout, envs, open_writer, meter
        self._step_bytes = envs * spec.row_bytes
        self._writer: TrajectoryWriter | None = None
        self._recorder: Recorder | None = None
        self._unconfirmed = 0
        self.lost = 0
        """Items that may not have reached the service; the role that reports them resets it to 0."""
        self.connections = 0
        self.stored = self.steps_lost = 0
        self._open_steps, self._covered = 0, 0

    def ready(self) -> bool:
        """Whether the next step can be recorded now."""
        try:
            if self._writer is None:
                self._writer, self._recorder = self._open()
                self.connections, self._covered = self.connections + 1, 0
            if not self._writer.flush(0.0):
                return False
        except RunError:
            self._lose()
            return False
        recorder = self._recorder
        assert recorder is not None
        self._unconfirmed = recorder.held
        covered = recorder.covered - recorder.held
        self.stored += covered - self._covered
        self._open_steps -= covered - self._covered
        self._covered = covered
        return True

    def _open(self) -> tuple[TrajectoryWriter, Recorder]:
        writer = self._open_writer(self._envs, self._layout.history)
        return writer, self._layout.recorder(writer, self._envs)

    def record(
        self, seen: Timestep, state: Nest, action: Array, behaviour: Mapping[str, Array], then: Timestep
    ) -> int:
        """Record one step of every env: `seen` led to `action`, and that to `then`; how many of these are valid."""
        assert self._recorder is not None, "ready() comes before record()"
        steps = int(np.count_nonzero(then.valid))
        self._open_steps += steps
        try:
            self._unconfirmed += self._recorder.record(seen, state, action, behaviour, then)
            self._meter.total += self._step_bytes
        except RunError:
            self._lose()
        return steps

    def open_steps(self) -> int:
        return self._open_steps

    def size(self) -> int | None:
        """Items in the table now; None while the service is away."""
        try:
            return None if self._writer is None else int(self._writer.info(TABLE)["size"])
        except RunError:
            self._lose()
            return None

    def end(self) -> None:
        """Insert what was held back; `ready` says when it has arrived."""
        if self._recorder is not None:
            try:
                self._recorder.insert_held()
            except RunError:
                self._lose()

    def save(self) -> Nest:
        """What is under construction, where the service is in this thread and is saved, too."""
        if self._writer is None or self._recorder is None:
            return {}
        return {
            "writer": self._writer.save(), "recorder": self._recorder.save(), "unconfirmed": self._unconfirmed,
            "open_steps": self._open_steps, "covered": self._covered,
        }

    def load(self, saved: Nest) -> None:
        """Continue from what `save` returned; the service is loaded already."""
        if saved:
            self._writer, self._recorder = self._open()
            self._writer.load(saved["writer"])
            self._recorder.load(saved["recorder"])
            self._unconfirmed, self._open_steps = saved["unconfirmed"], saved["open_steps"]
            self.connections, self._covered = self.connections + 1, saved["covered"]

    def explain(self) -> str:
        return "the rate limiter blocks inserts, or the service is away"

    def fileno(self) -> int:
        return -1 if self._writer is None else self._writer.fileno()

    def clear(self) -> None: ...

    def close(self) -> None:
        """Close without waiting for unconfirmed items."""
        if self._writer is not None:
            self._writer.abandon()

    def _lose(self) -> None:
        self.lost += self._unconfirmed
        self.steps_lost += self._open_steps
        self._unconfirmed = self._open_steps = 0
        self.close()
        self._writer = self._recorder = None


class DirectReplay:
    """A replay edge within one thread. It is the port of the learner and of the replay server, too."""

    name = "replay"
    alone = True

    def __init__(self, spec: ReplaySpec) -> None:
        self._spec = spec
        self.meter = Meter()
        self.inserted = 0
        self.service = spec.service()
        self._client = Client.of(self.service)
        self._trajectory = spec.layout.trajectory()
        self._batch_bytes = 0

    def sink(self, envs: int) -> RecordingSink:
        return RecordingSink(self._spec, envs, self._client.writer, self.meter)

    def source(self) -> DirectReplay:
        return self

    def host(self) -> DirectReplay:
        return self

    def open(self) -> None:
        """Writers that continue from a checkpoint have done so by now."""
        self.service.leave(self.service.unclaimed)

    def save(self) -> dict[str, Nest]:
        """Nothing: it draws when it is asked to."""
        return {}

    def load(self, saved: Nest) -> None: ...

    def take(self) -> ItemBatch | None:
        """The next batch; None if the rate limiter allows none now."""
        batch = self._client.try_sample(TABLE, self._spec.batch_size, self._trajectory)
        if batch is None:
            return None
        drawn = self._spec.item_batch(batch)
        self._batch_bytes = self._batch_bytes or bytes_of(drawn)
        self.meter.total += self._batch_bytes
        return drawn

    def update(self, batch: ItemBatch, priorities: Array) -> None:
        """Set new priorities for the items of a batch, in the order of the calls."""
        if self._spec.table.uses_priorities:
            self._client.update_priorities(TABLE, batch.keys, priorities, wait=False)

    def large_bytes(self) -> int:
        """Within one thread values are read where they are."""
        return 0

    def keep_rows(self) -> None: ...

    def info(self) -> dict[str, Any]:
        return self._client.info(TABLE)

    def explain(self) -> str:
        return self._client.explain(TABLE)

    def fileno(self) -> int:
        return -1

    def clear(self) -> None: ...

    def close(self) -> None: ...


def bytes_of(batch: ItemBatch) -> int:
    """Bytes of the items, the same for every batch of a table."""
    return sum(leaf.nbytes for leaf in leaves_of(batch.items))
