"""Rules that look at the machine and at what runs beside the training: memory, cores, evaluations, checkpoints."""

from __future__ import annotations

import math

from pappus.telemetry.case import BUSY, Case, Stage, cores_needed, shares
from pappus.telemetry.findings import SILENT, Change, Finding
from pappus.telemetry.metrics import CHECKPOINT
from pappus.telemetry.role_view import percent
from pappus.telemetry.speed import load_of, possible_speed, promised, speed_without

SILENT_SECONDS = 10.0
"""A role without a report for so long is mentioned."""
MEMORY_SECONDS = 900.0
"""Memory that lasts longer is no news."""
WAITS = 0.15
"""Share of time waiting for a core that is worth a sentence."""
OTHERS = 0.3
"""Cores that other programs use, and a user should know of."""
FULL = 0.85
"""Of the cores: then all of them compute."""
STOLEN = 0.15
"""Cores that an evaluator may use before it is one too many."""
RARE = 0.05
"""Share of a core that evaluations, or of the time that checkpoints, may take."""
STALLS = 0.05
HELPERS = 0.3


def role_is_silent(case: Case) -> Finding | None:
    """One that others wait for has not reported for long."""
    watched = [view for view in case.views if not view.kind.background]
    slowest = max(watched, key=lambda view: view.silent_seconds, default=None)
    if slowest is None or slowest.silent_seconds <= SILENT_SECONDS:
        return None
    said = f"{slowest.name} has not reported for {slowest.silent_seconds:.0f} s: one step takes long, or is stuck"
    return Finding(SILENT, said, (), urgent=True)


