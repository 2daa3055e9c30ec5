"""Callbacks: code of yours that sees a run while it goes on, may stop it, and may add metrics of its own.

    class Plateau(pappus.Callback):
        def on_evaluation(self, run, evaluation):
            if evaluation.episodic_return > 400:
                run.stop("good enough")

    pappus.train("ppo", env="CartPole-v1", callbacks=[Plateau()])       # or --callback my_module:Plateau
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from pappus.config import RunConfig
from pappus.telemetry.run_log import Summary


class Episode(NamedTuple):
    """A training episode that ended."""

    episodic_return: float
    """Sum of its raw rewards, never clipped."""
    length: int
    role: str
    """Who tells of it: the actor that played it, or the inference server."""


class Evaluated(NamedTuple):
    """A greedy evaluation."""

    episodic_return: float
    """Mean over its episodes."""
    deviation: float
    step: int
    """Env steps trained on when it was asked for."""


class Callback:
    """Override what you need. All are called in one thread of the callback's own, one after the other, with the events
    in their order; training does not wait for them."""

    def on_start(self, run: CurrentRun) -> None:
        """The roles of the run are being started."""

    def on_metrics(self, run: CurrentRun, metrics: Mapping[str, float]) -> None:
        """A line was written to metrics.jsonl: one per second, and one per evaluation."""

    def on_episode(self, run: CurrentRun, episode: Episode) -> None:
        """A training episode ended. Where more than a thousand end between two reports of a role (a fraction of a
        second, seconds with hundreds of actors), it is called for the newest thousand."""

    def on_evaluation(self, run: CurrentRun, evaluation: Evaluated) -> None:
        """A greedy evaluation ended."""

    def on_checkpoint(self, run: CurrentRun, path: Path) -> None:
        """A checkpoint is complete; one of the next may remove it."""

    def on_end(self, run: CurrentRun, summary: Summary) -> None:
        """The run is over, and everything is written. It is called last, whatever else was dropped."""


EVENTS = ("on_start", "on_metrics", "on_episode", "on_evaluation", "on_checkpoint", "on_end")


class Answers:
    """What callbacks and loggers say to the run; their threads write, the controller reads."""

    def __init__(self) -> None:
        self.news: deque[str] = deque(maxlen=1000)
        self.stop = ""
        """Why the run is to end; empty while it is not."""
        self.failure = ""
        """What a callback raised, where that ends the run."""
        self._metrics: dict[str, float] = {}
        self._lock = threading.Lock()

    def add(self, metrics: Mapping[str, float]) -> None:
        """Keep the newest value of each."""
        with self._lock:
            self._metrics.update(metrics)

    def metrics(self) -> dict[str, float]:
        """The newest values."""
        with self._lock:
            return dict(self._metrics)


class CurrentRun:
    """The run, as a callback sees it."""

    def __init__(self, directory: Path, config: RunConfig, answers: Answers, name: str) -> None:
        self.directory, self.config = directory, config
        self.steps = 0
        """Env steps that were trained on when the event happened."""
        self._answers, self._name = answers, name

    def stop(self, reason: str = "") -> None:
        """Save a checkpoint and end the run, as soon as the event is heard."""
        self._answers.stop = self._answers.stop or f"{self._name} stops the run" + (f": {reason}" if reason else "")

    def log(self, metrics: Mapping[str, float]) -> None:
        """Metrics of your own, written with each following line until they change. A name without a slash gets
        `callback/` in front; a value that is not finite is left out."""
        values = {str(name): float(value) for name, value in metrics.items()}
        self._answers.add({
            name if "/" in name else f"callback/{name}": value for name, value in values.items() if math.isfinite(value)
        })
