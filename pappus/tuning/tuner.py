"""Measure costs, predict, try, choose: one system on one env on this machine."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pappus.api import describe
from pappus.config import RunConfig
from pappus.envs.external import has_no_env
from pappus.envs.gym_backend import is_one_by_one
from pappus.errors import PappusError, UserError
from pappus.machine import fit
from pappus.runtimes.inline import ROUNDS_PER_REPORT
from pappus.settings import override
from pappus.system import System
from pappus.telemetry.processes import usable_cores
from pappus.tuning.allowed import Allowed
from pappus.tuning.candidates import Setting, Space, setting_of, shape_of, with_defaults
from pappus.tuning.measuring import LEAST_MADE, LEAST_SECONDS, measure
from pappus.tuning.model import Costs, Prediction, predict
from pappus.tuning.search import Measured, Search, Trial
from pappus.tuning.window import FIRST_ITEMS, PATIENCE, sentence, watch
from pappus.tuning.wording import costs_text, line_of
from pappus.validation import validate

WINDOWS = 24
"""A trial watches for so small a part of all the time."""
SHORTEST, LONGEST = 1.5, 4.0
"""Seconds for which a trial watches."""
LONGEST_SILENCE = 5.0
"""Seconds after which one thread must have heard that a trial is over."""
LONGEST_MAKING = 0.1
"""The part of all the time that making the envs of one trial may take."""
TRIAL_START = 1.0
"""Seconds until a trial's first update at least, beside those in which envs are made."""
MARGIN = 1.2
"""With more time there are more envs to make."""
STOP_SECONDS = 1.0
"""A trial is asked to stop so long before the time is over."""
END_SECONDS = 0.5
"""For what comes after the last trial."""


@dataclass
class Found:
    """What tuning has found so far."""

    reference: RunConfig
    """What learning is compared with."""
    start: RunConfig
    """What would run without tuning."""
    asked: RunConfig
    """What learning is compared with, before it was fitted to this machine."""
    costs: Costs | None = None
    trials: list[Trial] = field(default_factory=list)
    first: Trial | None = None
    choice: Trial | None = None
    interrupted: bool = False

    @property
    def others(self) -> float:
        """Cores that others used while it was tried, in the mean."""
        seen = [one.others for trial in self.trials for one in trial.measured if not one.error]
        return sum(seen) / len(seen) if seen else 0.0

    @property
    def gain(self) -> float | None:
        """By how much the choice is faster than the start; None where one of the two is unknown."""
        rates = [one.rate or one.predicted.rate for one in (self.choice, self.first) if one is not None]
        return rates[0] / rates[1] if len(rates) == 2 and rates[1] else None


