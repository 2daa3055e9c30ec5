"""What kinds of roles there are, and what each declares about itself.

A role's kind decides how a run treats it: whether it counts steps, evaluates, gets a GPU. A topology may declare
kinds of its own; nothing depends on a name.

    TRAINER = RoleKind("trainer", trains=True, uses_device=True)
    program.add(TRAINER, build_trainer, essential=True, run=run, …)
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RoleKind:
    """A kind of role. Its roles are called `name`, or `name-0`, `name-1` …; their metrics start with `name/`."""

    name: str
    steps_envs: bool = False
    """`--actors` says how many there are. Each needs a core, and on a cluster those beyond the fewest come and go."""
    trains: bool = False
    """It makes the updates. Its `env_steps` and `updates` are those of the run, it is asked to finish when time is up,
    and its saved `weights` are the policy; several such roles have a shard each, in the order of the program."""
    evaluates: bool = False
    """It plays greedy episodes on command. Its episodes and bytes are not those of training."""
    uses_device: bool = False
    """On a cluster it reserves a GPU, unless `--device` is cpu."""
    background: bool = False
    """No other role waits for it: it reserves no core, and is never the bottleneck."""

    def role_name(self, index: int | None) -> str:
        """`actor-3`, or `learner` where there is no index."""
        return self.name if index is None else f"{self.name}-{index}"


ACTOR = RoleKind("actor", steps_envs=True)
BUNDLE = RoleKind("bundle", steps_envs=True)
"""Gorila: an actor and a learner in one role."""
WORKER = RoleKind("worker", steps_envs=True)
"""A3C: an actor and a learner around one unroll."""
INFERENCE = RoleKind("inference")
PREFETCH = RoleKind("prefetch")
READER = RoleKind("reader")
"""Plays episodes of a data set, as an actor plays envs."""
REPLAY = RoleKind("replay")
LEARNER = RoleKind("learner", trains=True, uses_device=True)
PARAMETER_SERVER = RoleKind("parameter-server", trains=True)
MASTER = RoleKind("master", trains=True, background=True)
"""A3C: publishes and saves the weights that workers change."""
EVALUATOR = RoleKind("evaluator", evaluates=True, background=True)
