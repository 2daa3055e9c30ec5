"""The reader: plays episodes of a data set, many side by side, as an actor plays envs.

    data set ──episodes──▶ lanes ──steps──▶ recorder ──items──▶ replay

Data that fits into its table is read once, in order. Data that does not is read repeatedly, each time in another order,
as fast as the table's rate limiter allows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np

from pappus.core import ItemSink, Waitable
from pappus.data.episode import Episode
from pappus.data.lanes import Lanes, Rows
from pappus.roles.acting import report_lost
from pappus.roles.role import IDLE, Role
from pappus.types import Array, EnvSpec, Nest, Timestep, map_leaves

LOOK_SECONDS = 1.0
"""How often a reader that has read everything looks whether the table still has it."""

OpenEpisodes: TypeAlias = Callable[[], Iterator[Episode]]
"""Opens the data set: what is read, in order."""


class DataReader(Role):
    """Records episodes. `items` is the size of the table when all readers have read everything; 0 if they never finish.

    A reader that finds all items in the table reads nothing: its predecessor was killed after it had read everything.
    If the service was lost and came back with fewer items, all readers read everything again, and the oldest items are
    evicted."""

    afresh = "data that does not fit into its table is read on in another order"

    def __init__(
        self, name: str, spec: EnvSpec, open_episodes: OpenEpisodes, lanes: int, sink: ItemSink, items: int
    ) -> None:
        super().__init__(name)
        self._spec, self._open_episodes, self._num_lanes = spec, open_episodes, lanes
        self._sink, self._items = sink, items
        self._lanes: Lanes | None = None
        self._rows: Rows | None = None
        self._row = self._connection = self._steps = self._turns = 0
        self._began = self._look_at = 0.0
        self._ending = False

    def step(self) -> Waitable | None:
        """Record a block of rows, or return the port that has to be waited for."""
        if self._lanes is None and not self._ending and time.perf_counter() < self._look_at:
            return IDLE
        self.wake_at = None
        if not self._sink.ready():
            report_lost(self.metrics, self._sink)
            return self._sink
        if self._sink.connections != self._connection:
            self._connect()
        if self._lanes is None:
            return self._rest()
        return self._record(self._lanes)

    def _connect(self) -> None:
        """Begin, unless the table has everything; `size` is None if the service is lost again."""
        size, self._lanes, self._rows, self._ending = self._sink.size(), None, None, False
        if size is None:
            return
        self._connection = self._sink.connections
        if not self._items or size < self._items:
            self._lanes = Lanes(self._spec, self._open_episodes(), self._num_lanes)
            self._steps, self._began = 0, time.perf_counter()

    def _record(self, lanes: Lanes) -> Waitable | None:
        """Record rows, up to the end of a block, while there is room for them."""
        self._turns += 1
        if self._rows is None:
            before, self._row = lanes.episodes, 0
            self._rows = lanes.block()
            self.metrics.count("episodes_read", lanes.episodes - before)
        if self._rows is None:
            self._sink.end()
            self._lanes, self._ending = None, True
            return None
        steps = 0
        while True:
            seen, action, then = _at(self._rows, self._row)
            self._sink.record(seen, (), action, {}, then)
            steps += int(np.count_nonzero(then.valid))
            self._row += 1
            if self._row == self._rows.length:
                self._rows = None
                break
            if not self._sink.ready():
                break
        self._steps += steps
        self.metrics.count("steps_read", steps)
        return None

    def _rest(self) -> Waitable:
        """Everything is in: look after it. A service that was lost is noticed by asking it."""
        now = time.perf_counter()
        if self._ending:
            self._ending = False
            self.metrics.event(f"read {self._steps:,} steps in {now - self._began:.1f} s")
        self._sink.size()
        self._look_at = self.wake_at = now + LOOK_SECONDS
        return IDLE

    def save(self) -> Nest | None:
        """How often it has read on. What is read for ever is shuffled anew."""
        return {"turns": self._turns} if self._items else None

    def load(self, state: Nest) -> None:
        """Read again what was read, which comes in the same order."""
        while self._turns < state["turns"] and self.step() is None:
            pass

    def close(self) -> None:
        self._sink.close()


def _at(rows: Rows, row: int) -> tuple[Timestep, Array, Timestep]:
    """What was seen, what was done, and what came of it. Recorders do not look at the next observation."""
    valid, reward, discount = rows.valid[row], rows.reward[row], rows.discount[row]
    seen = Timestep(map_leaves(lambda leaf: leaf[row], rows.observation), rows.first[row], reward, discount, valid)
    return seen, rows.action[row], seen._replace(observation=None)
