"""Run directories as runs leave them, made by hand."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tests.page.fake import BEGAN, fake_now, fake_program


def write_run(directory: Path, lines: int = 5, over: bool = True, **settings: Any) -> Path:
    """A run directory with so many lines of metrics, every one a second and 100 steps after the other."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {"system": "impala", "env": "CartPole-v1", "seed": 1, "steps": 1000, "evaluation": {"episodes": 7}}
    (directory / "config.yaml").write_text(json.dumps(config | settings))
    add_lines(directory, range(1, lines + 1))
    (directory / "log.txt").write_text("2026-11-19 03:00:00 begins\n2026-11-19 03:00:01 learner: died\n    traceback\n")
    if over:
        end(directory)
    return directory


def add_lines(directory: Path, numbers: range | list[int], **metrics: Any) -> None:
    with (directory / "metrics.jsonl").open("a") as file:
        for number in numbers:
            line = {"step": 100 * number, "time": BEGAN + number, "losses/value": 1 / number, **metrics}
            file.write(json.dumps(line) + "\n")


def end(directory: Path) -> None:
    summary = {"system": "impala", "env": "CartPole-v1", "seed": 1, "exit_reason": "steps done", "steps": 500}
    (directory / "summary.json").write_text(json.dumps(summary))


def write_program(directory: Path, actors: int = 2) -> None:
    """What a run writes for pages."""
    program = fake_program(actors)
    started = {
        "version": 1, "topology": "impala", "algorithm": "vtrace", "command": "pappus train impala", "began": BEGAN,
        "machine": "2 cores", "git_hash": None, "versions": {"python": "3"}, "program": program,
        "differs": [{"name": "steps", "preset": 10, "value": 1000}],
    }
    (directory / "program.json").write_text(json.dumps(started))
    moment = {"version": 1, "phase": "running", "now": fake_now(random.Random(0), program, 500)}
    (directory / "now.json").write_text(json.dumps(moment))
