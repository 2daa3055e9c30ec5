"""`pappus replay-run`: replay a traced run in one thread, and compare its weights update by update."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from dataclasses import dataclass, replace
from pathlib import Path

from pappus.api import describe
from pappus.beginnings import first_weights
from pappus.errors import UserError
from pappus.runtimes.replaying import ReplayRuntime
from pappus.systems import saved_config
from pappus.trace.log import FOLDER, load_lives
from pappus.trace.origin import check_facts
from pappus.trace.replayed import ReplayedTrace
from pappus.types import Array


@dataclass(frozen=True)
class Replaying:
    """What to replay, and how far."""

    run: Path
    until_update: int | None = None
    """Stop after this update; None: at the end of the trace."""
    break_at: int | None = None
    """Open the debugger before this update."""
    trust: bool = False
    """Run the code that the run directory names, whoever wrote it."""

    def __post_init__(self) -> None:
        for name, update in (("until-update", self.until_update), ("break-at", self.break_at)):
            if update is not None and update < 1:
                raise UserError(f"--{name} {update}: updates are counted from 1")


class Replay:
    """One replay: says which updates led to the same weights. It raises `TraceError` at the first that did not."""

    def __init__(self, asked: Replaying) -> None:
        folder, self._asked = asked.run / FOLDER, asked
        check_facts(folder)
        system, config = saved_config(folder, trust=asked.trust, without=())
        run = describe(config, config.env, system)
        run = replace(run, first_weights=first_weights(run) if config.init_from else None)
        self._trace = ReplayedTrace(load_lives(folder), self)
        self._update = -1
        self._last = min(asked.until_update or self._trace.last, self._trace.last)
        self._runtime = ReplayRuntime(system.topology.build(run), self._trace)
        roles, lives = len(self._trace.lives), sum(map(len, self._trace.lives.values()))
        print(
            f"{config.system_name} on {config.env}: a trace of {self._trace.last:,} updates by {roles} roles, of which "
            f"{lives - roles} died and were replaced", flush=True,
        )

    def run(self) -> None:
        self._runtime.run(lambda: self._update >= self._last)
        if self._update == self._trace.last:
            print("the replay has made all updates of the run")

    def compared(self, flat: Array, update: int, hashed: bool) -> None:
        """Weights were the same as in the run."""
        self._update = update
        if hashed or update >= self._last:
            print(f"update {update}: same weights (sha256 {hashlib.sha256(flat.data).hexdigest()})", flush=True)

    def about_to_update(self) -> None:
        """The learner has taken the batch of the next update, or of several where it makes more of one."""
        published = self._trace.published
        following = published[min(bisect_right(published, self._update), len(published) - 1)]
        if self._asked.break_at is not None and self._update < self._asked.break_at <= following:
            breakpoint()  # the batch of the update is returned from here: `return` twice leads to the learner
