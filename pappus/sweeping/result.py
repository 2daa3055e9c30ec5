"""The result of a sweep on held-out seeds, and the settings file that contains it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from pappus.errors import INCOMPLETE
from pappus.evidence import Evidence, plain
from pappus.members import Member
from pappus.ops import aggregates
from pappus.ops.aggregates import improvement, improvement_interval
from pappus.population import Population
from pappus.sweeping.objective import UNSOLVED
from pappus.sweeping.plan import Plan
from pappus.sweeping.space import Value
from pappus.sweeping.study import Trial
from pappus.telemetry.files import git_hash, write_text
from pappus.telemetry.processes import usable_cores

FOLDER, PRESET = "held-out", "best.yaml"
BEST, DEFAULT = "best", "default"


@dataclass(frozen=True)
class Verdict:
    """Runs with the best trial's settings and with the defaults, on the same held-out seeds."""

    best: Evidence
    default: Evidence
    better: tuple[float, float, float]
    """Probability that a run with the settings is better than one without, and its interval."""

    @property
    def text(self) -> str:
        value, low, high = self.better
        sure = "better" if low > 0.5 else "worse" if high < 0.5 else "not shown to be better or worse"
        return (
            f"found     {self.best}\ndefaults  {self.default}\n"
            f"probability that a run with the settings found is better: {value:.2f} ({low:.2f} … {high:.2f}): {sure}"
        )


def judge(directory: Path, plan: Plan, best: Trial, trust: bool = False) -> tuple[Verdict | None, int]:
    """Run the best settings and the defaults on the held-out seeds, or what is left of that; None if that was
    interrupted or failed, and the exit code."""
    wanted: dict[str, Mapping[str, Value]] = {BEST: best.values, DEFAULT: {}}
    members = [
        Member(f"{name}-seed-{seed}", name, plan.command(values, seed))
        for seed in plan.held_out for name, values in wanted.items()
    ]
    population = Population(directory / FOLDER, members, plan.jobs, resumed=True, trust=trust)
    code = population.run()
    if code not in (0, INCOMPLETE):
        return None, code
    evidence = {
        name: _evidence(plan, [population.summary(one) for one in members if one.setting == name]) for name in wanted
    }
    return Verdict(evidence[BEST], evidence[DEFAULT], _better(plan, evidence[BEST], evidence[DEFAULT])), 0


def write_preset(directory: Path, plan: Plan, best: Trial, verdict: Verdict | None) -> Path:
    """The settings as a file that `pappus train --config` takes, with their evidence."""
    named = {parameter.name: parameter for parameter in plan.space}
    settings = {name.replace("-", "_"): named[name].plain(value) for name, value in best.values.items()}
    path = directory / PRESET
    words = " ".join(_options(plan))
    lines = [
        f"Trial {best.number} of a sweep. {plan.objective.what}, seeds {', '.join(map(str, plan.seeds))}: "
        f"{best.result:,.1f}",
        *(verdict.text.splitlines() if verdict else ["not judged on seeds that no trial had"]),
        f"pappus train {plan.system} --env {plan.env} --config {path.name}{f' {words}' if words else ''}",
    ]
    content = dict(settings)
    if verdict:
        content["evidence"] = {**plain(verdict.best), "default_values": list(verdict.default.values)}
    head = "".join(f"# {line}\n" for line in lines)
    write_text(path, head + yaml.safe_dump(content, sort_keys=False))
    return path


def _evidence(plan: Plan, summaries: Sequence[Mapping[str, Any]]) -> Evidence:
    speeds = [summary["steps_per_second"] for summary in summaries if summary.get("steps_per_second")]
    return Evidence(
        plan.system, plan.env, plan.held_out, tuple(plan.objective.value(summary) for summary in summaries),
        time.strftime("%Y-%m-%d"), (git_hash() or "unknown")[:12], plan.objective.target, tuple(_options(plan)),
        round(statistics.median(speeds)) if speeds else None, f"sweep of {plan.trials} trials",
        f"{usable_cores()} cores",
    )


def _options(plan: Plan) -> list[str]:
    """What was given on the command line, beside the system, the env and the target."""
    words, found = list(plan.words[1:]), []
    while words:
        word = words.pop(0)
        name = word.partition("=")[0]
        if name in ("--env", "--target-return"):
            if "=" not in word:
                words.pop(0)
            continue
        found.append(word)
    return found


def _better(plan: Plan, best: Evidence, default: Evidence) -> tuple[float, float, float]:
    mine, theirs = (np.array(_scores(plan, one)) for one in (best, default))
    generator = np.random.default_rng(0)
    draws, others = (aggregates.drawn([one], generator) for one in (mine, theirs))
    low, high = improvement_interval([mine], [theirs], draws, others)
    return float(improvement([mine], [theirs])), float(low), float(high)


def _scores(plan: Plan, evidence: Evidence) -> list[float]:
    """Higher is better."""
    if not plan.objective.minimises:
        return [value if value is not None else -np.inf for value in evidence.values]
    return [-(UNSOLVED * plan.objective.budget if value is None else value) for value in evidence.values]


