"""The doctor: every rule looks at the case, and the diagnosis begins with what matters most.

    urgent (memory, a role that hangs)  >  a change that is worth it, the largest gain first  >  the first that is true

No more than one change is proposed, and none where none helps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pappus.telemetry.case import Case, Stage, shares
from pappus.telemetry.findings import Diagnosis, Finding
from pappus.telemetry.machine_facts import MachineFacts
from pappus.telemetry.role_view import percent
from pappus.telemetry.rules_of_machine import (
    OTHERS,
    actors_crowd,
    checkpoints_stall,
    cores_are_full,
    evaluator_steals,
    memory_ends,
    nothing_helps,
    others_compute,
    role_is_silent,
    threads_crowd,
)
from pappus.telemetry.rules_of_roles import (
    actors_are_slow,
    env_is_slow,
    learner_is_slow,
    limiter_holds,
    one_thread,
    queue_is_short,
    steps_are_small,
)

RULES: tuple[Callable[[Case], Finding | None], ...] = (
    role_is_silent, memory_ends, checkpoints_stall, evaluator_steals, threads_crowd, actors_crowd, env_is_slow,
    queue_is_short, limiter_holds, steps_are_small, one_thread, others_compute, cores_are_full, learner_is_slow,
    actors_are_slow,
)
"""In the order in which they are told where none has a change that is worth it."""
URGENT = RULES[:2]
"""Those that need no shares of time."""


def diagnose(case: Case) -> Diagnosis:
    """What every rule says of a case. Only the first finding keeps its change: one thing at a time."""
    found = _found(case)
    findings = [found[0], *(replace(finding, change=None) for finding in found[1:])]
    facts = [*map(_line, case.stages), *_lines_of_machine(case.machine)] if case.stages else []
    return Diagnosis(tuple(findings), tuple(facts), case.steps_per_second, _silence(case, found[0]))


def _found(case: Case) -> list[Finding]:
    """What all rules say, what matters most first."""
    rules = RULES if case.stages and not case.too_short else URGENT if case.stages else URGENT[:1]
    found = [finding for rule in rules if (finding := rule(case)) is not None] or [nothing_helps(case)]
    return sorted((one if one.worth else replace(one, change=None) for one in found), key=_rank)


def _silence(case: Case, top: Finding) -> str:
    """Whether a change would be worth it if the run had the machine for itself."""
    others = case.machine.others or 0.0
    if top.change is not None or others < OTHERS or not case.stages:
        return ""
    change = _found(replace(case, machine=replace(case.machine, others=0.0)))[0].change
    told = f"other programs use {others:.1f} of {case.machine.cores:g} cores"
    return f"{told}; without them {change.words} would help" if change else ""


def _rank(finding: Finding) -> tuple[bool, float]:
    """Sorting is stable: findings without a change stay in the order of the rules."""
    gain = 0.0 if finding.change is None else finding.change.gain or 0.0
    return not finding.urgent, -gain


def _line(stage: Stage) -> str:
    extra = [f"{percent(stage.in_envs)} in envs"] if stage.in_envs >= 0.005 else []
    cores = f"{stage.cpu:.2f} cores"
    return f"{stage.name}: {', '.join([shares(stage), *extra, cores])}"


def _lines_of_machine(machine: MachineFacts) -> list[str]:
    lines = [f"cores: {machine.cores:g}"]
    if machine.others is not None:
        lines.append(f"cores that other programs use: {machine.others:.1f}")
    if machine.memory_free is not None:
        lines.append(f"memory left: {machine.memory_free / 2**30:.1f} GiB")
    if machine.gpu_busy is not None:
        lines.append(f"the GPU computes {percent(machine.gpu_busy)} of the time")
    return lines
