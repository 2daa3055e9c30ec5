"""Keeps what a diagnosis needs beside the roles: the usual config, the machine, and the last word on a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property

from pappus.config import RunConfig
from pappus.telemetry.case import Case
from pappus.telemetry.diagnosis import diagnose
from pappus.telemetry.findings import Diagnosis
from pappus.telemetry.machine_facts import MachineWatch
from pappus.telemetry.nvml import Gpus, find_gpus
from pappus.telemetry.role_view import RoleView
from pappus.telemetry.usage import Children
from pappus.telemetry.window import Totals


class OwnGpu:
    """The GPU on which a run's learner computes; looked for when it is asked for first."""

    def __init__(self, device: str) -> None:
        self._device = device

    @cached_property
    def _gpus(self) -> Gpus | None:
        name, _, number = self._device.partition(":")
        return find_gpus([int(number or 0)]) if name == "cuda" else None

    def busy(self) -> float | None:
        """Share of time in which it computes; None where there is none, or the driver does not say."""
        return None if self._gpus is None else self._gpus.busy()


def own_seconds(config: RunConfig) -> Callable[[], float]:
    """Says the CPU seconds of the run beside its roles: of this process, which is all there is of an inline run but
    for the processes that its envs have started."""
    if not config.inline:
        return time.process_time
    children = Children()
    return lambda: time.process_time() + children.cpu_seconds()


class Doctor:
    """One run's."""

    def __init__(
        self, config: RunConfig, usual: RunConfig | None, machine: MachineWatch, one_by_one: bool = False
    ) -> None:
        """`usual` is the config that the preset alone would give; `one_by_one` says that threads can step the envs."""
        self._config, self._usual, self._machine, self._one_by_one = config, usual, machine, one_by_one
        self.final: Diagnosis | None = None
        """Of the whole run, once its training is over: what comes then is evaluation."""

    def begin(self) -> None:
        """Training begins: what the machine did before does not count."""
        self._machine.begin()

    def diagnosis(
        self, views: Sequence[RoleView], training: Sequence[Totals], whole_run: bool, updates_made: float
    ) -> Diagnosis:
        """What is the matter, by what every role did, and by the totals of those that train, which have made so many
        updates since they began."""
        used = sum(view.cpu or 0.0 for view in views)
        own = 0.0 if self._config.inline else used  # in `own_seconds`
        steps, updates = (sum(totals.rate(name) for totals in training) for name in ("env_steps", "updates"))
        machine = replace(self._machine.facts(own, whole_run), used=used)
        if self._config.runtime == "ray" and self._config.cluster.address:  # this is one machine of several
            machine = replace(machine, cores=max(machine.cores, float(len(views))), others=None, gpu_busy=None)
        return diagnose(Case(
            tuple(views), self._config, machine, self._usual, steps, updates, self._one_by_one,
            too_short=bool(training) and updates_made < 2,
        ))