def memory_ends(case: Case) -> Finding | None:
    """It has shrunk for two minutes, and will be over soon."""
    seconds, machine = case.machine.memory_seconds, case.machine
    if seconds is None or seconds > MEMORY_SECONDS or machine.memory_free is None:
        return None
    rate = f"{machine.memory_growth / 2**20:.0f} MiB go every second"
    told = f"{machine.memory_free / 2**30:.1f} GiB are left, and {rate}"
    largest = max(case.views, key=lambda view: view.memory or 0)
    holds = f"{largest.name} holds the most: {(largest.memory or 0) / 2**30:.1f} GiB"
    minutes = f"memory is over in {seconds / 60:.0f} min" if seconds >= 60 else "memory is over within a minute"
    replay = getattr(case.config.topology, "replay", None)
    change = None
    if replay is not None and replay.capacity > 1:
        costs = "older items are forgotten sooner"
        change = Change((("topology.replay.capacity", str(replay.capacity // 2)),), None, costs)
    return Finding("memory", minutes, (told, holds), change, urgent=True)


def evaluator_steals(case: Case) -> Finding | None:
    """Evaluations take a core that the training needs."""
    cpu = sum(view.cpu or 0.0 for view in case.views if view.kind.evaluates)
    busy = sum(view.busy for view in case.views if view.kind.evaluates)
    taken = busy if case.config.inline else min(cpu, case.busiest.queued)
    if not case.stages or cpu < STOLEN or taken < WAITS:
        return None
    settings, options = case.config.evaluation, []
    times = math.ceil(cpu / RARE)
    if settings.every_seconds:
        options.append(("evaluation.every-seconds", f"{times * settings.every_seconds:g}"))
    if settings.every_steps:
        options.append(("evaluation.every-steps", str(times * settings.every_steps)))
    told = f"the evaluator uses {cpu:.1f} cores, and {case.busiest.name} waits {percent(case.busiest.queued)} for one"
    if case.config.inline:
        told = f"the evaluator has the only thread for {percent(busy)} of the time"
    gain = promised(max(speed_without(taken * (1 - 1 / times)), _with_cores(case, cpu, cpu / times)))
    change = Change(tuple(options), gain, f"{times} times fewer evaluations") if options else None
    return Finding("evaluator", "evaluations take a core that training needs", (told, cores_needed(case)), change)


def _with_cores(case: Case, taken: float, then: float) -> float:
    """How much faster the roles may be when something beside them takes so many cores then, and no longer so many as
    now. Who waits for a role that waits for a core gains, too, which shares of time do not show."""
    if case.config.inline:
        return 1.0
    loads = [load_of(stage) for stage in case.stages]
    before, after = (
        possible_speed(loads, max(0.1, case.machine.capacity - cores), case.takes_turns) for cores in (taken, then)
    )
    return after / max(1.0, before)


def checkpoints_stall(case: Case) -> Finding | None:
    """Roles stand still while their state is written."""
    shares_of = {view.name: view.waiting.get(CHECKPOINT, 0.0) for view in case.views if not view.kind.background}
    name, share = max(shares_of.items(), key=lambda item: item[1], default=("", 0.0))
    if share < STALLS:
        return None
    every = case.config.checkpoint.every_seconds
    times = math.ceil(share / (RARE / 5))
    gain = promised(speed_without(share * (1 - 1 / times)))
    costs = "more is lost when the run is killed"
    change = Change((("checkpoint.every-seconds", f"{times * every:g}"),), gain, costs)
    told = f"{name} waits {percent(share)} of its time until its state is written, every {every:g} s"
    return Finding("checkpoints", "checkpoints hold the run up", (told,), change)


def threads_crowd(case: Case) -> Finding | None:
    """Threads that libraries start take cores from roles. Processes of envs are no threads, and where other programs
    take the cores, fewer threads would give them to these."""
    own = [stage for stage in case.stages if stage.kind.steps_envs or stage.kind.trains]  # others serve in threads
    worst = max(own, key=_beside, default=None)
    if worst is None or _beside(worst) < HELPERS:
        return None
    if case.busiest.queued < WAITS or case.used < FULL * case.machine.cores:
        return None
    told = (
        f"threads beside that of {worst.name} use {_beside(worst):.1f} cores, "
        f"and {case.busiest.name} waits {percent(case.busiest.queued)} of its time for one"
    )
    gain = promised(speed_without(min(case.busiest.queued, _beside(worst) / case.machine.capacity) / 2))
    native = worst.kind.steps_envs and case.config.env_options.threads > 1
    options = (("env-options.threads", "1"),) if native else (("OMP_NUM_THREADS", "1"), ("OPENBLAS_NUM_THREADS", "1"))
    evidence = told, cores_needed(case)
    return Finding("threads", "more threads compute than there are cores", evidence, Change(options, gain))


def _beside(stage: Stage) -> float:
    """Cores that other threads of the processes of these roles use."""
    return stage.members * (stage.helpers - stage.children)


def actors_crowd(case: Case) -> Finding | None:
    """So many actors compute that the learner has to wait for a core."""
    stage, usual = case.stepping, case.usual_actors()
    if stage is None or case.config.inline or usual is None or stage.members <= usual:
        return None
    if stage is case.busiest or case.busiest.queued < WAITS:
        return None
    if stage.asleep >= 0.2 * stage.busy or case.possible(actors=usual) is None:
        return None
    loads = [load_of(one, usual / stage.members if one is stage else 1.0) for one in case.stages]
    gain = promised(possible_speed(loads, case.machine.capacity, case.takes_turns))
    told = f"{stage.members} {stage.kind.name}s share {case.machine.cores:g} cores with the others"
    waits = f"{case.busiest.name} waits {percent(case.busiest.queued)} of its time for a core"
    sentence, change = "more roles compute than there are cores", Change((("actors", str(usual)),), gain)
    return Finding("starved cores", sentence, (f"{told}, and {waits}", cores_needed(case)), change)


def others_compute(case: Case) -> Finding | None:
    """Programs beside the run take its cores: nothing in its config is wrong."""
    others = case.machine.others or 0.0
    if others < OTHERS or not case.stages or case.busiest.queued < WAITS:
        return None
    told = f"they use {others:.1f} of {case.machine.cores:g} cores"
    waits = f"{case.busiest.name} waits {percent(case.busiest.queued)} of its time for a core"
    return Finding("starved cores", "other programs take cores from this run", (f"{told}, and {waits}",))


def cores_are_full(case: Case) -> Finding | None:
    """Everything computes: no setting makes it faster here."""
    if (case.machine.others or 0.0) >= OTHERS or case.needed < FULL * case.machine.capacity:
        return None
    told = f"{cores_needed(case)}, and {case.busiest.name} {shares(case.busiest)}"
    return Finding("full cores", "all cores compute", (told,))


def nothing_helps(case: Case) -> Finding:
    """Told where no other rule has anything to say."""
    if not case.stages:
        return Finding("nothing", "nothing measured yet", ())
    if case.too_short:
        return Finding("nothing", "too short to tell: there was no second update", ())
    busiest = case.busiest
    if case.config.inline:
        told = ", ".join(f"{stage.name} {percent(stage.busy)}" for stage in case.stages if stage.busy >= 0.02)
        return Finding("one thread", "one thread does everything, one after the other", (told,))
    told = f"{busiest.name} {shares(busiest)}"
    if busiest.busy >= BUSY:
        return Finding("bottleneck", f"the others wait for {busiest.name}", (told, cores_needed(case)))
    if not case.updates_per_second:
        return Finding("nothing", "no update was made lately", (told, cores_needed(case)))
    return Finding("latency", "no role is the bottleneck", (f"{told}, and is the busiest", cores_needed(case)))
