"""What a logger is: a class with three methods. It gets what metrics.jsonl gets.

    class Mine:
        def begin(self, run): ...                       # before the run: whatever it raises refuses the run
        def write(self, step, time, metrics): ...       # once per second, and for each evaluation
        def end(self, summary): ...                     # when the run is over

    pappus train ppo --env CartPole-v1 --log my_module:Mine
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pappus.telemetry.run_log import Summary


@dataclass(frozen=True)
class LoggedRun:
    """The run, as a logger sees it."""

    directory: Path
    config: dict[str, Any]
    """The resolved config: plain values, nested as in config.yaml."""
    resumed_at: int | None = None
    """The step at which a resumed run goes on; what was logged after it is lost."""

    @property
    def name(self) -> str:
        return self.directory.name


class Logger(Protocol):
    """Takes a run's metrics somewhere. `begin` is called before the run, the others in a thread beside it."""

    def begin(self, run: LoggedRun) -> None:
        """Prepare; what it raises refuses the run."""

    def write(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        """The metrics at a step; `time` is in seconds since 1970."""

    def end(self, summary: Summary) -> None:
        """The run is over."""
