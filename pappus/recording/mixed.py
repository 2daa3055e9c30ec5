"""A source that mixes tables: every batch has a share of each, and new priorities go back to an item's own table.

    replay ──7 items──┐
                      ├──▶ a batch of 10
    data   ──3 items──┘
"""

from __future__ import annotations

from collections.abc import Sequence as Sequences
from typing import Any

import numpy as np

from pappus.core import ItemSource
from pappus.experience import ItemBatch, Sequence, Transition
from pappus.types import OWN, Array, Nest, map_leaves


class MixedSource:
    """Takes a share of each batch from each source. Table statistics and item ages are those of the first."""

    def __init__(self, sources: Sequences[ItemSource]) -> None:
        self._sources = list(sources)
        self._parts: list[ItemBatch | None] = [None] * len(sources)
        self._waits = self._sources[0]
        self.name = self._waits.name

    def take(self) -> ItemBatch | None:
        """The next batch; None while a part is missing. Parts that are there are kept."""
        for i, source in enumerate(self._sources):
            if self._parts[i] is None:
                self._parts[i] = source.take()
        parts = tuple(part for part in self._parts if part is not None)
        if len(parts) < len(self._sources):
            self._waits = self._sources[self._parts.index(None)]
            return None
        self._parts = [None] * len(self._sources)
        return parts[0]._replace(
            items=_side_by_side([part.items for part in parts]),
            weight=np.concatenate([part.weight for part in parts]), parts=parts,
            origin=np.concatenate([part.origin if len(part.origin) else _own(part) for part in parts]),
        )

    def update(self, batch: ItemBatch, priorities: Array) -> None:
        """Set new priorities, each in its own table."""
        ends = np.cumsum([len(part.keys) for part in batch.parts])
        for source, part, own in zip(self._sources, batch.parts, np.split(priorities, ends[:-1]), strict=True):
            source.update(part, own)

    def save(self) -> dict[str, Nest]:
        """Parts that were drawn and wait for others."""
        return {"parts": [None if part is None else _plain(part) for part in self._parts]}

    def load(self, saved: Nest) -> None:
        parts = saved.get("parts", self._parts)  # a checkpoint may be of a run without data
        self._parts = [None if part is None else _batch(part) for part in parts]

    def large_bytes(self) -> int:
        """Parts are laid side by side as values."""
        return 0

    def keep_rows(self) -> None: ...

    def info(self) -> dict[str, Any]:
        return self._sources[0].info()

    def explain(self) -> str:
        return self._waits.explain()

    def fileno(self) -> int:
        return self._waits.fileno()

    def clear(self) -> None:
        self._waits.clear()

    def close(self) -> None:
        for source in self._sources:
            source.close()


def _own(part: ItemBatch) -> Array:
    return np.full(len(part.keys), OWN)


def _plain(part: ItemBatch) -> dict[str, Nest]:
    """A batch of one table as checkpoints hold it."""
    kind = "sequence" if isinstance(part.items, Sequence) else "transition"
    return {
        "kind": kind, "keys": part.keys, "items": list(part.items), "weight": part.weight, "age": part.age,
        "service": part.service,
    }


def _batch(plain: Nest) -> ItemBatch:
    items = (Sequence if plain["kind"] == "sequence" else Transition)(*plain["items"])
    return ItemBatch(plain["keys"], items, plain["weight"], plain["age"], plain["service"])


def _side_by_side(items: list[Any]) -> Any:
    """Transitions `[B, …]` after each other; of sequences `[T, B, …]` side by side, and their states `[B, …]` after."""
    if not isinstance(items[0], Sequence):
        return _joined(items, 0)
    steps = _joined([one._replace(state=()) for one in items], 1)
    return steps._replace(state=_joined([one.state for one in items], 0))


def _joined(nests: list[Nest], axis: int) -> Nest:
    return map_leaves(lambda *leaves: np.concatenate(leaves, axis), *nests)
