"""The page beside a run: what the run writes for pages, the server where one is asked for, and the file at the end.

    controller ──update, once a second──▶ RunPage ──▶ now.json, every few seconds ──▶ pappus page RUN
                                             └─────▶ PageServer, in threads of its own ──▶ browser

Nothing here raises but the refusals of `begin`, and a moment is not looked at again before a hundred times as long as
the look took has passed: the page costs a run a percent at most.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pappus.config import AUTO, RunConfig
from pappus.configured import configured
from pappus.errors import UserError
from pappus.origin import OF_A_COMMAND
from pappus.page.document import VERSION, Difference, Phase
from pappus.page.drawing import capacities, drawing
from pappus.page.folder import OneRun
from pappus.page.following import FollowedRun
from pappus.page.now import now_of
from pappus.page.serving import FILE, served_meanwhile, write_page
from pappus.page.written import NOW, PROGRAM, Moment, Started, write_quickly
from pappus.settings import differences
from pappus.system import System
from pappus.telemetry.figures import memory
from pappus.telemetry.files import git_hash, jsonable, versions
from pappus.telemetry.processes import usable_cores
from pappus.telemetry.run_stats import RunStats
from pappus.topologies.program import Program

FILE_SECONDS = 5.0
"""How often now.json is written."""
MOST_AT_END = 1 << 19
"""Bytes of metrics.jsonl that are read for the file where nobody has followed the run: 30 ms."""
PATIENCE = 100.0
"""A look that took a second is followed by the next one after so many."""


class RunPage:
    """What a controller tells of its run."""

    def __init__(
        self, run_stats: RunStats, program: Program, directory: Path, served: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`served`: somebody may look at any time, so that each look counts; else only those that are written."""
        self._run_stats, self._directory, self._clock = run_stats, directory, clock
        self.program, self._capacities = drawing(program), capacities(program)
        self._seconds = 0.0 if served else FILE_SECONDS
        self._look_at, self._write_at = -float("inf"), -float("inf")
        self._phase: Phase = "starting"
        self.moment: Moment | None = None
        """The newest; it is replaced and never changed, so that other threads may read it."""

    def update(self, phase: Phase, scalars: Mapping[str, float]) -> None:
        """The run is in this phase, and has these scalars."""
        began = self._clock()
        if began < self._look_at and phase == self._phase:
            return
        with contextlib.suppress(Exception):  # whatever is wrong with a page, the run goes on
            self._look(phase, scalars)
        taken = self._clock() - began
        self._look_at = began + max(self._seconds, PATIENCE * taken)

    def _look(self, phase: Phase, scalars: Mapping[str, float]) -> None:
        self._phase = phase
        started = self._run_stats.env_steps or self._run_stats.updates
        now = now_of(
            self._run_stats, time.time(), scalars, self.program, self._capacities, trained=phase != "running"
        )
        self.moment = {"version": VERSION, "phase": phase if started or phase != "running" else "starting", "now": now}
        if self._clock() >= self._write_at or phase == "over":
            self._write_at = self._clock() + FILE_SECONDS
            write_quickly(self._directory / NOW, self.moment)


@contextmanager
def page_beside(
    run_stats: RunStats, program: Program, directory: Path, system: System, asked: RunConfig | None = None
) -> Iterator[RunPage]:
    """What a run of a directory tells of itself. Where its config has a page, it is served meanwhile. When the run is
    over, in whatever way, the page is written as a file. `asked` is the config before `auto` was settled; None where
    nobody knows any more."""
    config = run_stats.config
    page = RunPage(run_stats, program, directory, config.has_page)
    with contextlib.suppress(OSError):
        (directory / NOW).unlink()  # of the part that this one continues
    write_quickly(directory / PROGRAM, {**started(config, system, page, asked)})
    if config.has_page:
        shown = OneRun(FollowedRun(directory, newest=lambda: page.moment))
        with served_meanwhile(shown, directory, config.page_server):
            yield page
        return
    try:
        yield page
    finally:
        with contextlib.suppress(Exception):
            write_page(OneRun(FollowedRun(directory, MOST_AT_END)), directory / FILE)


def started(config: RunConfig, system: System, page: RunPage, asked: RunConfig | None) -> Started:
    """What is known from the beginning."""
    try:
        preset = configured(system, config.env)
    except UserError:  # a preset of its own that is wrong is told elsewhere
        preset = config
    given = differences(asked, preset) if asked else {}
    differs = [
        Difference(name=name.replace("-", "_"), preset=_plain(preset, name), value=_plain(config, name))
        for name in differences(config, preset)  # what a preset leaves to the run is no change of anybody's
        if name not in OF_A_COMMAND and (_plain(preset, name) != "auto" or name in given)
    ]
    command = shlex.join(["pappus", *sys.argv[1:]]) if Path(sys.argv[0]).name in ("pappus", "__main__.py") else ""
    return {
        "version": VERSION, "topology": system.topology.name, "algorithm": system.algorithm.name, "command": command,
        "began": time.time(), "machine": machine(), "git_hash": git_hash(), "versions": versions(), "differs": differs,
        "program": page.program,
    }


def machine() -> str:
    """`gpu-box, 8 cores, 31.2 GiB`."""
    size = memory(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return f"{socket.gethostname()}, {usable_cores()} cores, {size}"


def _plain(config: RunConfig, option: str) -> object:
    value: object = config
    for part in option.replace("-", "_").split("."):
        value = getattr(value, part, None)
    return "auto" if value == AUTO else jsonable(value)
