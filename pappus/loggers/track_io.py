"""`--log trackio`: trackio, whose data stays on this machine; `trackio show --project pappus` opens its page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pappus.hooks.logger import LoggedRun
from pappus.loggers.remembered import flat, project_of
from pappus.telemetry.run_log import Summary


class TrackioLogger:
    """One trackio run per run; a resumed one goes on in it."""

    def begin(self, run: LoggedRun) -> None:
        import trackio

        self._run: Any = trackio.init(
            project=project_of("TRACKIO_PROJECT"), name=run.name, config=flat(run.config),
            resume="never" if run.resumed_at is None else "allow",
        )

    def write(self, step: int, time: float, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def end(self, summary: Summary) -> None:
        self._run.finish()
