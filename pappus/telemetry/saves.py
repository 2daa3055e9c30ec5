"""Where and when a run's checkpoints are written, also when they cannot be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pappus.telemetry.checkpoint import CheckpointStore, run_directory

FIRST_RETRY, LONGEST_RETRY = 60.0, 900.0
"""Seconds from a failed checkpoint to the next attempt: the time between checkpoints if that is shorter, twice as much
after each further failure, up to the longest (or the time between checkpoints if that is longer still)."""


class Saves:
    """Checkpoints go to the first store, the run's own. While it fails they go to the second, if there is one, and the
    first is tried again with back-off."""

    def __init__(self, stores: Sequence[CheckpointStore], every: float, clock: Callable[[], float]) -> None:
        """`every`: seconds between checkpoints."""
        self._stores, self._every, self._clock = stores, every, clock
        self._store = stores[0]
        self._began = clock()
        self._temporary: Path | None = None
        self._failures = 0
        self._retry_at = 0.0

    def restart(self) -> None:
        """The time to the first checkpoint begins now."""
        self._began = self._clock()

    def due(self) -> bool:
        if self._failures and len(self._stores) == 1:
            return self._clock() >= self._retry_at
        return self._clock() - self._began >= self._every

    def begin(self, step: int, patient: bool = True) -> Path:
        """A directory to write the state into; `StorageError` if there can be none. Not `patient`: the run's own store
        is tried though the time for that has not come."""
        self._began = self._clock()
        away = patient and self._failures and self._clock() < self._retry_at
        self._store, self._temporary = self._stores[-1] if away else self._stores[0], None
        self._temporary = self._store.begin(step)
        return self._temporary

    def commit(self, metadata: dict[str, Any]) -> Path:
        """Make a checkpoint of what was written; `StorageError` if that fails."""
        assert self._temporary is not None
        path = self._store.commit(self._temporary, metadata)
        self._temporary = None
        if self._store is self._stores[0]:
            self._failures = 0
        return path

    def give_up(self) -> str:
        """The checkpoint that was begun cannot be written. Where to try it instead, empty if nowhere."""
        if self._temporary is not None:
            self._store.discard(self._temporary)
            self._temporary = None
        if self._store is not self._stores[0]:
            return ""
        first = min(FIRST_RETRY, self._every)
        self._retry_at = self._clock() + min(first * 2.0**self._failures, max(LONGEST_RETRY, self._every))
        self._failures += 1
        return str(self._stores[1].directory.parent) if len(self._stores) > 1 else ""

    def wait(self) -> float:
        """Seconds until the run's own store is tried again."""
        return max(0.0, self._retry_at - self._clock())

    def mark_best(self, path: Path) -> None:
        """Name the best checkpoint of the store that it is in; `StorageError` if the name cannot be written."""
        store = next(store for store in self._stores if store.directory.parent == run_directory(path))
        store.mark_best(path)

    @property
    def away(self) -> bool:
        """Whether the last checkpoint went elsewhere."""
        return self._store is not self._stores[0]
