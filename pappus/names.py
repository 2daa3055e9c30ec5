"""What can be found by name, known without loading any of it: a wrong name is refused before torch is imported."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

from pappus.errors import UserError, closest
from pappus.field_names import our_system
from pappus.trust import RUN_FILE

PAIRS = {
    "impala": "vtrace@impala",
    "seed-vtrace": "vtrace@seed",
    "appo": "appo@impala",
    "seed-appo": "appo@seed",
    "ppo": "ppo@sync",
    "pqn": "pqn@sync",
    "a2c": "a2c@sync",
    "a3c": "a2c@a3c",
    "apex-dqn": "dqn@apex",
    "apex-ddpg": "ddpg@apex",
    "r2d2": "r2d2@apex",
    "seed-r2d2": "r2d2@seed",
    "gorila-dqn": "dqn@gorila",
    "dqn": "dqn@single",
    "ddpg": "ddpg@single",
    "td3": "td3@single",
    "d4pg": "d4pg@single",
    "apex-d4pg": "d4pg@apex",
    "fast-td3": "fast-td3@apex",
    "sac": "sac@single",
    "apex-sac": "sac@apex",
    "crossq": "crossq@single",
    "apex-crossq": "crossq@apex",
    "bc": "bc@offline",
    "filtered-bc": "bc@offline",
    "cql-dqn": "cql-dqn@offline",
    "td3-bc": "td3-bc@offline",
    "rebrac": "rebrac@offline",
    "iql": "iql@offline",
    "awac": "awac@offline",
    "cql": "cql@offline",
}
"""ALGORITHM@TOPOLOGY of every named system; `systems.py` says what each is for."""


def registered_systems() -> dict[str, str]:
    """Systems of installed packages: `module:name` by name."""
    return {entry.name: entry.value for entry in entry_points(group="pappus.systems")}


def check_system(text: str) -> None:
    """Raise `UserError` for a name that no system has; pairs and `module:name` are looked up later."""
    names = [*PAIRS, *registered_systems()]
    if text not in names and "@" not in text and ":" not in text:
        hint = our_system(text) or closest(text, names)
        raise UserError(f"unknown system {text!r}{hint}; `pappus systems` lists them all")


def run_file(directory: Path) -> Path:
    """The config of a run directory; `UserError` where there is none."""
    path = directory / RUN_FILE
    if not path.is_file():
        raise UserError(f"{str(directory)!r} is no run directory: it has no {RUN_FILE}; `ls runs` lists the runs")
    return path
