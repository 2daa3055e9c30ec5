"""`--log mlflow`: MLflow, at `MLFLOW_TRACKING_URI` or where it keeps its data by itself, in the experiment that
`MLFLOW_EXPERIMENT_NAME` names (default: pappus)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pappus.hooks.logger import LoggedRun
from pappus.loggers.remembered import flat, keep_id, known_id, project_of
from pappus.telemetry.run_log import Summary

LONGEST, MOST = 500, 100
"""Characters of a parameter's value, and parameters of one request: the least that versions of MLflow take."""
MOST_METRICS = 1000
"""Of one request."""


class MlflowLogger:
    """One MLflow run per run; a resumed one goes on in it. Its client is used, not its active run, which belongs to a
    thread."""

    def begin(self, run: LoggedRun) -> None:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric, self._client = Metric, MlflowClient()
        self._id = known_id(run.directory, "mlflow")
        if self._id:
            self._client.update_run(self._id, status="RUNNING")
            return
        name = project_of("MLFLOW_EXPERIMENT_NAME")
        found = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if found is None else found.experiment_id
        self._id = self._client.create_run(experiment, run_name=run.name).info.run_id
        keep_id(run.directory, "mlflow", self._id)
        params = [Param(key, str(value)[:LONGEST]) for key, value in flat(run.config).items()]
        for i in range(0, len(params), MOST):
            self._client.log_batch(self._id, params=params[i : i + MOST])

    def write(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        moment = int(1000 * time)
        points: list[Any] = [self._metric(name, float(value), moment, step) for name, value in metrics.items()]
        for i in range(0, len(points), MOST_METRICS):
            self._client.log_batch(self._id, metrics=points[i : i + MOST_METRICS])

    def end(self, summary: Summary) -> None:
        self._client.set_tag(self._id, "exit_reason", summary.exit_reason)
        self._client.set_terminated(self._id, status="FAILED" if summary.exit_reason == "failed" else "FINISHED")
