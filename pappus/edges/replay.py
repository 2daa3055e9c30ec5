"""A replay table: actors record into it, learners sample from it, and one role holds it (see `pappus.recording`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pappus.core import ItemSink, ItemSource
from pappus.edges.edge import Edge, PortRef
from pappus.transports.memory import Block, SharedBlock

if TYPE_CHECKING:  # a node agent needs no tables
    from pappus.recording.direct import DirectReplay, ReplaySpec
    from pappus.recording.shared import ServiceDirectory, SharedReplay, SharedReplayHost


@dataclass(frozen=True)
class ReplayEdge(Edge):
    """One table; between processes, everything but the number of inserted items is with the role that holds it."""

    spec: ReplaySpec

    def sink(self, envs: int) -> PortRef[ItemSink]:
        """For a role that records the steps of `envs` envs."""
        return PortRef(self.name, _sink, (envs,))

    def sinks(self) -> PortRef[Callable[[int], ItemSink]]:
        """For a role that records for many: a function that makes a sink for a number of envs."""
        return PortRef(self.name, _sinks)

    def source(self) -> PortRef[ItemSource]:
        return PortRef(self.name, _source)

    def host(self) -> PortRef[DirectReplay | SharedReplayHost]:
        """For the role that holds the table."""
        return PortRef(self.name, _host)

    def outline(self) -> ReplayEdge:
        """Without the table, which refers to the algorithm and so to torch."""
        bare: Any = None
        return replace(self, spec=bare)

    def memory(self) -> tuple[int, int]:
        return 8, 0

    def open(self, block: Block) -> DirectReplay | SharedReplay:
        return self.open_on_cluster(block, None)

    def open_on_cluster(self, block: Block, services: ServiceDirectory | None) -> DirectReplay | SharedReplay:
        from pappus.recording.direct import DirectReplay
        from pappus.recording.shared import SharedReplay

        if isinstance(block, SharedBlock):
            return SharedReplay(self.spec, block.memory.view(np.int64), self.name, services)
        return DirectReplay(self.spec)

    def reserves(self, ref: PortRef[Any]) -> int:
        return self.spec.row_bytes * self.spec.max_steps if ref == self.host() else 0


def _sink(replay: DirectReplay | SharedReplay, envs: int) -> ItemSink:
    return replay.sink(envs)


def _sinks(replay: DirectReplay | SharedReplay) -> Callable[[int], ItemSink]:
    return replay.sink


def _source(replay: DirectReplay | SharedReplay) -> ItemSource:
    return replay.source()


def _host(replay: DirectReplay | SharedReplay) -> DirectReplay | SharedReplayHost:
    return replay.host()
