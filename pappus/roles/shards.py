"""Weights in shards, read and updated as one flat buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pappus.core import Sink, Waitable, WeightsReader
from pappus.types import Array


class ShardedWeights:
    """Reads the newest version of every shard. Its version is that of the first shard, which leads."""

    def __init__(self, readers: Sequence[WeightsReader], sizes: Sequence[int]) -> None:
        self._readers, self._sizes = readers, sizes
        self.name = readers[0].name
        self.versions = [-1] * len(readers)
        """The version of every shard that was read last."""

    def version(self) -> int:
        """The newest version, -1 until every shard has one."""
        versions = [reader.version() for reader in self._readers]
        return versions[0] if min(versions) >= 0 else -1

    def read(self, into: Array) -> int:
        """Copy the newest version of every shard."""
        begin = 0
        for i, (reader, size) in enumerate(zip(self._readers, self._sizes, strict=True)):
            if reader.version() != self.versions[i]:
                self.versions[i] = reader.read(into[begin : begin + size])
            begin += size
        return self.versions[0]

    def explain(self) -> str:
        return "no version of some shard was published yet"

    def fileno(self) -> int:
        return next((reader for reader in self._readers if reader.version() < 0), self._readers[0]).fileno()

    def clear(self) -> None: ...


class ShardedChannel(ShardedWeights):
    """Both directions at once: gradients to the shards, weights from them."""

    def __init__(self, readers: Sequence[WeightsReader], sinks: Sequence[Sink], sizes: Sequence[int]) -> None:
        super().__init__(readers, sizes)
        self._gradients = ShardedGradients(sinks, sizes)

    def full(self) -> Waitable | None:
        """A shard that cannot take one more gradient now."""
        return self._gradients.full()

    def send(self, gradient: Array, loss: float) -> None:
        """Send a gradient of the weights that were read last; the shards know how old those are."""
        self._gradients.send(gradient, self.versions, loss)


class ShardedGradients:
    """Sends every shard its part of a gradient."""

    def __init__(self, sinks: Sequence[Sink], sizes: Sequence[int]) -> None:
        self._sinks, self._sizes = sinks, sizes

    def full(self) -> Waitable | None:
        """A shard that cannot take one more gradient now."""
        return next((sink for sink in self._sinks if sink.acquire() is None), None)

    def send(self, gradient: Array, versions: Sequence[int], loss: float) -> None:
        """Send a gradient of weights of these versions."""
        begin = 0
        for sink, size, version in zip(self._sinks, self._sizes, versions, strict=True):
            slot: Any = sink.acquire()
            assert slot is not None, "full() comes before send()"
            slot.values[:] = gradient[begin : begin + size]
            slot.version[...], slot.loss[...] = version, loss
            sink.commit()
            begin += size


def shard_sizes(total: int, shards: int) -> list[int]:
    """How many of `total` weights each shard has, as evenly as possible."""
    return [total // shards + (i < total % shards) for i in range(shards)]
