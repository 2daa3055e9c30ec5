"""The trials of a sweep in Optuna's SQLite study: which values come next, which trials are pruned.

A trial is `running` from the moment its values are drawn until it is told how it ended, whatever becomes of the process
in between: a sweep that goes on finds it, and finishes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pappus.errors import UserError, install_line
from pappus.sweeping.space import Parameter, Range, Value

FILE = "study.db"
NAME = "sweep"
SAMPLERS = ("tpe", "gp", "cmaes", "qmc", "random")
PRUNERS = ("median", "halving", "hyperband", "none")
STARTUP_TRIALS = 5
"""Trials that end before any is pruned."""
State = Literal["running", "complete", "pruned", "failed"]
TESTED = "default"
"""Attribute of the trial whose values are the defaults."""


@dataclass(frozen=True)
class Trial:
    """What is known of one trial."""

    number: int
    state: State
    values: Mapping[str, Value]
    """By option."""
    result: float | None
    """Of a complete one: what is minimised or maximised."""
    rungs: Mapping[int, float]
    """Return at each rung that it has passed."""
    seconds: float | None
    is_default: bool


class Study:
    """The study in a sweep's directory."""

    def __init__(
        self, directory: Path, space: Sequence[Parameter], minimises: bool, sampler: str, pruner: str, seed: int,
        rungs: int,
    ) -> None:
        optuna = imported_optuna()
        self._optuna, self._space, self._sign = optuna, space, -1 if minimises else 1
        self._study: Any = optuna.create_study(
            storage=f"sqlite:///{directory / FILE}", study_name=NAME, load_if_exists=True,
            direction="minimize" if minimises else "maximize", pruner=_pruner(optuna, pruner, rungs),
        )
        # A sampler that begins anew would repeat the values that it drew first.
        self._study.sampler = _sampler(optuna, sampler, seed + len(self._study.trials))
        self._running = {
            one.number: optuna.trial.Trial(self._study, one._trial_id)
            for one in self._study.get_trials(states=(optuna.trial.TrialState.RUNNING,))
        }

    def begin_with(self, values: Mapping[str, Value]) -> None:
        """Make this the first trial."""
        self._study.enqueue_trial(dict(values), user_attrs={TESTED: True})

    def ask(self) -> Trial:
        """A new trial."""
        trial = self._study.ask()
        self._running[trial.number] = trial
        for parameter in self._space:
            _draw(trial, parameter)
        return self.trial(trial.number)

    def report(self, number: int, rung: int, value: float) -> bool:
        """Report the return of a trial at a rung; whether to prune it."""
        trial = self._running[number]
        trial.report(self._sign * value, rung)
        return bool(trial.should_prune())

    def tell(self, number: int, state: Literal["complete", "pruned", "failed"], result: float | None = None) -> None:
        """A trial has ended."""
        states = self._optuna.trial.TrialState
        ends = {"complete": states.COMPLETE, "pruned": states.PRUNED, "failed": states.FAIL}
        self._study.tell(self._running.pop(number), result if state == "complete" else None, ends[state])

    def note(self, number: int, content: Mapping[str, Any]) -> None:
        """Keep something with a running trial."""
        for key, value in content.items():
            self._running[number].set_user_attr(key, value)

    def trial(self, number: int) -> Trial:
        return self._known(self._study.get_trials(deepcopy=False)[number])

    def trials(self) -> list[Trial]:
        """All that were begun, in their order."""
        waiting = self._optuna.trial.TrialState.WAITING
        return [self._known(one) for one in self._study.get_trials(deepcopy=False) if one.state != waiting]

    @property
    def best(self) -> Trial | None:
        """The complete trial with the best result."""
        done = [one for one in self.trials() if one.state == "complete" and one.result is not None]
        return max(done, key=lambda one: self._sign * (one.result or 0.0), default=None)

    def _known(self, one: Any) -> Trial:
        states: dict[str, State] = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed", "RUNNING": "running"}
        state = states.get(one.state.name, "running")
        return Trial(
            one.number, state, dict(one.params), one.value if state == "complete" else None,
            {rung: self._sign * value for rung, value in one.intermediate_values.items()},
            None if one.duration is None else one.duration.total_seconds(), bool(one.user_attrs.get(TESTED)),
        )


def imported_optuna() -> Any:
    """Optuna, without its lines about each trial."""
    try:
        import optuna
    except ModuleNotFoundError:
        line = install_line("sweep")
        raise UserError(f"pappus sweep needs optuna, which is not installed; run {line}") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna


def check_sampler(name: str) -> None:
    """Raise `UserError` for a sampler whose own package is missing."""
    from importlib.util import find_spec

    needed = {"gp": "scipy", "cmaes": "cmaes", "qmc": "scipy"}.get(name)
    if needed and find_spec(needed) is None:
        raise UserError(f"--sampler {name} needs {needed}, which is not installed; run pip install {needed}")


def _draw(trial: Any, parameter: Parameter) -> None:
    if not isinstance(parameter, Range):
        trial.suggest_categorical(parameter.name, parameter.labels)
    elif parameter.whole:
        trial.suggest_int(parameter.name, parameter.low, parameter.high, step=parameter.step or 1, log=parameter.log)
    else:
        trial.suggest_float(parameter.name, parameter.low, parameter.high, step=parameter.step, log=parameter.log)


def _sampler(optuna: Any, name: str, seed: int) -> Any:
    samplers = optuna.samplers
    if name == "tpe":
        return samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
    kinds = {
        "gp": samplers.GPSampler, "cmaes": samplers.CmaEsSampler, "qmc": samplers.QMCSampler,
        "random": samplers.RandomSampler,
    }
    return kinds[name](seed=seed)


def _pruner(optuna: Any, name: str, rungs: int) -> Any:
    pruners = optuna.pruners
    if name == "median":
        return pruners.MedianPruner(n_startup_trials=STARTUP_TRIALS)
    if name == "halving":
        return pruners.SuccessiveHalvingPruner()
    return pruners.HyperbandPruner(max_resource=rungs) if name == "hyperband" else pruners.NopPruner()
