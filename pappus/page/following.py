"""A run directory as a document, and what changes in it: of a run that is over or under way, here or elsewhere."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pappus.errors import UserError
from pappus.page import reading
from pappus.page.curves import MOST_VALUES, ThinnedCurves, shown_row
from pappus.page.document import VERSION, About, Changes, ConfigDocument, Now, Phase, RunDocument
from pappus.page.events import EventLog
from pappus.page.tail import Tail
from pappus.page.written import NOW, PROGRAM, Moment, Started
from pappus.settings import load_content
from pappus.telemetry.differing import flat
from pappus.telemetry.history import FILE as METRICS
from pappus.trust import RUN_FILE

MOST_METRICS, MOST_LOG, MOST_CONFIG = 64 << 20, 1 << 20, 1 << 18
"""Bytes of a file that are read at the first look; of the config at all."""
FRESH_SECONDS = 15.0
"""A run lives if it wrote something so lately; one on this machine also while it holds its lock."""
KILLED = "killed: it left no summary"
MANY_ROWS = 60
"""Of more new lines than that the curves are sent anew."""
VIDEOS, FILM = "videos", ".mp4"


class News(NamedTuple):
    """An event for whoever looks: its name and its data."""

    name: str
    data: Any


class FollowedRun:
    """One run directory. Not thread-safe: whoever looks at it holds a lock."""

    def __init__(
        self, directory: Path, most_metrics: int = MOST_METRICS, curves: Callable[[], ThinnedCurves] = ThinnedCurves,
        shown_as: str = "", newest: Callable[[], Moment | None] = lambda: None,
    ) -> None:
        """`newest` is what the run does, where it is this process that runs it."""
        self.directory, self._shown_as, self._newest = directory, shown_as or str(directory), newest
        self._make_curves = curves
        self._metrics, self._log = Tail(directory / METRICS, most_metrics), Tail(directory / "log.txt", MOST_LOG)
        self.curves, self._events = curves(), EventLog()
        self._again = self._back = 0
        self._stamps: dict[str, reading.Stamp | None] = {}
        self._started: Started | None = None
        self._moment: Moment | None = None
        self._summary: dict[str, Any] | None = None
        self._settings: dict[str, Any] = {}
        self._first_line: float | None = None
        self._told: Changes = {}
        self.look()

    def look(self) -> list[News]:
        """What is new since the last look."""
        news = [*self._look_at_files(), *self._look_at_metrics()]
        if events := self._events.add(self._log.lines()):
            news.append(News("events", events))
        now = self._changes()
        changed = {name: value for name, value in now.items() if self._told.get(name) != value}
        before, self._told = self._told, now
        if changed and before:
            over = now["summary"] is not None and before["summary"] is None
            only_about = set(changed) == {"about"}
            news.append(News("phase", now["about"]) if only_about else News("over" if over else "changes", changed))
        return news

    def document(self, most_values: int = MOST_VALUES) -> RunDocument:
        """All that is known, as of the last look, with about so many values of curves at most."""
        parts = self._changes()
        return {
            "version": VERSION, "about": parts["about"], "program": parts["program"], "now": self.now(),
            "curves": self.curves.document(most_values), "evaluations": parts["evaluations"],
            "events": list(self._events.events), "config": parts["config"], "video": parts["video"],
            "summary": parts["summary"],
        }

    def now(self) -> Now | None:
        """What the run does, or did when it was last heard of."""
        return None if self._moment is None else self._moment["now"]

    @property
    def settings(self) -> dict[str, Any]:
        """Its config by dotted name."""
        return self._settings

    def _look_at_files(self) -> list[News]:
        moment = self._moment
        if self._is_new(PROGRAM):
            self._started = reading.shaped(reading.json_of(self.directory / PROGRAM), Started)
            known = self._started["program"]["roles"] if self._started else []
            self._events.roles = {role["name"] for role in known}
        if self._is_new(NOW):
            moment = reading.shaped(reading.json_of(self.directory / NOW), Moment)
        if self._is_new("summary.json"):
            self._summary = reading.mapping_of(self.directory / "summary.json")
        if self._is_new(RUN_FILE):
            self._settings = read_settings(self.directory / RUN_FILE)
        moment = self._newest() or moment
        if moment == self._moment:
            return []
        self._moment = moment
        return [] if moment is None else [News("now", moment["now"])]

    def _look_at_metrics(self) -> list[News]:
        rows = [row for line in self._metrics.lines() if (row := self.curves.add(line)) is not None]
        if rows and self._first_line is None:
            self._first_line = rows[0]["time"]
        if (self._metrics.again, self.curves.back) != (self._again, self._back):
            begun_anew = self._metrics.again != self._again
            self._again, self._back = self._metrics.again, self.curves.back
            if begun_anew:
                self.curves, self._back = self._make_curves(), 0
                for row in rows:
                    self.curves.add_row(row)
            return [News("curves", self.curves.document())]
        if len(rows) > MANY_ROWS:
            return [News("curves", self.curves.document())] if self._told else []
        return [News("rows", {"columns": shown_row(row)}) for row in rows]

    def _is_new(self, name: str) -> bool:
        """Whether a file is another one than at the last look."""
        stamp = reading.stamp(self.directory / name)
        before, self._stamps[name] = self._stamps.get(name), stamp
        return stamp != before

    def _changes(self) -> Changes:
        episodes = reading.finite(self._settings.get("evaluation.episodes"))
        return {
            "about": self._about(), "summary": self._summary, "config": self._config(),
            "program": self._started["program"] if self._started else None, "video": newest_video(self.directory),
            "evaluations": [{**one, "episodes": episodes} for one in self.curves.evaluations],
        }

    def _config(self) -> ConfigDocument:
        return {"resolved": self._settings, "differs": self._started["differs"] if self._started else []}

    def _about(self) -> About:
        summary, settings, live = self._summary or {}, self._settings, self._is_live()
        begun: dict[str, Any] = {} if self._started is None else {**self._started}
        versions = summary.get("versions") or begun.get("versions")
        system = text(settings.get("system") or summary.get("system")).removeprefix("python:")
        return {
            "system": system, "topology": begun.get("topology", ""), "algorithm": begun.get("algorithm", ""),
            "env": text(settings.get("env") or summary.get("env")),
            "seed": reading.finite(settings.get("seed", summary.get("seed"))),
            "steps_asked": reading.finite(settings.get("steps")), "command": begun.get("command", ""),
            "began": begun.get("began", self._first_line), "machine": begun.get("machine", ""),
            "git_hash": text(summary.get("git_hash")) or begun.get("git_hash"),
            "versions": {text(name): text(one) for name, one in versions.items()} if isinstance(versions, dict) else {},
            "directory": self._shown_as, "live": live, "phase": self._phase(live),
            "exit_reason": "" if live else text(summary.get("exit_reason")) or KILLED,
        }

    def _phase(self, live: bool) -> Phase:
        return "over" if not live else self._moment["phase"] if self._moment else "starting"

    def _is_live(self) -> bool:
        if self._summary is not None:
            return False
        stamps = [self._stamps.get(NOW), reading.stamp(self.directory / METRICS), self._stamps.get(RUN_FILE)]
        newest = max((stamp[2] / 1e9 for stamp in stamps if stamp is not None), default=0.0)
        return time.time() - newest < FRESH_SECONDS or is_held(self.directory / "lock")


def text(value: object) -> str:
    """Of a summary or a config, which may hold anything."""
    return reading.shortened(value, 1000) if isinstance(value, str) else ""


def read_settings(path: Path) -> dict[str, Any]:
    """A config by dotted name; empty where it cannot be read."""
    content = reading.content(path, MOST_CONFIG)
    if content is None:
        return {}
    try:
        found = reading.plain(load_content(lambda: content, path))
    except UserError:
        return {}
    return flat(found)


def newest_video(directory: Path) -> str | None:
    """The film that was made last, relative to the run directory."""
    films: list[tuple[int, str]] = []
    with contextlib.suppress(OSError), os.scandir(directory / VIDEOS) as entries:
        for entry in entries:
            if entry.name.endswith(FILM) and entry.is_file(follow_symlinks=False):
                films.append((entry.stat(follow_symlinks=False).st_mtime_ns, entry.name))
    return f"{VIDEOS}/{max(films)[1]}" if films else None


def is_held(lock: Path) -> bool:
    """Whether a process of this machine holds the lock of a run, found out without taking it."""
    try:
        status = os.lstat(lock)
        held = Path("/proc/locks").read_text()
    except (OSError, ValueError):
        return False
    place = f" {os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino} "
    return place in held
