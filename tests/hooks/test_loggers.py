"""Loggers. Those of packages that are not installed here write to doubles, whose signatures are those of wandb 0.31,
MLflow 3.17 and trackio 0.43."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pappus.hooks.logger import LoggedRun, Logger
from pappus.loggers.csv_file import CsvLogger
from pappus.loggers.ml_flow import MlflowLogger
from pappus.loggers.parquet_file import ParquetLogger
from pappus.loggers.track_io import TrackioLogger
from pappus.loggers.weights_and_biases import WandbLogger
from tests.hooks.test_beside import SUMMARY

CONFIG = {"env": "CartPole-v1", "optimizer": {"learning_rate": 1e-3}}


def log(logger: Logger, directory: Path, lines: Sequence[tuple[int, dict[str, float]]], at: int | None = None) -> None:
    """A run that writes so many lines."""
    logger.begin(LoggedRun(directory, CONFIG, at))
    for step, metrics in lines:
        logger.write(step, 1000.0 + step, metrics)
    logger.end(SUMMARY)


FIRST: list[tuple[int, dict[str, float]]] = [(1, {"a": 0.5}), (2, {"a": 1.5, "b": 2.0}), (3, {"b": 3.0})]
SECOND: list[tuple[int, dict[str, float]]] = [(3, {"c": 4.0})]


def test_csv_has_a_column_for_each_metric_and_a_resumed_run_goes_on_without_what_was_lost(tmp_path: Path) -> None:
    log(CsvLogger(), tmp_path, FIRST)
    log(CsvLogger(), tmp_path, SECOND, at=2)
    rows = list(csv.reader((tmp_path / "metrics.csv").open(newline="")))
    assert rows == [
        ["step", "time", "a", "b", "c"], ["1", "1001.0", "0.5", "", ""], ["2", "1002.0", "1.5", "2.0", ""],
        ["3", "1003.0", "", "", "4.0"],
    ]


def test_parquet_holds_the_same(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    log(ParquetLogger(), tmp_path, FIRST)
    log(ParquetLogger(), tmp_path, SECOND, at=2)
    assert parquet.read_table(tmp_path / "metrics.parquet").to_pydict() == {
        "step": [1, 2, 3], "time": [1001.0, 1002.0, 1003.0], "a": [0.5, 1.5, None], "b": [None, 2.0, None],
        "c": [None, None, 4.0],
    }


class FakeWandb(ModuleType):
    """wandb, as far as the logger uses it."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.calls: list[tuple[str, Any]] = []

    def init(
        self, entity: str | None = None, project: str | None = None, dir: str | None = None, id: str | None = None,
        name: str | None = None, notes: str | None = None, tags: Sequence[str] | None = None,
        config: dict[str, Any] | str | None = None, *, resume: bool | str | None = None,
    ) -> FakeWandb:
        self.calls.append(("init", (project, dir, id, name, config, resume)))
        self.id, self.summary = id or "new-id", dict[str, Any]()
        return self

    def define_metric(
        self, name: str, step_metric: str | None = None, step_sync: bool | None = None, hidden: bool | None = None,
        summary: str | None = None, overwrite: bool | None = None,
    ) -> None:
        self.calls.append(("define_metric", (name, step_metric)))

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        self.calls.append(("log", data))

    def finish(self, exit_code: int | None = None) -> None:
        self.calls.append(("finish", exit_code))


def test_wandb_gets_the_config_every_line_and_the_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    log(WandbLogger(), tmp_path, FIRST[:1])
    log(WandbLogger(), tmp_path, SECOND, at=2)
    assert [name for name, _ in fake.calls] == 2 * ["init", "define_metric", "define_metric", "log", "finish"]
    assert fake.calls[0][1] == ("pappus", str(tmp_path), None, tmp_path.name, CONFIG, None)
    assert fake.calls[5][1][2::3] == ("new-id", "allow"), "a resumed run goes on where it was"
    assert fake.calls[2] == ("define_metric", ("*", "env_step"))
    assert fake.calls[3] == ("log", {"env_step": 1, "a": 0.5})
    assert fake.calls[4] == ("finish", 0) and fake.summary["exit_reason"] == "steps done"


