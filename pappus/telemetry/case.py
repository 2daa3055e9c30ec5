"""What a diagnosis looks at: what every kind of role does, the config, the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

from pappus.config import AUTO, RunConfig
from pappus.errors import PappusError
from pappus.kinds import RoleKind
from pappus.telemetry.machine_facts import MachineFacts
from pappus.telemetry.role_view import RoleView, percent

BUSY = 0.75
"""A role this busy limits the run; where no role is, latency between roles does."""
NO_WORK = "commands"
"""What a role waits for that is not asked for anything."""


@dataclass(frozen=True)
class Stage:
    """All roles of one kind: means of their shares of time."""

    kind: RoleKind
    views: tuple[RoleView, ...]
    busy: float
    computing: float
    """Where the kernel says nothing, all that is busy."""
    asleep: float
    queued: float
    helpers: float
    children: float
    """Those of `helpers` that are processes."""
    waiting: dict[str, float]
    in_envs: float
    env_asleep: float

    @property
    def members(self) -> int:
        return len(self.views)

    @property
    def name(self) -> str:
        """`actor-0`, `the learner`, `each of 4 actors`."""
        return self.views[0].name if self.members == 1 else f"each of {self.members} {self.kind.name}s"

    @property
    def own(self) -> float:
        """Share of time that a member would need for what it does now if it never waited, neither for others nor for a
        core. Those of an env that computes in threads of its own are in it."""
        return min(1.0, max(self.computing + self.asleep, self.busy - self.queued, 1e-3))

    @property
    def cpu(self) -> float:
        """Cores that all members together need for what they do now. Looking for an answer instead of sleeping is not
        in it: whoever needs the core gets it."""
        return self.members * (self.computing + self.helpers)

    def waits_for(self, *words: str) -> float:
        """Share of time waiting for ports with one of these words in their names."""
        return sum(share for what, share in self.waiting.items() if any(word in what for word in words))

    def longest_wait(self) -> tuple[float, str]:
        """For a role to do something: having nothing to do is no wait."""
        waits = {what: share for what, share in self.waiting.items() if what != NO_WORK}
        what, share = max(waits.items(), key=lambda item: item[1], default=("", 0.0))
        return share, what


@dataclass(frozen=True)
class Case:
    """A run as a diagnosis sees it. `usual` is the config that its preset alone would give."""

    views: tuple[RoleView, ...]
    config: RunConfig
    machine: MachineFacts
    usual: RunConfig | None = None
    steps_per_second: float = 0.0
    updates_per_second: float = 0.0
    one_by_one: bool = False
    """Whether the envs of an actor are stepped one by one, so that threads can step them."""
    too_short: bool = False
    """Whether no update has come after the first: that one, and what led to it, is in no share of time."""

    @cached_property
    def stages(self) -> list[Stage]:
        """Kinds that others wait for, in the order of the program."""
        measured = [view for view in self.views if not view.kind.background and view.busy + view.waited > 0]
        kinds = dict.fromkeys(view.kind for view in measured)
        return [stage_of(kind, [view for view in measured if view.kind == kind]) for kind in kinds]

    @cached_property
    def busiest(self) -> Stage:
        return max(self.stages, key=lambda stage: stage.busy)

    @property
    def stepping(self) -> Stage | None:
        """Those that step envs."""
        return self._first(lambda kind: kind.steps_envs)

    @property
    def training(self) -> Stage | None:
        """Those that make updates."""
        return self._first(lambda kind: kind.trains)

    def _first(self, which: Callable[[RoleKind], bool]) -> Stage | None:
        return next((stage for stage in self.stages if which(stage.kind)), None)

    @property
    def used(self) -> float:
        """Cores that all roles use, polling included."""
        return sum(view.busy if view.cpu is None else view.cpu for view in self.views)

    @property
    def needed(self) -> float:
        """Cores that all roles need for what they do now; not more than they use, nor than there are. The kernel counts
        in steps, and roles report at different times, so that their sum may be a little more."""
        background = [view.cpu or 0.0 for view in self.views if view.kind.background]
        return min(self.machine.cores, sum(stage.cpu for stage in self.stages) + sum(background))

    @property
    def free_cores(self) -> float:
        """Cores that nobody uses."""
        return max(0.0, self.machine.capacity - self.needed)

    @property
    def takes_turns(self) -> bool:
        """Whether actors and learner wait for each other, whatever drives them."""
        topology = self.config.topology
        return topology.waits_for_all_actors or topology.takes_turns(replace(self.config, runtime="local"))

    @property
    def on_gpu(self) -> bool:
        return self.config.device.startswith("cuda")

    def possible(self, **settings: object) -> RunConfig | None:
        """The config with other settings, if the topology allows that."""
        changed = replace(self.config, **settings)  # type: ignore[arg-type]
        if self.config.envs and changed.actors > 0:
            changed = replace(changed, envs_per_actor=max(1, self.config.envs // changed.actors))
        try:
            changed.topology.check(changed)
        except PappusError:
            return None
        return changed

    def usual_actors(self) -> int | None:
        """How many `auto` would take; None where the preset names a number."""
        if self.usual is None or self.usual.actors != AUTO:
            return None if self.usual is None else self.usual.actors
        cores = max(1, int(self.machine.cores))
        fewest = max(1, self.config.topology.fewest_actors(self.config.learners))
        return max(fewest, self.config.topology.actors_for(self.config, cores, heavy=True))


def stage_of(kind: RoleKind, views: Sequence[RoleView]) -> Stage:
    def mean(values: Iterable[float | None]) -> float:
        return fmean(value or 0.0 for value in values)

    reasons = dict.fromkeys(what for view in views for what in view.waiting)
    return Stage(
        kind, tuple(views), busy=mean(view.busy for view in views),
        computing=mean(view.busy if view.computing is None else view.computing for view in views),
        # a thread that shares its process waits for the interpreter, too, which the kernel takes for sleep
        asleep=mean(view.asleep if view.helpers is not None or view.in_envs is not None else 0.0 for view in views),
        queued=mean(view.queued for view in views), helpers=mean(view.helpers for view in views),
        children=mean(view.children for view in views),
        waiting={what: mean(view.waiting.get(what) for view in views) for what in reasons},
        in_envs=mean(view.in_envs for view in views), env_asleep=mean(view.env_asleep for view in views),
    )


def shares(stage: Stage) -> str:
    """`computes 81 %, sleeps 12 %, waits for a core 7 %`, what is noticeable of it."""
    parts = [("computes", stage.computing), ("sleeps", stage.asleep), ("waits for a core", stage.queued)]
    share, what = stage.longest_wait()
    shown = [f"{verb} {percent(value)}" for verb, value in [*parts, (f"waits for {what}", share)] if value >= 0.05]
    return ", ".join(shown) or "does hardly anything"


def cores_needed(case: Case) -> str:
    """`1.5 of 2 cores are needed for what all roles do`."""
    others = case.machine.others or 0.0
    beside = f", and other programs use {others:.1f}" if others >= 0.1 else ""
    return f"{case.needed:.1f} of {case.machine.cores:g} cores are needed for what all roles do{beside}"
