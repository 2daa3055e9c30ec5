"""Rules that look at what roles do: where their time goes, and what would make it less.

A change that alters what is learnt (more data per update, fewer updates per step) is proposed only where it leads back
to what the preset says, or where it says what it costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean

from pappus.telemetry.case import BUSY, Case, Stage, cores_needed, shares
from pappus.telemetry.figures import figure
from pappus.telemetry.findings import WORTH, Change, Finding
from pappus.telemetry.learning import costs_in_learning
from pappus.telemetry.remedies import more_actors, more_at_a_time
from pappus.telemetry.role_view import percent
from pappus.telemetry.speed import Load, load_of, possible_speed, promised, unhindered

ENV_SHARE = 0.4
"""Of the actors' time: then it is the envs that take it."""
SLOW_ENV_SECONDS = 50e-6
"""A step of one env that takes longer deserves a core."""
UNEVEN = 0.3
"""Share of the time in envs that slow steps take: then it is they that matter."""
NOTICEABLE = 0.1
HAND_OVER_SECONDS = 100e-6
"""What a batch costs both sides that goes from one process to another."""
CALL_SECONDS = 20e-6
"""What a step of many envs costs before the first of them moves."""
ROW_SECONDS = 2e-6
"""What a row of a batch costs the learner of a small network."""
UNITS = ((1e6, "µs"), (1e3, "ms"))


def env_is_slow(case: Case) -> Finding | None:
    """Actors spend their time in steps of envs, which compute, sleep, or are slow now and then."""
    stage = case.stepping
    if stage is None or stage.in_envs < ENV_SHARE or not _limits(case, stage):
        return None
    steps = [view.step_seconds for view in stage.views if view.step_seconds is not None]
    median, late = (max(1e-9, fmean(times)) for times in zip(*steps, strict=True)) if steps else (1e-9, 1e-9)
    each = median / max(1, case.config.envs_per_actor)
    usual = f"a step of its {case.config.envs_per_actor} envs takes {_time(median)}, of one in a hundred {_time(late)}"
    slow = fmean(view.slow_steps for view in stage.views)
    inside = f"{stage.name} is in steps of envs for {percent(stage.in_envs)} of its time"
    if slow >= UNEVEN:
        said = f"{percent(slow)} of the time in envs goes into the few steps that are slow; {usual}"
        return Finding("uneven env", "the envs are slow now and then", (said, inside), more_actors(case, stage))
    if stage.env_asleep >= 0.4 * stage.in_envs:
        said = f"{stage.name} sleeps {percent(stage.env_asleep)} of its time in their steps"
        change = more_at_a_time(case, stage)
        return Finding("sleeping env", "the envs wait for something outside", (said, usual), change)
    if each < SLOW_ENV_SECONDS:
        return None
    return Finding("slow env", "the envs compute", (inside, usual, shares(stage)), more_actors(case, stage))


def actors_are_slow(case: Case) -> Finding | None:
    """Actors compute, the others wait for them, and there are cores for more actors."""
    stage = case.stepping
    if stage is None or case.config.inline or case.takes_turns or stage is not case.busiest or stage.busy < BUSY:
        return None
    evidence = (f"{stage.name} {shares(stage)}", cores_needed(case))
    change = more_actors(case, stage) if case.free_cores >= 1 and not _asleep(stage) else None
    kind = f"the {stage.kind.name}s"
    sentence = f"the others wait for {kind}" if len(case.stages) > 1 else f"{kind} do everything"
    return Finding("slow actors", sentence, evidence, change)


def learner_is_slow(case: Case) -> Finding | None:
    """Others wait for the learner."""
    stage = case.training
    if stage is None or case.config.inline or stage is not case.busiest or stage.busy < BUSY:
        return None
    evidence = [f"{stage.name} {shares(stage)}", *_who_waits(case, stage)]
    if _asleep(stage) and not case.on_gpu:  # a thread sleeps while its GPU computes
        return Finding("slow learner", "the learner waits for something outside", tuple(evidence))
    if case.on_gpu and case.machine.gpu_busy is not None:
        evidence.append(f"the GPU computes {percent(case.machine.gpu_busy)} of the time")
    return Finding("slow learner", "the others wait for the learner", tuple(evidence), _more_learning(case, stage))


