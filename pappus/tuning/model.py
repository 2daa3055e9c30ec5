"""How many env steps a second a setting makes, from what the parts of a step cost here. All times are in seconds.

What is assumed:

1. A step of n envs, and a forward pass for n envs, take `fixed + each × n`.
2. An actor does one thing after the other: it steps its envs, acts, and once per unroll hands something over.

       cycle  =  env(n) + acting(n) + message / unroll        rate of the actors  =  actors × n / cycle

   With central inference one pass answers the envs of all actors, and costs two messages. Two env groups overlap with
   it: the longer one counts.
3. A learner needs `training` for every env step, whoever made it; learners share that evenly.
4. No more is computed than there are cores for: what every role computes for an env step adds up. An env that sleeps
   computes nothing meanwhile. A learner that waits for a GPU keeps its core.
5. Roles in processes work at the same time, so the slowest of them sets the rate. Roles in one thread take turns, and
   so do actors and learner where a batch must come from the newest weights: then times add up.

What is left out: memory bandwidth, caches, envs whose steps take different times. A prediction orders settings; those
that look best are measured, and `search.py` learns from that by how much predictions are wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import NamedTuple


class Line(NamedTuple):
    """Seconds that something takes for n envs: `fixed + each × n`."""

    fixed: float
    each: float

    def at(self, n: int) -> float:
        return self.fixed + self.each * n

    @staticmethod
    def through(points: Sequence[tuple[int, float]]) -> Line:
        """The line through the first and the last of measured points; of one alone, and where more envs took no longer
        or less than nothing is left for none, the nearest line that can be."""
        (first, low), (last, high) = points[0], points[-1]
        if last == first:
            return Line(0.0, high / last)
        each = (high - low) / (last - first)
        if each <= 0:
            return Line(min(low, high), 0.0)
        fixed = low - each * first
        return Line(fixed, each) if fixed >= 0 else Line(0.0, high / last)


class EnvCost(NamedTuple):
    """Of one step of n envs: what is computed, and how long their thread sleeps or waits for something outside."""

    computing: Line
    asleep: Line
    making: float = 0.0
    """Seconds in which one env is made."""

    def seconds(self, n: int) -> float:
        return self.computing.at(n) + self.asleep.at(n)

    @property
    def waits(self) -> bool:
        """Whether most of a step is no computing: then more of them at a time cost no core."""
        return self.asleep.at(1) > self.computing.at(1)


@dataclass(frozen=True)
class Costs:
    """What was measured here."""

    env: EnvCost
    """Envs that are stepped one after the other, or as the env's own vector does it."""
    env_threads: EnvCost | None
    """Envs that have a thread each; None where that was not measured."""
    acting: Line
    """A forward pass for n envs, with all that is recorded of the step."""
    training: Mapping[int, float]
    """What learners compute per env step, by the items (unrolls, or rows of replay) of an update."""
    others: float
    """What further roles compute per env step: a replay server, a prefetcher."""
    message: float
    """From a process that hands something over to one that goes on with it."""
    cores: int

    def training_of(self, items: int) -> float:
        """That of the size of update nearest to one that was measured."""
        return self.training[min(self.training, key=lambda known: abs(log(known / max(1, items))))]


@dataclass(frozen=True)
class Shape:
    """A setting, as the model sees it."""

    actors: int
    envs: int
    """Of each actor."""
    one_thread: bool = False
    env_threads: bool = False
    central: bool = False
    """Actors ask an inference server."""
    groups: int = 1
    """Env groups of an actor that take turns with central inference."""
    lockstep: bool = False
    """Actors wait for what the learner makes of their steps."""
    learners: int = 1
    items: int = 1
    """Of an update."""
    unroll: int = 1
    """Steps of an env between two hand-overs."""


class Prediction(NamedTuple):
    """Env steps per second, and what keeps it from being more."""

    rate: float
    limit: str


def predict(costs: Costs, shape: Shape) -> Prediction:
    """The rate of a setting."""
    env = costs.env_threads if shape.env_threads and costs.env_threads is not None else costs.env
    training = costs.training_of(shape.items)
    total = shape.actors * shape.envs
    pass_size = total if shape.central else shape.envs
    acting = costs.acting.at(pass_size) / pass_size  # for each env
    stepping = env.computing.at(shape.envs) / shape.envs
    work = stepping + acting + training + costs.others
    if shape.one_thread:
        return Prediction(1 / (env.seconds(shape.envs) / shape.envs + acting + training + costs.others), "one thread")
    limits = {
        "actors": total / _cycle(costs, shape, env),
        "learner": shape.learners / training if training else float("inf"),
    }
    if shape.central:
        limits["inference"] = total / costs.acting.at(total)
    if shape.lockstep:
        acted = min(limits.pop("actors"), costs.cores / (stepping + acting))
        return Prediction(1 / (1 / acted + 1 / limits["learner"]), "actors and learner wait for each other")
    limits["cores"] = costs.cores / work
    slowest = min(limits, key=lambda name: limits[name])
    return Prediction(limits[slowest], slowest)


def _cycle(costs: Costs, shape: Shape, env: EnvCost) -> float:
    """Seconds between two steps of the same env."""
    stepping = env.seconds(shape.envs)
    if not shape.central:
        return stepping + costs.acting.at(shape.envs) + costs.message / shape.unroll
    answering = costs.acting.at(shape.actors * shape.envs) + 2 * costs.message
    return max(stepping, answering) if shape.groups > 1 else stepping + answering
