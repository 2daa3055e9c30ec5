"""Which settings to try, in what order, within a number of seconds: pure, with whatever measures given to it.

    predictions ──▶ try the most promising ──▶ how wrong was the prediction? ──▶ correct those of settings like it ─┐
                            ▲                                                                                      │
                            └──────────────────────────────────────────────────────────────────────────────────────┘

What is left of the time at the end goes to the two best, which are measured once more: the best of many noisy figures
looks better than it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log

from pappus.tuning.candidates import Setting
from pappus.tuning.model import Prediction

REACH = 3.0
"""Steps of a factor of two over which a measurement says most of what it says."""
DOUBT = 0.5
"""Weight of the prediction itself, beside that of measured settings."""
HOPELESS = 0.7
"""A setting is not tried that is expected to make so small a part of the best one's steps."""
CLOSE = 0.85
"""The best two are measured again if they are so near to each other."""
ALIKE = 0.97
"""Settings are as fast as the best one that make so large a part of its steps: noise is not less."""
NOTHING = 1e-3
"""Steps per second of a setting that made none while it was tried."""


@dataclass(frozen=True)
class Measured:
    """What a trial has shown."""

    rate: float
    """Env steps that were trained on, per second."""
    lag: float | None = None
    """Updates between acting and learning, the mean."""
    error: str = ""
    """Why it could not be measured."""
    interrupted: bool = False
    others: float = 0.0
    """Cores that were used meanwhile by what is none of the run's."""


@dataclass
class Trial:
    """A setting, what was predicted, and each time that it was measured."""

    setting: Setting
    predicted: Prediction
    measured: list[Measured] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """The mean of what it reached; 0 if it could not run."""
        return sum(one.rate for one in self.measured) / len(self.measured) if self.measured else 0.0

    @property
    def failed(self) -> bool:
        return any(one.error for one in self.measured)


class Search:
    """Tries settings until the time is over, nothing promising is left, or it is interrupted."""

    def __init__(
        self, predictions: Mapping[Setting, Prediction], measure: Callable[[Setting], Measured],
        clock: Callable[[], float], end: float, told: Callable[[Trial], None] = lambda trial: None,
        price: Callable[[Setting], float] = lambda setting: 0.0,
        takes: Callable[[Setting], float] = lambda setting: 0.0,
    ) -> None:
        """`predictions` are of all that may be chosen. `end` is when the last trial must be over, by the clock. `told`
        hears of each trial. `price` is what a setting costs in learning, by which those are told apart that are as
        fast; `takes`: the seconds that a trial of it needs at least."""
        self._price, self._takes = price, takes
        self._predictions, self._measure, self._clock, self._end, self._told = predictions, measure, clock, end, told
        self._took: dict[Setting, float] = {}
        """Seconds of the last trial of each setting."""
        self.trials: list[Trial] = []
        self.interrupted = False

    def run(self, first: Trial | None = None) -> Trial | None:
        """Try `first`, which need not be one that may be chosen, then others; the best of those that may be chosen, or
        None where none could run."""
        if first is not None and self._time_for(first.setting):
            self.trials.append(first)
            self._try(first.setting)
        while not self.interrupted and (promising := self.next()) is not None:
            if not self._time_for(promising, *self._rematches()):
                break
            self._try(promising)
        while not self.interrupted and (again := self._rematches()) and self._time_for(again[0]):
            self._try(again[0])
        return self.best

    @property
    def best(self) -> Trial | None:
        """What made the most steps so far; of those that made nearly as many, what costs least."""
        running = self._running()
        fastest = [one for one in running if one.rate >= ALIKE * running[0].rate]
        return min(fastest, key=lambda one: self._price(one.setting), default=None)

    def _running(self) -> list[Trial]:
        """What may be chosen and could run, the fastest first."""
        return [one for one in ranked(self.trials) if not one.failed and one.rate and one.setting in self._predictions]

    def next(self) -> Setting | None:
        """The untried setting of which most is expected; of equals the first. None where none is worth a trial."""
        tried = {trial.setting for trial in self.trials}
        left = [setting for setting in self._predictions if setting not in tried]
        expected = {setting: self.expected(setting) for setting in left}
        choice = max(left, key=lambda setting: expected[setting], default=None)
        best = self.best
        if choice is None or (best is not None and expected[choice] < HOPELESS * best.rate):
            return None
        return choice

    def expected(self, setting: Setting) -> float:
        """The prediction, corrected by how wrong those of settings like it were. Where all is faster than predicted, so
        may this one be; where it is slower, this one need not."""
        wrong = [log(max(trial.rate, NOTHING) / trial.predicted.rate) for trial in self.trials]
        hope = max(0.0, sum(wrong) / len(wrong)) if wrong else 0.0
        total, weights = DOUBT * hope, DOUBT
        for trial, factor in zip(self.trials, wrong, strict=True):
            weight = exp(-((trial.setting.distance(setting) / REACH) ** 2))
            total += weight * factor
            weights += weight
        return self._predictions[setting].rate * exp(total / weights)

    def _rematches(self) -> list[Setting]:
        """The two best, if they are close, as far as they were not measured twice."""
        best = self._running()[:2]
        if len(best) < 2 or best[1].rate < CLOSE * best[0].rate:
            return []
        again = [trial for trial in best if len(trial.measured) < 2]
        return [trial.setting for trial in sorted(again, key=lambda trial: len(trial.measured))]

    def _time_for(self, *settings: Setting) -> bool:
        """Whether so many trials end in time: each takes as long as before, or as others did in the mean."""
        usual = sum(self._took.values()) / len(self._took) if self._took else 0.0
        return self._clock() + sum(self._took.get(one, max(usual, self._takes(one))) for one in settings) <= self._end

    def _try(self, setting: Setting) -> None:
        trial = next((one for one in self.trials if one.setting == setting), None)
        if trial is None:
            trial = Trial(setting, self._predictions[setting])
            self.trials.append(trial)
        began = self._clock()
        found = self._measure(setting)
        self._took[setting] = self._clock() - began
        self.interrupted = found.interrupted
        if not found.interrupted:
            trial.measured.append(found)
            self._told(trial)
        elif not trial.measured:
            self.trials.remove(trial)


def ranked(trials: Sequence[Trial]) -> list[Trial]:
    """The fastest first; of equals the first that was tried."""
    return sorted(trials, key=lambda trial: -trial.rate)