class Tuner:
    """`config` is where it starts, `plain` that without what a file says. What is `fixed` stays."""

    def __init__(
        self, system: System, config: RunConfig, plain: RunConfig, fixed: Collection[str],
        allowed: Sequence[Allowed], seconds: float, began: float, told: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`began` is when the time began, by `time.monotonic`; `told` gets a line for each thing that happens."""
        self._system, self._allowed, self._fixed, self._told = system, allowed, fixed, told
        self._seconds, self._end = seconds, began + seconds - END_SECONDS
        self._window = min(LONGEST, max(SHORTEST, seconds / WINDOWS))
        self._config = config
        if config.topology.uses_data == "only" or has_no_env(config.env) or config.actors == 0:
            raise UserError(f"{system.name} steps no envs here; pappus tune is for systems that do")
        start = fit(config, config.env, system)[0]
        asked = with_defaults(config, plain, fixed)
        reference = start if asked == config else fit(asked, config.env, system)[0]
        validate(start)
        self.found = Found(reference, start, asked)

    def run(self) -> Found:
        """Until the time is over, or Ctrl-C; then `found` is what is known by then."""
        found = self.found
        try:
            self._check_time(LEAST_SECONDS + LEAST_MADE * self._seconds_of_making() + TRIAL_START + self._window)
            self._measure()
            self._search()
        except KeyboardInterrupt:
            found.interrupted = True
        return found

    def _measure(self) -> None:
        found, env = self.found, self._config.env
        items = sorted({*self._space(False).items(), found.start.topology.items_per_update(found.start)})
        items.sort(key=lambda count: count != found.reference.topology.items_per_update(found.reference))
        reference = self._as_in_processes(found.reference)
        found.costs = measure(reference, env, self._system, items, self.one_by_one, self._seconds)
        for line in costs_text(found.costs):
            self._told(line)

    @cached_property
    def _precision(self) -> str:
        """In which processes compute: each trial would measure it anew."""
        beside = dataclasses.replace(self.found.reference, runtime="local")
        return describe(beside, self._config.env, self._system).config.precision

    def _as_in_processes(self, config: RunConfig) -> RunConfig:
        return override(config, {"precision": self._precision})

    @cached_property
    def one_by_one(self) -> bool:
        """Whether threads can step its envs."""
        return is_one_by_one(self._config.env, self._config.env_options)

    def _space(self, waits: bool) -> Space:
        replays = self._system.algorithm.learns_from_replay
        return Space(
            self.found.reference, self._cores, replays, waits, self.one_by_one, self._fixed, self._allowed
        )

    @property
    def _cores(self) -> int:
        return usable_cores() if self.found.costs is None else self.found.costs.cores

    def _search(self) -> None:
        found = self.found
        assert found.costs is not None
        settings = self._space(found.costs.env.waits).settings()
        predictions = {one: self._predicted(one, one.applied(found.reference)) for one in settings}
        seen = {one: rate for one, rate in predictions.items() if self._can_be_seen(one, rate)}
        start = setting_of(found.start, self._system.algorithm.learns_from_replay)
        found.first = Trial(start, self._predicted(start, found.start))
        if not seen:
            self._told("a first update comes too late for a trial; the choice is what is predicted to be fastest")
            fastest = max(predictions, key=lambda one: predictions[one].rate, default=start)
            found.choice = Trial(fastest, predictions.get(fastest, found.first.predicted))
            return
        self._check_time(min(map(self._takes, seen)))
        seen = {one: rate for one, rate in seen.items() if time.monotonic() + self._takes(one) <= self._end}
        self._told(f"{len(seen)} settings would learn alike; trying the best of them, {self._window:.1f} s each")
        search = Search(
            seen, self._try, time.monotonic, self._end, lambda trial: self._told(line_of(trial)), self._price,
            self._takes,
        )
        found.trials = search.trials
        try:
            if self._can_be_seen(start, found.first.predicted):
                search.run(found.first)
            else:
                self._told(f"{start}: predicted {found.first.predicted.rate:,.0f} steps/s, too slow to try")
                search.run()
        finally:
            found.choice, found.interrupted = search.best, search.interrupted

    def _predicted(self, setting: Setting, config: RunConfig) -> Prediction:
        assert self.found.costs is not None
        return predict(self.found.costs, shape_of(setting, config))

    def _check_time(self, needed: float) -> None:
        """Raise `UserError` if so many seconds are not left."""
        over = time.monotonic() + needed - self._end
        if over > 0:
            enough = math.ceil((MARGIN * (self._seconds + over) + self._window) / 5) * 5
            raise UserError(
                f"{self._seconds:g} s leave no time for a trial, as what comes before takes long here; give "
                f"pappus tune --seconds {enough} or more"
            )

    def _seconds_of_making(self) -> float:
        """Seconds in which an env is made, if anything must be made to know whether threads can step it."""
        began = time.monotonic()
        _ = self.one_by_one
        return time.monotonic() - began

    def _making(self, setting: Setting) -> float:
        """Seconds until the envs of a trial are made: actors make theirs at the same time, unless one thread does."""
        assert self.found.costs is not None
        one_after_another = setting.envs * (setting.actors if setting.runtime == "inline" else 1)
        return self.found.costs.env.making * one_after_another

    def _takes(self, setting: Setting) -> float:
        return self._making(setting) + TRIAL_START + self._window

    def _price(self, setting: Setting) -> float:
        config = setting.applied(self.found.reference)
        return config.topology.policy_lag(config)

    def _can_be_seen(self, setting: Setting, prediction: Prediction) -> bool:
        """Whether a trial sees an update soon, and whoever drives one thread hears soon enough that it is to end."""
        reference, replays = self.found.reference, self._system.algorithm.learns_from_replay
        assert self.found.costs is not None
        env = self.found.costs.env_threads if setting.threads else self.found.costs.env
        turn = setting.actors * (env or self.found.costs.env).seconds(setting.envs)
        if setting.runtime == "inline" and ROUNDS_PER_REPORT * turn > LONGEST_SILENCE:
            return False
        if self._making(setting) > max(PATIENCE / 2, LONGEST_MAKING * self._seconds):
            return False
        items = setting.batch_size * setting.learners or reference.topology.items_per_update(reference)
        steps = FIRST_ITEMS if replays else items * reference.unroll_length
        return steps / prediction.rate < (PATIENCE / 2 if replays else self._window)

    def _try(self, setting: Setting) -> Measured:
        found = self.found
        config = found.start if found.first is not None and setting == found.first.setting else None
        config = config or setting.applied(found.reference)
        config = config if config.inline else self._as_in_processes(config)
        try:
            window = watch(
                config, self._config.env, self._system, self._window, self._making(setting), self._end - STOP_SECONDS
            )
        except UserError as error:
            return Measured(0.0, error=sentence(error))
        except PappusError as error:
            return Measured(0.0, error=f"it failed: {sentence(error)}")
        if not window.rate and not window.interrupted and time.monotonic() >= self._end - STOP_SECONDS:
            return Measured(0.0, error="the time was over before it was seen")
        lag = window.metrics.get("learner/policy_lag")
        return Measured(window.rate, lag, interrupted=window.interrupted, others=window.others)


def found_json(found: Found) -> dict[str, Any]:
    """All of it as plain data."""
    def trial(one: Trial) -> dict[str, Any]:
        return {
            "setting": dataclasses.asdict(one.setting), "predicted": one.predicted.rate, "limit": one.predicted.limit,
            "measured": [seen.rate for seen in one.measured],
            "errors": [seen.error for seen in one.measured if seen.error],
            "policy_lag": [seen.lag for seen in one.measured],
        }

    costs = None if found.costs is None else dataclasses.asdict(found.costs)
    return {
        "costs": costs, "start": None if found.first is None else trial(found.first),
        "trials": [trial(one) for one in found.trials],
        "choice": None if found.choice is None else trial(found.choice), "gain": found.gain,
        "interrupted": found.interrupted, "cores_of_others": found.others,
    }
