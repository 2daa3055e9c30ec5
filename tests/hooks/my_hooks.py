"""Callbacks and loggers as users write them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import gymnasium as gym
import numpy as np

import pappus
from pappus.hooks.callback import CurrentRun, Episode, Evaluated
from pappus.hooks.logger import LoggedRun
from pappus.telemetry.run_log import Summary


class Notes(pappus.Callback):
    """Notes all that it hears, and logs a metric of its own."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.episodes = 0
        self.metrics: list[Mapping[str, float]] = []

    def on_start(self, run: CurrentRun) -> None:
        self.events.append(f"start {run.config.env}")
        run.log({"half": 0.5, "mine/third": 1 / 3, "never": float("nan")})

    def on_metrics(self, run: CurrentRun, metrics: Mapping[str, float]) -> None:
        self.metrics.append(metrics)

    def on_episode(self, run: CurrentRun, episode: Episode) -> None:
        assert episode.episodic_return == episode.length > 0 and episode.role.startswith("actor")
        self.episodes += 1

    def on_evaluation(self, run: CurrentRun, evaluation: Evaluated) -> None:
        self.events.append(f"evaluation {evaluation.step == run.steps}")

    def on_checkpoint(self, run: CurrentRun, path: Path) -> None:
        self.events.append(f"checkpoint {(path / 'manifest.json').is_file() or path.is_dir()}")

    def on_end(self, run: CurrentRun, summary: Summary) -> None:
        self.events.append(f"end {summary.exit_reason} {(run.directory / 'summary.json').is_file()}")


class Stops(pappus.Callback):
    """Ends the run with its first episode."""

    def on_episode(self, run: CurrentRun, episode: Episode) -> None:
        run.stop("enough")


class Raises(pappus.Callback):
    """Raises."""

    def on_checkpoint(self, run: CurrentRun, path: Path) -> None:
        raise ValueError("boom")


class Misspelt:
    """Has a method that is never called."""

    def on_episodes(self) -> None: ...


class Lines:
    """A logger."""

    seen: ClassVar[list[object]] = []

    def begin(self, run: LoggedRun) -> None:
        self.seen[:] = [run.config["env"]]

    def write(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        self.seen.append((step, time, dict(metrics)))

    def end(self, summary: Summary) -> None:
        self.seen.append(summary.exit_reason)


class Refuses(Lines):
    """Cannot begin."""

    def begin(self, run: LoggedRun) -> None:
        raise RuntimeError("no account")


class Half:
    """Has not all methods."""

    def begin(self, run: LoggedRun) -> None: ...


class Measuring(gym.Env[np.ndarray, int]):
    """Episodes of ten steps, which end with metrics."""

    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        ended = self.steps == 10
        metrics = {"metrics": {"success": 0.75, "word": "no number"}} if ended else {}
        return np.zeros(1, np.float32), 1.0, ended, False, {"flag": self.steps % 2 == 0, **metrics}
