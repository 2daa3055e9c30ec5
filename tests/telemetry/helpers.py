"""Hand-made time and reports."""

from __future__ import annotations

from typing import Any

from pappus.config import AlgorithmConfig, RunConfig
from pappus.kinds import (
    ACTOR,
    BUNDLE,
    EVALUATOR,
    INFERENCE,
    LEARNER,
    MASTER,
    PARAMETER_SERVER,
    REPLAY,
    WORKER,
)
from pappus.telemetry.metrics import Report
from pappus.telemetry.run_stats import RunStats

STANDARD = (ACTOR, BUNDLE, WORKER, INFERENCE, REPLAY, LEARNER, PARAMETER_SERVER, MASTER, EVALUATOR)
KINDS = {kind.role_name(index): kind for kind in STANDARD for index in (None, *range(4))}
"""Of every role that a test may name."""


class FakeTime:
    """A clock that moves when it is told to."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def pass_(self, seconds: float) -> None:
        self.now += seconds


def config(**settings: Any) -> RunConfig:
    settings = {"system": "impala", "env": "CartPole-v1", "steps": 1000, "run_dir": "runs/demo"} | settings
    return RunConfig(AlgorithmConfig(), **settings)


def run_stats(clock: FakeTime, cores: int = 64, **settings: Any) -> RunStats:
    return RunStats(config(**settings), KINDS, clock=clock, wall_time=lambda: 1e9, cores=cores)


def report(role: str, busy: float = 0.5, waiting: dict[str, float] | None = None, **content: Any) -> Report:
    empty: dict[str, Any] = {
        "role": role, "time": 1e9, "counts": {}, "means": {}, "maxima": {}, "gauges": {}, "episodes": [], "events": [],
        "start": None, "usage": {}, "durations": {}, "lags": {}, "brief": False,
    }
    return Report(**(empty | content), busy=busy, waiting=waiting or {})  # type: ignore[typeddict-item]
