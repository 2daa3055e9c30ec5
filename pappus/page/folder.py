"""A folder of runs: which there are, in which groups, and what of each is shown beside the others."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

from pappus.errors import UserError
from pappus.page import reading
from pappus.page.curves import ThinnedCurves
from pappus.page.document import Page, RunSummary
from pappus.page.following import FollowedRun
from pappus.page.streams import WatchedRun
from pappus.telemetry.differing import different, shown
from pappus.telemetry.history import FILE as METRICS
from pappus.trust import RUN_FILE

MOST_RUNS, DEEPEST, MOST_FOLDERS = 1000, 6, 20_000
"""Runs of a folder, levels below it, and folders that are looked into."""
POINTS, BYTES = 500, 4 << 20
"""Of each run among others: points of a curve, and bytes of metrics.jsonl that are read at the first look."""
VALUES = 300_000
"""Of the curves of all runs together."""
MOST_OPEN = 32
"""Runs of a folder whose pages are kept up to date at a time."""
LETTERS = 200
COMPARED = (
    "step", "time", "charts/episodic_return", "eval/", "losses/", "charts/SPS", "cost/wall_seconds", "cost/cpu_seconds",
    "cost/money",
)
"""What metrics begin with that are shown of a run among others."""
ALONE = "all"
"""The group of runs that differ in nothing but their seeds."""


class OneRun:
    """A run directory as a server shows it."""

    def __init__(self, run: FollowedRun) -> None:
        self._run = WatchedRun(run)

    def page(self) -> Page:
        return self._run.page()

    def run(self, name: str) -> WatchedRun | None:
        return None if name else self._run

    def watched(self) -> list[WatchedRun]:
        return [self._run] if self._run.watched else []


class RunsFolder:
    """A folder as a server shows it: a page of all runs, and one for each that is asked for."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._lock, self._reading, self._opening = threading.Lock(), threading.Lock(), threading.Lock()
        self._known: dict[str, FollowedRun] = {}
        self._open: dict[str, WatchedRun] = {}

    def page(self, live: bool = True) -> Page:
        """All runs that are there now."""
        with self._reading:
            runs = dict(find_runs(self.directory))
            self._known = {name: self._looked_at(name, path) for name, path in runs.items()}
            return {"mode": "runs", "live": live, "run": None, "runs": summaries(self._known), "after": ""}

    def run(self, name: str) -> WatchedRun | None:
        """Names are compared and never become paths."""
        known = self._open_run(name)
        if known is not None or not name:
            return known
        with self._opening:  # one at a time: a long run takes a second, and much memory
            path = None if self._open_run(name) else dict(find_runs(self.directory)).get(name)
            run = None if path is None else WatchedRun(FollowedRun(path, shown_as=name))
            with self._lock:
                if run is not None:
                    self._forget()
                    self._open[name] = run
                return self._open.get(name)

    def watched(self) -> list[WatchedRun]:
        with self._lock:
            return [run for run in self._open.values() if run.watched]

    def _open_run(self, name: str) -> WatchedRun | None:
        with self._lock:
            return self._open.get(name)

    def _looked_at(self, name: str, path: Path) -> FollowedRun:
        known = self._known.get(name)
        if known is None:
            return FollowedRun(path, BYTES, lambda: ThinnedCurves(POINTS, COMPARED), shown_as=name)
        known.look()
        return known

    def _forget(self) -> None:
        """Make room for one more run: nobody looks at the oldest."""
        idle = [name for name, run in self._open.items() if not run.watched]
        for name in idle[: max(0, len(self._open) - MOST_OPEN + 1)]:
            del self._open[name]


def is_run(directory: Path) -> bool:
    """Whether a folder is a run directory, be it one that lost its config."""
    return any(reading.stamp(directory / name) is not None for name in (RUN_FILE, METRICS))


def find_runs(directory: Path) -> Iterator[tuple[str, Path]]:
    """Runs below a folder with their names in it, in the order of the names; links are not followed."""
    folders, found, waiting = 0, 0, [(directory, 0)]
    while waiting and folders < MOST_FOLDERS and found < MOST_RUNS:
        folder, depth = waiting.pop()
        folders += 1
        if depth and is_run(folder):
            found += 1
            yield folder.relative_to(directory).as_posix().encode(errors="replace").decode(), folder
        elif depth < DEEPEST:
            waiting += [(inner, depth + 1) for inner in reversed(_folders_in(folder))]


def check_folder(directory: Path) -> None:
    """Raise `UserError` for what is neither a run directory nor a folder with runs."""
    if not directory.is_dir():
        raise UserError(f"{str(directory)!r} is no folder; give a run directory, or a folder of runs: `ls runs`")
    if not is_run(directory) and next(find_runs(directory), None) is None:
        raise UserError(f"{str(directory)!r} holds no run: there is no {RUN_FILE} in it or below; `ls runs`")


def summaries(runs: dict[str, FollowedRun]) -> list[RunSummary]:
    """What is shown of runs beside each other."""
    groups = groups_of([run.settings for run in runs.values()])
    found: list[RunSummary] = []
    for (name, run), group in zip(runs.items(), groups, strict=True):
        document = run.document(VALUES // len(runs))
        found.append({
            "name": name, "group": group, "about": document["about"], "summary": document["summary"],
            "config": run.settings, "curves": document["curves"],
        })
    return found


def groups_of(runs: Sequence[dict[str, Any]]) -> list[str]:
    """For each run what sets it apart from the others, but for the seed: its system and env, where there are several,
    and settings in which it differs from others of its system."""
    apart = [name for name in ("system", "env") if len({shown(settings.get(name)) for settings in runs}) > 1]
    by_system: dict[str, list[int]] = {}
    for i, settings in enumerate(runs):
        by_system.setdefault(shown(settings.get("system")), []).append(i)
    groups = [""] * len(runs)
    for members in by_system.values():
        names = different([(shown(runs[i].get("env")), runs[i]) for i in members])
        for i in members:
            values = [shown(runs[i].get(name)) for name in apart]
            values += [f"{name.replace('_', '-')}={shown(runs[i].get(name))}" for name in names]
            groups[i] = _cut(", ".join(values)) or ALONE
    return groups


def _cut(text: str) -> str:
    """A text of a bounded length, still another one where the whole text is another one."""
    return text if len(text) <= LETTERS else f"{text[:LETTERS]}… {crc32(text.encode(errors='replace')):08x}"


def _folders_in(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(one.path) for one in entries if one.is_dir(follow_symlinks=False))
    except OSError:
        return []
