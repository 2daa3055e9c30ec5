"""Finished runs, found in folders and grouped by what differs between them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pappus.errors import UserError
from pappus.settings import load_file
from pappus.telemetry.differing import different, flat, shown
from pappus.telemetry.history import GREEDY, TRAINING, History, read_history
from pappus.trust import RUN_FILE
from pappus.types import Array

LONG = 8
"""Letters of a number beyond which it is rounded, where that tells all groups apart."""


@dataclass(frozen=True)
class Run:
    """A run that ended."""

    directory: Path
    settings: Mapping[str, Any]
    """Of its config.yaml, by dotted name."""
    summary: Mapping[str, Any]

    @property
    def system(self) -> str:
        return str(self.settings["system"]).removeprefix("python:")

    @property
    def env(self) -> str:
        return str(self.settings.get("env", ""))

    @cached_property
    def history(self) -> History:
        return read_history(self.directory)

    @property
    def steps(self) -> int:
        return int(self.summary.get("steps", 0))

    @property
    def reached_target(self) -> bool:
        """Whether it ended because it reached its target: then its return counts as constant from there."""
        return self.summary.get("exit_reason") == "target reached"

    def final(self, name: str) -> float | None:
        """The return at the end of the run."""
        value = self.summary.get({GREEDY: "eval_return", TRAINING: "episodic_return"}[name])
        return None if value is None else float(value)

    def curve(self, name: str) -> tuple[Array, Array, Array]:
        """Steps, seconds and values of a return; that of the summary is the last."""
        steps, seconds, values = self.history.points(name)
        final = self.final(name)
        if final is None or (len(values) and values[-1] == final):
            return steps, seconds, values
        end = self.history.seconds[-1] if len(self.history) else float(self.summary.get("train_seconds", 0.0))
        return np.append(steps, self.steps), np.append(seconds, end), np.append(values, final)


@dataclass(frozen=True)
class Group:
    """Runs of one system with the same settings, on one env or several."""

    system: str
    setting: str
    """What differs from other runs of the system; empty where nothing does."""
    runs: Mapping[str, Sequence[Run]]
    """By env."""

    @property
    def name(self) -> str:
        return f"{self.system}, {self.setting}" if self.setting else self.system


def find_runs(paths: Iterable[str]) -> tuple[list[Run], list[str]]:
    """The runs of folders that are runs, populations, or hold such, and what is left out and why."""
    found: dict[Path, Run] = {}
    notes = []
    for text in paths:
        path = Path(text)
        if not path.is_dir():
            raise UserError(f"{text!r} is no folder; give run directories, populations, or folders of them")
        directories = list(_run_directories(path))
        if not directories:
            raise UserError(f"{text!r} holds no run: there is no {RUN_FILE} in it or below")
        for directory in directories:
            run = _read(directory)
            if isinstance(run, Run):
                found[directory.resolve()] = run
            else:
                notes.append(run)
    if not found:
        raise UserError(f"nothing to compare: {notes[0]}")
    return list(found.values()), notes


def groups_of(runs: Sequence[Run]) -> list[Group]:
    """Runs by system and by the settings in which those of a system differ on the same env."""
    by_system: dict[str, list[Run]] = {}
    for run in runs:
        by_system.setdefault(run.system, []).append(run)
    groups = []
    for system, members in by_system.items():
        names = different([(run.env, run.settings) for run in members])
        settings: dict[tuple[str, ...], dict[str, list[Run]]] = {}
        for run in members:
            values = tuple(shown(run.settings.get(name)) for name in names)
            settings.setdefault(values, {}).setdefault(run.env, []).append(run)
        short = {values: tuple(map(_rounded, values)) for values in settings}
        if len(set(short.values())) < len(short):
            short = {values: values for values in settings}
        for values, by_env in settings.items():
            pairs = zip(names, short[values], strict=True)
            text = ", ".join(f"{name.replace('_', '-')}={value}" for name, value in pairs)
            groups.append(Group(system, text, by_env))
    return groups


def _run_directories(path: Path) -> Iterator[Path]:
    """Run directories at a path and below; what lies within one belongs to it."""
    if (path / RUN_FILE).is_file():
        yield path
        return
    for inner in sorted(path.iterdir()):
        if inner.is_dir() and not inner.is_symlink():
            yield from _run_directories(inner)


def _read(directory: Path) -> Run | str:
    """A run, or why it is left out."""
    path = directory / "summary.json"
    if not path.is_file():
        return f"{directory} has not ended: it has no summary.json"
    try:
        summary = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        summary = None
    if not isinstance(summary, dict):
        return f"{directory} has a summary.json that cannot be read"
    if summary.get("exit_reason") == "failed":
        return f"{directory} failed"
    settings = flat(load_file(directory / RUN_FILE))
    if "system" not in settings:
        return f"{directory} has a {RUN_FILE} that is not of a run"
    return Run(directory, settings, summary)


def _rounded(text: str) -> str:
    """A long number with four digits."""
    try:
        return f"{float(text):.4g}" if len(text) > LONG and text.lower() != "infinity" else text
    except ValueError:
        return text
