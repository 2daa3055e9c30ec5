"""Hand-made batches for learners that learn from replay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pappus.experience import ItemBatch, Transition
from pappus.types import ArraySpec, DiscreteAction, EnvSpec

B = 4
ENV = EnvSpec(ArraySpec((3,), "float32"), DiscreteAction(2))


class FakeSource:
    """Batches that the test puts in, and the priorities that came back."""

    name = "replay"

    def __init__(self) -> None:
        self.batches: list[ItemBatch] = []
        self.updates: list[tuple[Any, Any]] = []
        self.closed = False
        self.before_take: Callable[[], object] = lambda: None

    def take(self) -> ItemBatch | None:
        self.before_take()
        return self.batches.pop(0) if self.batches else None

    def update(self, batch: Any, priorities: Any) -> None:
        self.updates.append((batch.keys, priorities))

    def large_bytes(self) -> int:
        return 0

    def keep_rows(self) -> None: ...

    def info(self) -> dict[str, Any]:
        return {"size": 7, "mass": 1.0}

    def save(self) -> dict[str, Any]:
        return {}

    def load(self, saved: Any) -> None: ...

    def close(self) -> None:
        self.closed = True


def random_batch(random: np.random.Generator) -> ItemBatch:
    """Transitions of `ENV`."""
    draw = random.normal
    items = Transition(
        draw(size=(B, 3)).astype(np.float32), np.arange(B) % 2, draw(size=B).astype(np.float32),
        np.full(B, 0.9, np.float32), draw(size=(B, 3)).astype(np.float32),
    )
    return ItemBatch(np.arange(10, 10 + B), items, np.linspace(0.1, 1, B, dtype=np.float32), 5.0)
