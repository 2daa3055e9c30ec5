"""Several services as one: writers are spread over them, and samples come from all, as from one large table.

A shard's share of a batch is drawn in proportion to its total weight, and within the shard an item is drawn in
proportion to its own weight. So every item has the same probability as in one table with all items:

    mass_s / Σ mass  ·  weight_i / mass_s  =  weight_i / Σ mass
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from pappus.errors import UserError
from pappus.replay.clients.client import Client
from pappus.replay.clients.sampler import Sampler
from pappus.replay.clients.writer import TrajectoryWriter
from pappus.replay.sampling.fields import Batch, Trajectory
from pappus.replay.service.service import Deadline
from pappus.replay.storage.chunks import Drawn
from pappus.types import Array

PAUSE_SECONDS = 0.02
"""Interval at which shards that cannot be sampled yet are asked again."""


class ShardedClient:
    """A client of several services with the same tables; each function in `connect` creates a client of one."""

    def __init__(self, connect: Sequence[Callable[[], Client]], seed: int | None = None) -> None:
        if not connect:
            raise UserError("a sharded client needs at least one service")
        self._connect = list(connect)
        self._clients = [make() for make in connect]
        first = self._clients[0]
        for client in self._clients:
            if {name: table.to_dict() for name, table in client.tables.items()} != {
                name: table.to_dict() for name, table in first.tables.items()
            }:
                raise UserError("all services of a sharded client must have the same tables")
        self.tables = first.tables
        self._next = itertools.cycle(self._clients)
        self._rng = np.random.default_rng(seed)
        # Samples may wait: threads must be left to update priorities, which the samples may wait for.
        self._pool = ThreadPoolExecutor(4 * len(self._clients), "shards")

    def writer(self, envs: int | None = None, history: int = 128, max_pending: int = 1) -> TrajectoryWriter:
        """A writer on the next service, round robin: all steps of a stream are on one service."""
        return next(self._next).writer(envs, history, max_pending)

    def sample(
        self, table: str, count: int, trajectory: Trajectory | None = None, timeout: float | None = None
    ) -> Batch:
        """As `Client.sample`. Keys include the shard; the other methods of this client understand them."""
        deadline = Deadline(timeout)
        masses, sizes = self._weigh(table, deadline)
        shares = self._rng.multinomial(count, masses / masses.sum())

        def draw(client: Client, share: int) -> Batch:
            return client.sample(table, share, trajectory, deadline.left)

        asked = [
            (shard, self._pool.submit(draw, self._clients[shard], int(share)))
            for shard, share in enumerate(shares) if share
        ]
        parts, errors = [], []
        for shard, future in asked:
            try:
                batch = future.result()
            except TimeoutError as error:
                errors.append(error)
                continue
            info = batch.info._replace(
                keys=batch.keys * len(self._clients) + shard,
                probabilities=batch.info.probabilities * masses[shard] / masses.sum(),
            )
            parts.append(batch._replace(info=info))
        if not parts:
            raise errors[0]
        return _together(parts, int(sizes.sum()), float(masses.sum()))

    def sampler(self, table: str, count: int, trajectory: Trajectory | None = None, prefetch: int = 2) -> Sampler:
        """As `Client.sampler`."""
        seeds = self._rng.integers(0, 1 << 31, prefetch)
        own = [ShardedClient(self._connect, int(seed)) for seed in seeds]
        return Sampler(
            [partial(client.sample, table, count, trajectory) for client in own], [client.close for client in own]
        )

    def update_priorities(self, table: str, keys: Array, priorities: Array) -> int:
        """As `Client.update_priorities`."""
        keys, priorities = np.asarray(keys, np.int64), np.asarray(priorities, np.float64)
        return self._routed(keys, lambda client, own, mine: client.update_priorities(table, own, priorities[mine]))

    def delete(self, table: str, keys: Array) -> int:
        """As `Client.delete`."""
        return self._routed(np.asarray(keys, np.int64), lambda client, own, mine: client.delete(table, own))

    def move_bounds(
        self, table: str, least: float | None = None, most: float | None = None, min_size: int | None = None
    ) -> None:
        """As `Client.move_bounds`, on every shard."""
        for client in self._clients:
            client.move_bounds(table, least, most, min_size)

    def checkpoint(self, name: str) -> list[str]:
        """Make every shard write its own checkpoint; returns the folders."""
        names = [f"{name}-{shard}" for shard in range(len(self._clients))]
        return list(self._pool.map(lambda client, own: client.checkpoint(own), self._clients, names))

    def reset(self, table: str) -> None:
        """Delete all items of a table on all shards."""
        for client in self._clients:
            client.reset(table)

    def info(self, table: str) -> dict[str, Any]:
        """Sizes and counts of all shards together."""
        infos = [client.info(table) for client in self._clients]
        return {name: sum(info[name] for info in infos) for name in infos[0]}

    def explain(self, table: str) -> str:
        """The explanations of all shards."""
        return "\n".join(f"shard {i}: {client.explain(table)}" for i, client in enumerate(self._clients))

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self._pool.shutdown(wait=False)

    def __enter__(self) -> ShardedClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _weigh(self, table: str, deadline: Deadline) -> tuple[Array, Array]:
        """Weights and sizes of all shards, as soon as one can be sampled."""
        while True:
            found = np.array(list(self._pool.map(lambda client: client.weigh(table), self._clients)), np.float64)
            if found[:, 0].sum() > 0:
                return found[:, 0], found[:, 1]
            if deadline.left == 0:
                raise TimeoutError(f"nothing could be sampled in {deadline.seconds:g} s; {self.explain(table)}")
            time.sleep(PAUSE_SECONDS)

    def _routed(self, keys: Array, act: Callable[[Client, Array, Array], int]) -> int:
        """Call `act` with the keys of each shard; returns the sum of its results."""
        shards = keys % len(self._clients)
        futures = [
            self._pool.submit(act, client, keys[mine] // len(self._clients), mine)
            for shard, client in enumerate(self._clients) if (mine := shards == shard).any()
        ]
        return sum(future.result() for future in futures)


def _together(parts: list[Batch], size: int, mass: float) -> Batch:
    """Concatenate batches; time is padded to the longest item."""
    data = {}
    for name, dims in parts[0].dims.items():
        arrays = [part.data[name] for part in parts]
        if "time" in dims:
            time_axis = dims.index("time")
            longest = max(array.shape[time_axis] for array in arrays)
            arrays = [_lengthened(array, time_axis, longest) for array in arrays]
        data[name] = np.concatenate(arrays, axis=dims.index("batch"))
    info = Drawn.joined([part.info for part in parts])._replace(table_size=size, mass=mass)
    return Batch(data, info, parts[0].dims)


def _lengthened(array: Array, axis: int, length: int) -> Array:
    if array.shape[axis] == length:
        return array
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, length - array.shape[axis])
    return np.pad(array, widths)
