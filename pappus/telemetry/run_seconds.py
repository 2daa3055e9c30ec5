"""How long a run takes, over all its parts: since its command, since training began, since its first env step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class RunSeconds:
    """Training begins with the first update. All but the time since the command stop when training ends."""

    def __init__(self, clock: Callable[[], float], began: float | None = None) -> None:
        """`began`: when the command did."""
        self._clock = clock
        self._trained = clock()
        self._began = self._trained if began is None else began
        self._first_step: float | None = None
        self._ended: float | None = None
        self._before = {"wall_seconds": 0.0, "train_seconds": 0.0, "env_seconds": 0.0}

    def resume(self, metadata: Mapping[str, Any]) -> None:
        """Count on from a checkpoint."""
        known = {"env_seconds": metadata["train_seconds"], **metadata}  # checkpoints from before they were counted
        self._before = {name: known[name] for name in self._before}

    def started(self) -> None:
        """Roles begin to work."""
        self._trained = self._clock()

    def updated_first(self, took: float) -> None:
        """The first update of this part is over, after so many seconds of work; it may be told of after the end."""
        self._trained = self._end - took

    def stepped(self) -> None:
        """Envs were stepped, perhaps for the first time."""
        if self._first_step is None:
            self._first_step = self._clock()

    def ended(self) -> None:
        """Training is over."""
        self._ended = self._clock()

    def go_on(self) -> None:
        """It is not over, after all."""
        self._ended = None

    @property
    def has_stepped(self) -> bool:
        """Whether envs were stepped in this part of the run."""
        return self._first_step is not None

    @property
    def of_envs(self) -> float:
        """As `--seconds` counts: each part of a run from its own first step to its end."""
        here = 0.0 if self._first_step is None else self._end - self._first_step
        return self._before["env_seconds"] + here

    @property
    def of_training_here(self) -> float:
        """Of this part alone."""
        return self._end - self._trained

    def to_dict(self) -> dict[str, float]:
        """All three, of all parts of the run."""
        return {
            "wall_seconds": self._before["wall_seconds"] + self._clock() - self._began,
            "train_seconds": self._before["train_seconds"] + self.of_training_here,
            "env_seconds": self.of_envs,
        }

    @property
    def _end(self) -> float:
        return self._clock() if self._ended is None else self._ended
