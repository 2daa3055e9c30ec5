"""The ports of a replay edge, for roles that share one thread.

    actor ──record──▶ sink ⋯ service ⋯ source ──batch──▶ learner
                                ▲            ◀──priorities──┘
                          replay server

In one thread nothing ever blocks: a port that cannot continue says so. `shared.py` has the same edge between processes;
it uses the same sink.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pappus.errors import RunError
from pappus.experience import ItemBatch
from pappus.recording.layout import TABLE, Recorder
from pappus.recording.spec import ReplaySpec
from pappus.replay.clients.client import Client
from pappus.replay.clients.writer import TrajectoryWriter
from pappus.replay.storage.items import Batch
from pappus.telemetry.metrics import Meter
from pappus.types import Array, Nest, Timestep, leaves_of


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

    def ready(self) -> bool:
        """Whether the next step can be recorded now."""
        try:
            if self._writer is None:
                self._writer = self._open_writer(self._envs, self._layout.history)
                self._recorder = self._layout.recorder(self._writer, self._envs)
            if not self._writer.flush(0.0):
                return False
        except RunError:
            self._lose()
            return False
        assert self._recorder is not None
        self._unconfirmed = self._recorder.held
        return True

    def record(
        self, seen: Timestep, state: Nest, action: Array, behaviour: Mapping[str, Array], then: Timestep
    ) -> None:
        """Record one step of every env: `seen` led to `action`, and that to `then`."""
        assert self._recorder is not None, "ready() comes before record()"
        try:
            self._unconfirmed += self._recorder.record(seen, state, action, behaviour, then)
            self._meter.total += self._step_bytes
        except RunError:
            self._lose()

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
        self._unconfirmed = 0
        self.close()
        self._writer = self._recorder = None


class DirectSource:
    """The learner's port: draws a batch when it is asked for one."""

    name = "replay"

    def __init__(self, spec: ReplaySpec, client: Client, meter: Meter) -> None:
        self._spec, self._client, self._meter = spec, client, meter
        self._batch_bytes = 0
        self._trajectory = spec.layout.trajectory()

    def take(self) -> ItemBatch | None:
        """The next batch; None if the rate limiter allows none now."""
        batch = self._client.try_sample(TABLE, self._spec.batch_size, self._trajectory)
        if batch is None:
            return None
        drawn = item_batch(batch, self._spec)
        self._batch_bytes = self._batch_bytes or bytes_of(drawn)
        self._meter.total += self._batch_bytes
        return drawn

    def update(self, batch: ItemBatch, priorities: Array) -> None:
        """Set new priorities for the items of a batch, in the order of the calls."""
        self._client.update_priorities(TABLE, batch.keys, priorities, wait=False)

    def info(self) -> dict[str, Any]:
        """Sizes and counts of the table."""
        return self._client.info(TABLE)

    def explain(self) -> str:
        return self._client.explain(TABLE)

    def fileno(self) -> int:
        return -1

    def clear(self) -> None: ...

    def close(self) -> None: ...


class DirectReplay:
    """A replay edge within one thread."""

    def __init__(self, spec: ReplaySpec) -> None:
        self._spec = spec
        self.meter = Meter()
        self.inserted = 0
        self.service = spec.service()
        self._client = Client.of(self.service)

    def sink(self, envs: int) -> RecordingSink:
        """The port of an actor with `envs` envs."""
        return RecordingSink(self._spec, envs, self._client.writer, self.meter)

    def sinks(self) -> Callable[[int], RecordingSink]:
        """For a role that records for others: opens a sink for each group of envs."""
        return self.sink

    def source(self) -> DirectSource:
        """The learner's port."""
        return DirectSource(self._spec, self._client, self.meter)

    def host(self) -> DirectReplay:
        """The replay server's port."""
        return self

    def open(self) -> None: ...

    def close(self) -> None: ...


def item_batch(batch: Batch, spec: ReplaySpec) -> ItemBatch:
    """A sampled batch as a learner takes it."""
    return ItemBatch(
        batch.keys, spec.layout.batch(batch.data), batch.weights(spec.importance_exponent),
        float(batch.info.ages.sum()) / len(batch.keys),
    )


def bytes_of(batch: ItemBatch) -> int:
    """Bytes of the items, the same for every batch of a table."""
    return sum(leaf.nbytes for leaf in leaves_of(batch.items))
