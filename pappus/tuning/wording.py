"""What tuning found, in words, as a table, and as a file that `pappus train --config` takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from pappus.config import RunConfig
from pappus.settings import differences
from pappus.telemetry.learning import changed_batch, changed_lag, changed_seed, items_text
from pappus.tuning.candidates import Setting
from pappus.tuning.model import Costs, Line
from pappus.tuning.search import Trial

HEAD = "# pappus tune"
"""How a file begins that tuning wrote."""
OF_ONE_RUN = ("run_dir", "record", "init_from")
"""Where a run writes and what it begins with: the file is for others, too."""


def duration(seconds: float) -> str:
    """`3.1 µs`, `5.1 ms`, `1.2 s`."""
    for factor, unit in ((1e6, "µs"), (1e3, "ms")):
        if seconds * factor < 999.5:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"


def costs_text(costs: Costs) -> list[str]:
    """What was measured, one line each."""
    lines = [f"env step        {_line(costs.env.computing)}" + (
        f", and sleeps {_line(costs.env.asleep)}" if costs.env.waits else ""
    )]
    if costs.env_threads is not None:
        threads = costs.env_threads
        lines.append(f"  in threads    {_line(threads.computing)}, and sleeps {_line(threads.asleep)}")
    training = ", ".join(f"{duration(cost)} (updates of {n})" for n, cost in costs.training.items())
    return [
        *lines, f"acting          {_line(costs.acting)}",
        *([f"training        per env step {training}"] if any(costs.training.values()) else []),
        *([f"other roles     per env step {duration(costs.others)}"] if costs.others > 1e-9 else []),
        f"message         {duration(costs.message)}",
    ]


def _line(line: Line) -> str:
    return f"{duration(line.fixed)} + {duration(line.each)} per env"


def table(trials: Sequence[Trial], choice: Trial | None) -> list[str]:
    """Every setting that was tried, in that order."""
    width = max([len("setting"), *(len(str(trial.setting)) for trial in trials)])
    lines = [f"  {'setting':<{width}}  {'predicted':>10}  {'measured':>10}  limit, as predicted"]
    for trial in trials:
        mark = "→" if trial is choice else " "
        predicted = f"{trial.predicted.rate:,.0f}"
        lines.append(f"{mark} {trial.setting!s:<{width}}  {predicted:>10}  {_measured(trial):>10}  {_why(trial)}")
    return [*lines, "  (env steps per second, trained on)"]


def _measured(trial: Trial) -> str:
    return f"{trial.rate:,.0f}" if trial.measured and not trial.failed else "–"


def _why(trial: Trial) -> str:
    error = next((one.error for one in trial.measured if one.error), "")
    return error or trial.predicted.limit


def line_of(trial: Trial) -> str:
    """One trial, as soon as it is over."""
    again = " (again)" if len(trial.measured) > 1 else ""
    last = trial.measured[-1]
    found = last.error or f"{last.rate:,.0f} steps/s, predicted {trial.predicted.rate:,.0f}"
    return f"tried {trial.setting}{again}: {found}"


def learning(config: RunConfig, reference: RunConfig, lag: float | None) -> list[str]:
    """What the chosen settings change in learning, beside the preset as it would run here. `lag` is the mean number of
    updates between acting and learning, as measured."""
    most = config.topology.policy_lag(config)
    behind = changed_lag(config, reference) or f"at most about {most:.3g} updates, as the preset"
    measured = "" if lag is None else f"; {lag:.2g} in the mean, as measured"
    lines = [
        f"batch           {changed_batch(config, reference) or f'{items_text(config)}, as the preset'}",
        f"updates         {_updates(config, reference)}",
        f"policy lag      {behind}{measured}",
    ]
    envs, usual = (one.actors * one.envs_per_actor for one in (config, reference))
    if envs != usual:
        lines.append(f"envs            {envs} in all instead of {usual}: other episodes are under way at a time")
    if seed := changed_seed(config, reference):
        lines.append(f"one seed        {seed}")
    return lines


def _updates(config: RunConfig, reference: RunConfig) -> str:
    now, before = (getattr(getattr(one.topology, "replay", None), "samples_per_insert", None)
                   for one in (config, reference))
    if now is not None and now != before:
        return f"every item is sampled {now:g} times instead of {before:g}: fewer updates per step"
    return "as many per step as the preset" if now is not None else "as many per batch as the preset"


def settings_of(config: RunConfig, plain: RunConfig, choice: Setting) -> dict[str, Any]:
    """What a file must hold for `pappus train --config` to run `config`: its system and env, what was chosen, and what
    else differs from what its preset says."""
    other = {name.replace("-", "_"): value for name, value in differences(config, plain).items()}
    other = {name: value for name, value in other.items() if name not in OF_ONE_RUN}
    found = {"system": config.system, "env": config.env, **other, **choice.settings()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}


def file_text(settings: Mapping[str, Any], comments: Sequence[str]) -> str:
    """The file: why, then what."""
    head = "".join(f"# {line}\n" for line in comments)
    first = f"{HEAD} {settings['system']} --env {settings['env']}\n"
    return first + head + yaml.safe_dump(dict(settings), sort_keys=False)
