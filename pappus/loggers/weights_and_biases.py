"""`--log wandb`: Weights & Biases. Project and account are those of its environment variables and `wandb login`;
`WANDB_MODE=offline` needs neither a network nor an account."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pappus.hooks.logger import LoggedRun
from pappus.loggers.remembered import keep_id, known_id, project_of
from pappus.telemetry.run_log import Summary

STEP = "env_step"
"""Metrics are drawn over it. The step of W&B itself may not go back, and a run whose learner was restarted does."""


class WandbLogger:
    """One W&B run per run; a resumed one goes on in it."""

    def begin(self, run: LoggedRun) -> None:
        import wandb

        known = known_id(run.directory, "wandb")
        self._run: Any = wandb.init(
            project=project_of("WANDB_PROJECT"), dir=str(run.directory), id=known or None, name=run.name,
            config=run.config, resume="allow" if known else None,
        )
        keep_id(run.directory, "wandb", self._run.id)
        self._run.define_metric(STEP, hidden=True)
        self._run.define_metric("*", step_metric=STEP)

    def write(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        self._run.log({STEP: step, **metrics})

    def end(self, summary: Summary) -> None:
        self._run.summary.update(summary.to_dict())
        self._run.finish(exit_code=1 if summary.exit_reason == "failed" else 0)