def one_thread(case: Case) -> Finding | None:
    """The inline runtime does one after the other what could be done side by side."""
    if case.config.runtime != "inline" or case.takes_turns or len(case.stages) < 2:
        return None
    hand_over = 2 * case.updates_per_second * HAND_OVER_SECONDS
    loads = [Load(load.own + hand_over, load.cpu + hand_over) for load in map(load_of, case.stages)]
    gain = promised(possible_speed(loads, case.machine.capacity) / unhindered(case))
    told = ", ".join(f"{stage.name} {percent(stage.busy)}" for stage in case.stages if stage.busy >= 0.02)
    costs = costs_in_learning(replace(case.config, runtime="local"), case.config)
    change = Change((("runtime", "local"),), gain, costs)
    return Finding("one thread", "one thread does everything", (told, cores_needed(case)), change)


def queue_is_short(case: Case) -> Finding | None:
    """Actors and learner wait for each other by turns, since neither may be ahead."""
    acting, training, usual = case.stepping, case.training, case.usual
    if acting is None or training is None or usual is None or case.config.inline or case.takes_turns:
        return None
    replay = case.config.topology.slack_option.endswith("tolerance")
    now, then = _tolerances(case) if replay else (float(case.config.queue_size), float(usual.queue_size))
    waits = acting.waits_for("slots", "replay", "inference"), training.waits_for("unrolls", "batches", "replay")
    if now >= then or min(waits) < NOTICEABLE:
        return None
    option = case.config.topology.slack_option.removeprefix("--")
    loads = [Load(stage.own, stage.members * stage.computing) for stage in case.stages]  # helpers wake in vain now
    gain = promised(possible_speed(loads, case.machine.capacity) / unhindered(case))
    actors, learner = (percent(share) for share in waits)
    told = f"{acting.name} waits {actors} of its time for a free slot, and {training.name} {learner} for data"
    change = Change(((option, f"{then:g}"),), gain)
    name = "tight limiter" if replay else "tiny queue"
    return Finding(name, f"--{option} {now:g} lets nobody get ahead", (told, cores_needed(case)), change)


def limiter_holds(case: Case) -> Finding | None:
    """The rate limiter of a replay table keeps one side waiting for the other."""
    acting, training, replay = case.stepping, case.training, getattr(case.config.topology, "replay", None)
    if replay is None or acting is None or training is None:
        return None
    ratio, inline = float(replay.samples_per_insert), case.config.inline
    actors, learner = acting.waits_for("replay"), training.waits_for("replay")
    balance = ratio * acting.own / training.own
    if max(actors, learner) < 3 * NOTICEABLE or (max(actors, learner) < 2 * min(actors, learner) and not inline):
        return None
    held, share = (acting, actors) if actors > learner else (training, learner)
    if held is training and acting is case.busiest:  # it is they that are slow, whatever the ratio
        return None
    told = f"{held.name} waits {percent(share)} of its time for the rate limiter"
    asked = f"every item is sampled {ratio:g} times"
    if not inline and not case.takes_turns:
        asked += f"; both sides would be busy at {figure(balance)}"
    return Finding("rate limiter", "the rate limiter holds back", (told, asked), _looser(case, ratio))


def steps_are_small(case: Case) -> Finding | None:
    """Each step does so little that what surrounds it takes most of the time."""
    stage, usual, config = case.stepping, case.usual, case.config
    if stage is None or usual is None or config.envs or _asleep(stage):
        return None
    now, then = config.envs_per_actor, usual.envs_per_actor
    while then > now and case.possible(envs_per_actor=then) is None:
        then //= 2
    if then < 2 * now or not stage.views[0].step_seconds:
        return None
    median, times = stage.views[0].step_seconds[0], then / now
    growing = min(1.0, stage.in_envs / max(stage.own, 1e-3) * max(0.0, 1 - CALL_SECONDS / median))
    if 1 / (growing + (1 - growing) / times) < WORTH:  # what larger batches save the learner is another matter
        return None
    turns = case.takes_turns or config.inline
    same, larger = (possible_speed(_larger(case, by, growing), case.machine.capacity, turns) for by in (1, times))
    gain = promised(larger / same)  # what ends waiting for cores is none of its merit
    told = f"a step of {now} envs takes {_time(median)}, and {percent(1 - growing)} of it would not grow with more envs"
    costs = costs_in_learning(replace(config, envs_per_actor=then), config)
    change = Change((("envs-per-actor", str(then)),), gain, costs)
    return Finding("small steps", f"{stage.name} steps few envs at once", (told, f"the preset has {then}"), change)


