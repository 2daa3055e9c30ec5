"""The request of a sweep, kept in its directory so that it can be resumed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pappus.errors import UserError
from pappus.sweeping.objective import Objective
from pappus.sweeping.space import Choice, Parameter, Range, Value
from pappus.sweeping.study import PRUNERS, SAMPLERS
from pappus.telemetry.files import write_json
from pappus.trust import Asked

FILE = "sweep.json"


@dataclass(frozen=True)
class Plan:
    """A sweep, apart from its trials."""

    system: str
    env: str
    words: tuple[str, ...]
    """Of every run's command line, from the system on, but for its values and its seed."""
    space: tuple[Parameter, ...]
    defaults: Mapping[str, Value]
    """The values that the options of the space have without it, where the space has them."""
    objective: Objective
    trials: int
    jobs: int
    seeds: tuple[int, ...]
    """Of every trial."""
    held_out: tuple[int, ...]
    """Held-out seeds, on which the best trial is evaluated."""
    sampler: str = "tpe"
    pruner: str = "median"
    seed: int = 1
    """Of the sampler."""

    @property
    def asked(self) -> Asked:
        """The commands that it runs."""
        space = [dataclasses.asdict(parameter) for parameter in self.space]
        return Asked("its runs", [list(self.words), space], "runs commands")

    def command(self, values: Mapping[str, Value], seed: int) -> tuple[str, ...]:
        """The words of one run."""
        named = {parameter.name: parameter for parameter in self.space}
        options = [word for name, value in values.items() for word in named[name].words(value)]
        return (*self.words, *options, "--seed", str(seed))

    def save(self, directory: Path) -> None:
        write_json(directory / FILE, dataclasses.asdict(self))


def saved_plan(directory: Path) -> Plan:
    """The plan of a sweep's directory."""
    path = directory / FILE
    if not path.is_file():
        raise UserError(f"{str(directory)!r} is no sweep: it has no {FILE}")
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        space = tuple(_parameter(one) for one in content["space"])
        plan = Plan(**{
            **content, "space": space, "objective": Objective(**content["objective"]),
            **{name: tuple(content[name]) for name in ("words", "seeds", "held_out")},
        })
        _check(plan)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(f"{str(path)!r} cannot be read ({error!r:.100}); start anew in another folder") from None
    return plan


def _parameter(content: Mapping[str, Any]) -> Parameter:
    if "values" in content:
        values = tuple(tuple(map(str, one)) for one in content["values"])
        return Choice(str(content["name"]), values, tuple(content["written"]))
    return Range(**content)


def _check(plan: Plan) -> None:
    numbers: Sequence[Any] = (plan.trials, plan.jobs, plan.objective.budget, plan.objective.rungs)
    texts: Sequence[Any] = (plan.system, plan.env, *plan.words, *(one.name for one in plan.space))
    if not all(isinstance(one, int) and one > 0 for one in numbers) or not all(isinstance(one, str) for one in texts):
        raise ValueError("it holds no sweep")
    if plan.sampler not in SAMPLERS or plan.pruner not in PRUNERS:
        raise ValueError("no such sampler or pruner")
    if not all(isinstance(one, int) and one >= 0 for one in (*plan.seeds, *plan.held_out)):
        raise ValueError("seeds are whole numbers")
