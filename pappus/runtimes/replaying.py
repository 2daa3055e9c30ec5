"""Replays a traced run in one thread: each role is stepped until it waits, then the next.

Ports give what the trace says (`trace.replayed`), so the order does not matter: if no role can continue, trace and code
disagree. A role that died in the run ends when all that was seen of it has been seen, and its successor takes over.
"""

from __future__ import annotations

import contextlib
import mmap
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from pappus.accelerator import one_thread
from pappus.core import Waitable
from pappus.kinds import EVALUATOR, LEARNER, REPLAY
from pappus.runtimes.role_process import Assignment, build_roles
from pappus.runtimes.wiring import Wiring
from pappus.topologies.program import Program, RoleSpec
from pappus.trace.log import Life, TraceEnded, TraceError
from pappus.trace.replayed import ReplayedTrace
from pappus.transports.memory import Block, CountingNotifier

STEPS_PER_TURN = 1000
"""Steps of a role before the others have a turn: libraries' random states are exchanged between turns."""


class ReplayedRole:
    """A role in its present life, with the random states that libraries had in its process."""

    def __init__(self, spec: RoleSpec, life: Life, seed: int, wiring: Wiring) -> None:
        self.life, self.ended = life, False
        self.waits_for: Waitable | None = None
        assignment = Assignment(spec.group, [spec], [], {}, life.incarnation, seed, None, threads=1, spin=0, rhythm=0)
        (self.role,) = build_roles(assignment, wiring)
        self._random = library_states()

    def turn(self, has_successor: bool, done: Callable[[], bool]) -> bool:
        """Step until it waits, ends, or others should have a turn; whether anything was done."""
        set_library_states(self._random)
        steps = 0
        try:
            while steps < STEPS_PER_TURN and not done() and not (has_successor and self.spent):
                self.waits_for = self.role.step()
                if self.waits_for is not None:
                    break
                steps += 1
        except TraceEnded:
            self.ended = True
        except Exception:
            if not has_successor:
                raise
            self.ended = True  # it died of that, and was replaced
        self._random = library_states()
        return steps > 0

    @property
    def spent(self) -> bool:
        """Whether all that was seen of this life in the run has been seen."""
        return all(spent() for spent in self.life.spent)

    def close(self) -> None:
        """Release envs. What it counts when it ends is not in the trace."""
        with contextlib.suppress(TraceEnded, TraceError):
            self.role.close()

    def explain(self) -> str:
        if self.ended or self.waits_for is None:
            return f"{self.life.name} has ended"
        waits = f"{self.life.name} waits for {self.waits_for.name} ({self.waits_for.explain()})"
        return f"{waits}, and its trace goes on with {self.life.upcoming()!r}"


class ReplayRuntime:
    """Drives the roles of a program as a trace says."""

    def __init__(self, program: Program, trace: ReplayedTrace) -> None:
        self._trace, self._seed = trace, program.seed
        blocks = {name: edge.new_block(page_aligned) for name, edge in program.edges.items()}
        self._wiring = Wiring(program.edges.values(), blocks, trace=trace)
        self._specs = {spec.name: spec for spec in program.roles if spec.kind not in (EVALUATOR, REPLAY)}
        self._roles: dict[str, ReplayedRole] = {}

    def run(self, done: Callable[[], bool]) -> None:
        """Until `done()`, or until the trace of the learner ends."""
        with one_thread():
            try:
                for name, spec in self._specs.items():
                    if name in self._trace.lives:  # it may not have come up before the run ended
                        self._begin(spec, self._trace.lives[name][0])
                while not done() and not self._roles[LEARNER.name].ended:
                    if not any([self._turn(name, done) for name in list(self._roles)]):
                        self._refuse_standstill(done)
            finally:
                for one in self._roles.values():
                    one.close()

    def _turn(self, name: str, done: Callable[[], bool]) -> bool:
        one = self._roles[name]
        successor = self._trace.successor(one.life)
        if one.ended or done():
            return False
        worked = one.turn(successor is not None, done)
        if successor is not None and one.spent:
            one.close()
            self._begin(self._specs[name], successor)
            return True
        return worked

    def _begin(self, spec: RoleSpec, life: Life) -> None:
        self._roles[spec.name] = ReplayedRole(spec, life, self._seed, self._wiring)

    def _refuse_standstill(self, done: Callable[[], bool]) -> None:
        if not done() and not self._roles[LEARNER.name].ended:
            waits = "; ".join(one.explain() for one in self._roles.values())
            raise TraceError(f"no role can continue as the trace says: {waits}")


def page_aligned(nbytes: int, notifiers: int) -> Block:
    """Memory that begins where that of processes does: products may depend on how it is aligned."""
    memory = np.frombuffer(mmap.mmap(-1, max(nbytes, 1)), np.uint8, nbytes)
    return Block(memory, [CountingNotifier() for _ in range(notifiers)])


def library_states() -> Any:
    """The global random states that roles in processes of their own do not share."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def set_library_states(states: Any) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])
