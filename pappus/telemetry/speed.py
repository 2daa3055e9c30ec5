"""What a run could do with other numbers of roles, from what its roles need now: as fast as its slowest kind of roles,
or as all cores allow.

    side by side            1 / max(own time of each kind)
    in turns, one thread    1 / sum(own times)
    in any case             cores / (cores that all roles need together)

All is relative to the present speed: 2.0 means twice as fast.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from pappus.telemetry.case import Case, Stage

HONEST = 0.8
"""Share of the predicted gain that is promised: hand-overs and caches take the rest."""


class Load(NamedTuple):
    """What one kind of roles needs for the present speed."""

    own: float
    """Share of time of each member."""
    cpu: float
    """Cores, of all members together."""


def load_of(stage: Stage, factor: float = 1.0) -> Load:
    """`factor` times as many members share its work."""
    return Load(stage.own / factor, stage.cpu)


def possible_speed(loads: Iterable[Load], cores: float, turns: bool = False) -> float:
    """How fast they could go on so many cores; `turns`: only one kind works at any time."""
    loads = list(loads)
    needed = sum(load.cpu for load in loads) / cores
    if turns:
        return 1.0 / max(sum(max(load.own, load.cpu / cores) for load in loads), needed, 1e-6)
    return 1.0 / max(*(load.own for load in loads), needed, 1e-6)


def speed_without(share: float) -> float:
    """How fast it goes when so much of the time is no longer spent."""
    return 1.0 / max(0.1, 1.0 - share)


def unhindered(case: Case) -> float:
    """How fast the run could go as it is, if its roles did not wait for cores: no other change may claim that."""
    turns = case.takes_turns or case.config.inline
    queued = sum(stage.queued for stage in case.stages) if turns else case.busiest.queued
    possible = possible_speed(map(load_of, case.stages), case.machine.capacity, turns)
    return max(1.0, min(speed_without(queued), possible))


def promised(speed: float) -> float:
    """What to promise of a predicted speed."""
    return 1.0 + HONEST * (speed - 1.0)