def _larger(case: Case, times: float, growing: float) -> Iterator[Load]:
    """What every stage needs per env step when each step has `times` the envs."""
    rows = case.steps_per_second / max(case.updates_per_second, 1e-9)
    for stage in case.stages:
        per_row = growing
        if stage.kind.trains:
            update = stage.own / max(case.updates_per_second, 1e-9)
            per_row = min(1.0, rows * ROW_SECONDS / max(update, 1e-9))
        left = (1 - per_row + per_row * times) / times
        yield Load(stage.own * left, stage.cpu * left)


def _looser(case: Case, ratio: float) -> Change | None:
    usual = getattr(case.usual.topology, "replay", None) if case.usual is not None else None
    if usual is None or usual.samples_per_insert >= ratio:
        return None
    less = usual.samples_per_insert / ratio
    loads = [
        Load(load.own * less, load.cpu * less) if stage.kind.trains else load
        for stage, load in ((stage, load_of(stage)) for stage in case.stages)
    ]
    turns = case.takes_turns or case.config.inline
    gain = promised(possible_speed(loads, case.machine.capacity, turns) / unhindered(case))
    costs = f"every item is learnt from {usual.samples_per_insert:g} times instead of {ratio:g}"
    return Change((("topology.replay.samples-per-insert", f"{usual.samples_per_insert:g}"),), gain, costs)


def _tolerances(case: Case) -> tuple[float, float]:
    now, usual = (getattr(config.topology, "replay", None) if config else None for config in (case.config, case.usual))
    return (now.tolerance, usual.tolerance) if now is not None and usual is not None else (0.0, 0.0)


def _more_learning(case: Case, stage: Stage) -> Change | None:
    """Several learners where cores are free; on a GPU whose kernels are short, larger batches."""
    config, learners = case.config, 2 * case.config.learners
    larger = case.possible(batch_size=2 * config.batch_size) if case.on_gpu and config.batch_size else None
    if larger is not None:
        busy = 1.0 if case.machine.gpu_busy is None else case.machine.gpu_busy  # the rest goes into launching kernels
        costs = costs_in_learning(larger, config)
        return Change((("batch-size", str(2 * config.batch_size)),), promised(2 / (1 + busy)), costs)
    if case.on_gpu or not config.topology.many_learners or case.free_cores < config.learners:
        return None
    if (several := case.possible(learners=learners)) is None:
        return None
    loads = [load_of(one, 2.0 if one is stage else 1.0) for one in case.stages]
    gain = promised(possible_speed(loads, case.machine.capacity) / unhindered(case))
    return Change((("learners", str(learners)),), gain, costs_in_learning(several, config))


def _limits(case: Case, stage: Stage) -> bool:
    """Whether the run is as slow as this stage."""
    return case.config.inline or case.takes_turns or (stage is case.busiest and stage.busy >= BUSY)


def _asleep(stage: Stage) -> bool:
    return stage.asleep >= 0.4 * max(stage.busy, 1e-3)


def _who_waits(case: Case, slow: Stage) -> list[str]:
    """`actor-0 waits for unrolls slots 60 % of its time`, of those that wait noticeably."""
    found = []
    for stage in case.stages:
        share, what = stage.longest_wait()
        if stage is not slow and share >= NOTICEABLE:
            found.append(f"{stage.name} waits for {what} {percent(share)} of its time")
    return found


def _time(seconds: float) -> str:
    """`31 µs`, `5.1 ms` or `1.2 s`."""
    value, unit = next(((seconds * many, unit) for many, unit in UNITS if seconds * many < 1000), (seconds, "s"))
    return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
