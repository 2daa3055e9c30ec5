"""A few seconds of a real run, after its start: what it makes per second, and what its roles do meanwhile."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from pappus.api import execute
from pappus.beginnings import EnvLike
from pappus.config import CostConfig, PageConfig, RunConfig
from pappus.errors import PappusError
from pappus.hooks.callback import Callback, CurrentRun
from pappus.settings import override
from pappus.system import System

ENDLESS = 10**15
OWN = "cost/cpu_seconds"
"""The metric that says what the run has computed."""
FIRST_ITEMS = 500
"""Items in a replay table before the first update: the start is no part of what is measured."""
PATIENCE, PATIENCE_ON_GPU = 8.0, 30.0
"""Seconds until a run must have made its first update: a GPU's first one comes late."""


@dataclass(frozen=True)
class Window:
    """What was seen of a run. Without a first update within the patience, `rate` is 0."""

    rate: float
    """Env steps that were trained on, per second."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Those of metrics.jsonl at its end, which cover the last seconds."""
    interrupted: bool = False
    others: float = 0.0
    """Cores that were used meanwhile by processes that are none of the run's."""


class Watcher(Callback):
    """Ends a run that has been seen for long enough, and any run at `end`, by the clock."""

    def __init__(
        self, seconds: float, patience: float, clock: Callable[[], float] = time.monotonic, end: float = math.inf
    ) -> None:
        self._seconds, self._clock, self._end = seconds, clock, end
        self._until = min(clock() + patience, end)
        self.points: list[tuple[float, int]] = []
        """Times, and steps until then, of every line from the first update on."""
        self.metrics: Mapping[str, float] = {}
        self._begun: tuple[float, float, float] | None = None
        self.others = 0.0

    def on_metrics(self, run: CurrentRun, metrics: Mapping[str, float]) -> None:
        now = self._clock()
        if run.steps:
            self.points.append((now, run.steps))
            self.metrics = dict(metrics)
            self._look_at_others(now, metrics[OWN])
            if now - self.points[0][0] >= self._seconds or now >= self._end:
                run.stop("it has been seen for long enough")
        elif now >= self._until:
            run.stop("it has made no update")

    def _look_at_others(self, now: float, own: float) -> None:
        machine = machine_seconds()
        if self._begun is None:
            self._begun = now, own, machine
            return
        began, own_then, machine_then = self._begun
        self.others = max(0.0, machine - machine_then - (own - own_then)) / max(now - began, 1e-9)


def machine_seconds() -> float:
    """CPU seconds of everything that runs on this machine, and of what else has its cores; 0 where nobody says."""
    try:
        with open("/proc/stat", encoding="ascii") as file:
            user, nice, system, _, _, *rest = (int(word) for word in file.readline().split()[1:9])
    except (OSError, ValueError):
        return 0.0
    return float(user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def rate_of(points: list[tuple[float, int]]) -> float:
    """Steps per second. Updates of many steps come in leaps: it counts from one leap to another. The first line is of
    the start."""
    leaps = [point for before, point in pairwise(points) if point[1] > before[1]]
    if len(leaps) < 2:
        leaps = points
    if len(leaps) < 2:
        return 0.0
    (began, first), (ended, last) = leaps[0], leaps[-1]
    return (last - first) / (ended - began)


def watch(
    config: RunConfig, env: EnvLike, system: System, seconds: float, making: float = 0.0, end: float = math.inf
) -> Window:
    """Run it for so long after its first update, in a folder that is removed. It says nothing, and Ctrl-C ends it.
    `making`: seconds until its envs are made. At `end`, by `time.monotonic`, it stops in any case."""
    folder = Path(tempfile.mkdtemp(prefix="pappus-tune-"))
    watcher = Watcher(seconds, making + (PATIENCE if config.device == "cpu" else PATIENCE_ON_GPU), end=end)
    try:
        with silence():
            result = execute(_short(config, folder / "run"), env, system=system, callbacks=[watcher])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    interrupted = result.summary.exit_reason == "interrupted"
    return Window(rate_of(watcher.points), watcher.metrics, interrupted, watcher.others)


def _short(config: RunConfig, directory: Path) -> RunConfig:
    """The same run without what happens once or now and then: evaluations, checkpoints, records, limits, a page."""
    config = dataclasses.replace(
        config, run_dir=str(directory), steps=ENDLESS, seconds=None, target_return=None, record="", trace=False,
        init_from="", page=False, page_server=PageConfig(), cost=CostConfig(),
    )
    config = override(config, {
        "evaluation": {"episodes": 1, "every_steps": 0, "at_steps": (), "every_seconds": 0.0},
        "checkpoint.every_seconds": 1e9, "hooks": {"callbacks": (), "loggers": ("none",)}, "storage.fallback_dir": "",
    })
    replay: Any = getattr(config.topology, "replay", None)
    if replay is None:
        return config
    first = min(replay.warm_up, max(FIRST_ITEMS, config.batch_size))
    return override(config, {"topology.replay.warm_up": first})


@contextlib.contextmanager
def silence() -> Any:
    """Nothing is written to standard output."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def sentence(error: PappusError) -> str:
    """The first line of an error."""
    return str(error).partition("\n")[0]