class FakeMlflow:
    """MLflow's client."""

    calls: list[tuple[str, Any]]

    def __init__(self, tracking_uri: str | None = None, registry_uri: str | None = None) -> None: ...

    def get_experiment_by_name(self, name: str) -> None:
        self.calls.append(("get_experiment_by_name", name))

    def create_experiment(self, name: str, artifact_location: str | None = None, tags: Any = None) -> str:
        return "7"

    def create_run(
        self, experiment_id: str, start_time: int | None = None, tags: Any = None, run_name: str | None = None
    ) -> SimpleNamespace:
        self.calls.append(("create_run", (experiment_id, run_name)))
        return SimpleNamespace(info=SimpleNamespace(run_id="new-id"))

    def update_run(self, run_id: str, status: str | None = None, name: str | None = None) -> None:
        self.calls.append(("update_run", (run_id, status)))

    def log_batch(
        self, run_id: str, metrics: Sequence[Any] = (), params: Sequence[Any] = (), tags: Sequence[Any] = (),
        synchronous: bool | None = None,
    ) -> None:
        self.calls.append(("log_batch", (run_id, list(metrics), list(params))))

    def set_tag(self, run_id: str, key: str, value: Any, synchronous: bool | None = None) -> None: ...

    def set_terminated(self, run_id: str, status: str | None = None, end_time: int | None = None) -> None:
        self.calls.append(("set_terminated", (run_id, status)))


def test_mlflow_gets_params_metrics_with_steps_and_the_outcome(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entities, tracking = ModuleType("mlflow.entities"), ModuleType("mlflow.tracking")
    vars(entities).update(
        Metric=lambda key, value, timestamp, step: (key, value, timestamp, step), Param=lambda key, value: (key, value)
    )
    vars(tracking).update(MlflowClient=FakeMlflow)
    for module in (ModuleType("mlflow"), entities, tracking):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    FakeMlflow.calls = calls = []
    log(MlflowLogger(), tmp_path, FIRST[:1])
    log(MlflowLogger(), tmp_path, SECOND, at=2)
    assert calls == [
        ("get_experiment_by_name", "pappus"), ("create_run", ("7", tmp_path.name)),
        ("log_batch", ("new-id", [], [("env", "CartPole-v1"), ("optimizer.learning_rate", "0.001")])),
        ("log_batch", ("new-id", [("a", 0.5, 1_001_000, 1)], [])), ("set_terminated", ("new-id", "FINISHED")),
        ("update_run", ("new-id", "RUNNING")), ("log_batch", ("new-id", [("c", 4.0, 1_003_000, 3)], [])),
        ("set_terminated", ("new-id", "FINISHED")),
    ]
    assert json.loads((tmp_path / "loggers.json").read_text()) == {"mlflow": "new-id"}


def test_trackio_gets_the_config_and_every_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Run:
        def log(self, metrics: dict[str, float], step: int | None = None) -> None:
            calls.append((metrics, step))

        def finish(self) -> None:
            calls.append("finish")

    def init(
        project: str, name: str | None = None, group: str | None = None, *, config: dict[str, Any] | None = None,
        resume: str = "never",
    ) -> Run:
        calls.append((project, name, config, resume))
        return Run()

    module = ModuleType("trackio")
    vars(module).update(init=init)
    monkeypatch.setitem(sys.modules, "trackio", module)
    log(TrackioLogger(), tmp_path, FIRST[:1])
    log(TrackioLogger(), tmp_path, SECOND, at=2)
    flat = {"env": "CartPole-v1", "optimizer.learning_rate": 1e-3}
    assert calls == [
        ("pappus", tmp_path.name, flat, "never"), ({"a": 0.5}, 1), "finish",
        ("pappus", tmp_path.name, flat, "allow"), ({"c": 4.0}, 3), "finish",
    ]
