"""What makes more envs step at a time: more actors, or threads for the envs of an actor."""

from __future__ import annotations

from pappus.config import RunConfig
from pappus.telemetry.case import Case, Stage
from pappus.telemetry.findings import Change
from pappus.telemetry.learning import costs_in_learning
from pappus.telemetry.speed import Load, load_of, possible_speed, promised, unhindered

TIMES = (2, 3, 4, 6, 8)
"""How many times the actors there are."""
MOST_ACTORS = 64
ENOUGH = 0.9
"""Of the best speed: fewer actors that reach it are better."""
THREAD_SECONDS = 20e-6
"""What it costs to have a step of one env made by a thread."""
CLEARLY = 0.6
"""Of the gain of more actors: threads that reach it are better."""
MOST_THREADS = 64
"""Of one actor."""
SHARED = "envs that share state would disturb each other"


def more_at_a_time(case: Case, stage: Stage) -> Change | None:
    """For envs that wait. Threads cost neither memory nor anything in learning: they are proposed unless more actors
    are clearly better."""
    threads, actors = _more_threads(case, stage), more_actors(case, stage)
    if threads is None or actors is None:
        return threads or actors
    return threads if (threads.gain or 0.0) >= CLEARLY * (actors.gain or 0.0) else actors


def _more_threads(case: Case, stage: Stage) -> Change | None:
    """A thread for each env of an actor, where they are stepped one by one."""
    now, threads = max(1, case.config.env_options.threads), min(MOST_THREADS, case.config.envs_per_actor)
    if not case.one_by_one or threads <= now:
        return None
    begin = THREAD_SECONDS * case.steps_per_second / stage.members
    own = max(1e-3, stage.own - stage.env_asleep * (1 - now / threads) + begin)
    less = Load(own, stage.cpu + stage.members * begin)
    loads = [less if one is stage else load_of(one) for one in case.stages]
    speed = possible_speed(loads, case.machine.capacity, case.takes_turns or case.config.inline)
    return Change((("env-options.threads", str(threads)),), promised(speed / unhindered(case)), SHARED)


def more_actors(case: Case, stage: Stage) -> Change | None:
    """The fewest actors that reach nearly the best speed; None where the topology or the memory allows no more."""
    local = case.config.runtime == "inline"
    settings = {"runtime": "local"} if local else {}
    reached: dict[int, float] = {}
    configs: dict[int, RunConfig] = {}
    for times in TIMES:
        actors = times * stage.members
        changed = case.possible(actors=actors, **settings)
        if changed is None or actors > MOST_ACTORS or not _fits(case, stage, actors):
            continue
        configs[actors] = changed
        loads = [load_of(one, times if one is stage else 1.0) for one in case.stages]
        reached[actors] = possible_speed(loads, case.machine.capacity, case.takes_turns)
    if not reached:
        return None
    actors = min(number for number, speed in reached.items() if speed >= ENOUGH * max(reached.values()))
    costs = costs_in_learning(configs[actors], case.config)
    options = (*((("runtime", "local"),) if local else ()), ("actors", str(actors)))
    return Change(options, promised(reached[actors] / unhindered(case)), costs)


def _fits(case: Case, stage: Stage, actors: int) -> bool:
    """Whether half of the free memory holds the new ones. They share about half of their pages."""
    size = max((view.memory or 0 for view in stage.views), default=0) / 2
    free = case.machine.memory_free
    return free is None or (actors - stage.members) * size <= free / 2
