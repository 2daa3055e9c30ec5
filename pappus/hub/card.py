"""The model card of a run: README.md as model hubs show it, made from what the run directory says."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pappus.errors import UserError
from pappus.names import run_file
from pappus.ops.intervals import half_interval_of
from pappus.settings import load_file
from pappus.telemetry.checkpoint import read_manifest
from pappus.telemetry.files import write_text

CARD, LIBRARY = "README.md", "pappus"
ROWS = 12
"""Maximum number of evaluations in the card's table."""


@dataclass(frozen=True)
class Evaluated:
    """One greedy evaluation."""

    step: int
    mean: float
    deviation: float | None
    episodes: int

    def __str__(self) -> str:
        if self.deviation is None or self.episodes < 2:
            return f"{self.mean:,.2f}"
        sample = self.deviation * math.sqrt(self.episodes / (self.episodes - 1))
        return f"{self.mean:,.2f} ± {half_interval_of(sample, self.episodes):,.2f}"


@dataclass(frozen=True)
class About:
    """What a run directory says of one of its checkpoints."""

    config: Mapping[str, Any]
    summary: Mapping[str, Any]
    manifest: Mapping[str, Any]
    evaluations: Sequence[Evaluated]

    @classmethod
    def of(cls, run: Path, checkpoint: Path) -> About:
        config = load_file(run_file(run))
        summary: Any = {}
        with suppress(OSError, ValueError):  # a run that was killed has none
            summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
        asked = config.get("evaluation")
        episodes = asked.get("episodes", 0) if isinstance(asked, dict) else 0
        found = evaluations(run / "metrics.jsonl", episodes if isinstance(episodes, int) else 0)
        return cls(config, summary if isinstance(summary, dict) else {}, read_manifest(checkpoint), found)

    @property
    def step(self) -> int:
        return int(self.manifest["step"])

    @property
    def evaluated(self) -> Evaluated | None:
        """The evaluation nearest to the checkpoint."""
        return min(self.evaluations, key=lambda one: abs(one.step - self.step), default=None)


def evaluations(path: Path, episodes: int) -> list[Evaluated]:
    """All greedy evaluations in a metrics.jsonl, in order; lines that are damaged are left out."""
    found = []
    with suppress(OSError, UnicodeDecodeError):
        for line in path.read_text(encoding="utf-8").splitlines():
            with suppress(ValueError, TypeError, KeyError, AttributeError):
                row = json.loads(line)
                if "eval/episodic_return" in row:
                    deviation = row.get("eval/episodic_return_std")
                    spread = None if deviation is None else float(deviation)
                    found.append(Evaluated(int(row["step"]), float(row["eval/episodic_return"]), spread, episodes))
    return found


def write_card(folder: Path, about: About, files: Mapping[str, str]) -> None:
    """Write the card of a folder with these files; `UserError` for a README.md that Pappus did not write."""
    check_card(folder)
    write_text(folder / CARD, card(about, files))


def has_card(folder: Path) -> bool:
    """Whether a folder has a card that Pappus wrote."""
    path = folder / CARD
    return path.is_file() and f"library_name: {LIBRARY}\n" in path.read_text(encoding="utf-8", errors="replace")


def check_card(folder: Path) -> None:
    """Raise `UserError` for a README.md that Pappus did not write."""
    path = folder / CARD
    if path.exists() and not has_card(folder):
        raise UserError(f"{str(path)!r} was not written by Pappus and would be overwritten; give another folder")


def card(about: About, files: Mapping[str, str]) -> str:
    """The text of a card; `files` says what is in each file beside it."""
    config, system = about.config, _text(about.config.get("system"))
    env = _text(about.config.get("env"))
    evaluated = about.evaluated
    parts = [
        f"---\n{yaml.safe_dump(_front(about, system, env), sort_keys=False, allow_unicode=True)}---",
        f"# {system} on {env}",
        f"A policy that Pappus trained. Greedy return: {evaluated or 'not evaluated'}"
        + (f" (mean and 95 % interval of {evaluated.episodes} episodes)." if evaluated else "."),
        _table(("", ""), [(name, value) for name, value in _facts(about).items() if value]),
    ]
    if about.evaluations:
        rows = [(f"{one.step:,}", str(one)) for one in _some(about.evaluations)]
        parts += ["## Learning curve", _table(("steps", "greedy return"), rows)]
    if files:
        parts += ["## Files", _table(("file", "what it is"), [(f"`{name}`", text) for name, text in files.items()])]
    words = ["pappus", "train", system, "--env", env, "--seed", _text(config.get("seed")), "--config", "config.yaml"]
    parts += ["## Reproduce", f"```sh\n{shlex.join(words)} --run-dir again\n```"]
    return "\n\n".join(parts) + "\n"


def _front(about: About, system: str, env: str) -> dict[str, Any]:
    """What hubs read."""
    front: dict[str, Any] = {"library_name": LIBRARY, "tags": ["reinforcement-learning", LIBRARY, system, env]}
    if about.evaluated is None:
        return front
    metric = {"type": "mean_reward", "name": "mean_reward", "value": str(about.evaluated), "verified": False}
    task = {"type": "reinforcement-learning", "name": "reinforcement-learning"}
    result = {"task": task, "dataset": {"name": env, "type": env}, "metrics": [metric]}
    return {**front, "model-index": [{"name": system, "results": [result]}]}


def _facts(about: About) -> dict[str, str]:
    versions = about.manifest.get("versions")
    written = ", ".join(f"{name} {value}" for name, value in versions.items()) if isinstance(versions, dict) else ""
    return {
        "system": _text(about.config.get("system")), "env": _text(about.config.get("env")),
        "seed": _text(about.config.get("seed")), "steps": f"{about.step:,}",
        "updates": _text(about.manifest["metadata"].get("updates")),
        "seconds of training": _text(about.manifest["metadata"].get("train_seconds")),
        "commit": _text(about.summary.get("git_hash") or ""), "versions": written,
    }


def _some(evaluations: Sequence[Evaluated]) -> list[Evaluated]:
    """A selection that fits into the table, including the first and the last."""
    if len(evaluations) <= ROWS:
        return list(evaluations)
    return [evaluations[round(i * (len(evaluations) - 1) / (ROWS - 1))] for i in range(ROWS)]


def _table(head: tuple[str, str], rows: Sequence[tuple[str, str]]) -> str:
    lines = [head, ("---", "---"), *rows]
    return "\n".join(f"| {one.replace('|', '/')} | {two.replace('|', '/')} |" for one, two in lines)


def _text(value: Any) -> str:
    """One line of plain text, whatever a run directory says."""
    return " ".join(f"{value:,.0f}".split() if isinstance(value, float) else str(value).split())[:200].replace("`", "'")
