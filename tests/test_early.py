"""What is refused before torch is loaded, and that nothing is refused then which would be right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from pappus import early
from pappus.config import AUTO
from pappus.names import PAIRS
from pappus.settings import ALIASES
from pappus.systems import SYSTEMS

ROOT = Path(__file__).parents[1]
REFUSED = {
    "frob": "unknown command",
    "train": "which system?",
    "train imapla --env CartPole-v1": "unknown system",
    "train impala": "--env is missing",
    "train ppo@seed": "--env is missing",
    "train bc": "--data is missing: 'bc'",
    "train bc@offline": "--data is missing",
    "train impala stray --env CartPole-v1": "options begin with --; see pappus train impala --help",
    "train impala --env CartPole-v1 --setps 3": "unknown option --setps; did you mean 'steps'?",
    "train impala --env CartPole-v1 --optimizer.learning-rat 3": "did you mean 'optimizer.learning-rate'?",
    "train impala --env CartPole-v1 --steps ten": "--steps='ten' must be a whole number",
    "train impala --env CartPole-v1 --steps -1": "steps=-1 must be at least 1",
    "train impala --env CartPole-v1 --seeds 1,2 --steps -1": "steps=-1 must be at least 1",
    "train impala --env CartPole-v1 --supervision.max-deaths-in-a-row -1": "must not be negative",
    "train impala --env CartPole-v1 --config missing.yaml": "config file 'missing.yaml' cannot be read",
    "train impala --env CartPol-v1 --runtime inline": "env 'CartPol-v1' is no Gymnasium id",
    "train --resume nowhere": "'nowhere' is no run directory",
    "train --resume empty": "'empty' holds no checkpoint to resume from",
    "train --resume empty --config x.yaml": "--config and --resume exclude each other",
    "eval nowhere": "'nowhere' is no run directory",
    "eval garbage": "cannot be read",
    "data record --policy nowhere --out out": "'nowhere' is no run directory",
    "data estimate nowhere --data x": "'nowhere' is no run directory",
    "systems nope": "unknown system 'nope'",
    "check-env nope": "is no Gymnasium id",
    "replay serve": "--config",
}


def test_these_are_refused_before_torch_is_loaded(tmp_path: Path) -> None:
    for name, content in (("empty", b"system: impala\nenv: CartPole-v1\n"), ("garbage", b"\xff\x00")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_bytes(content)
    code = (
        "import json, sys; from pappus.cli import main\n"
        "for line in json.load(sys.stdin):\n"
        "    print(line, '→', main(line.split()), 'torch' in sys.modules, file=sys.stderr)"
    )
    found = subprocess.run(
        [sys.executable, "-P", "-c", code], input=json.dumps(list(REFUSED)), cwd=tmp_path, capture_output=True,
        text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True,
    )
    lines = found.stderr.splitlines()
    assert len(lines) == 2 * len(REFUSED), found.stderr
    for sentence, done, (line, expected) in zip(lines[::2], lines[1::2], REFUSED.items(), strict=True):
        assert expected in sentence and done == f"{line} → 2 False", f"{sentence}\n{done}"


@pytest.mark.parametrize("name", SYSTEMS)
def test_no_option_of_a_system_is_refused_early(name: str) -> None:
    words = [word for option in _options(SYSTEMS[name].defaults) for word in option]
    early.check_options(words, "pappus train")
    for short in ALIASES:
        word = "stop" if short == "on_storage_failure" else "none"
        early.check_options([f"--{short}", word], "pappus train")
    early.check_options(["--actors", "auto"], "pappus train")
    early.check_start(name, "CartPole-v1", "", "")


def test_switches_that_are_turned_off_pass_early() -> None:
    early.check_options(["--optimizer.no-anneal", "--checkpoint.every-seconds=3", "--actors", "4..64"], "pappus train")


@pytest.mark.parametrize("name", ["mine:system", "mine:algorithm@sync", "ppo@mine:topology"])
def test_own_systems_are_looked_up_later(name: str) -> None:
    early.check_start(name, "CartPole-v1", "", "")


def test_every_system_is_known_by_name_and_pair() -> None:
    assert {name: system.pair for name, system in SYSTEMS.items()} == PAIRS


def _options(config: Any, prefix: str = "--") -> list[list[str]]:
    found: list[list[str]] = []
    for item in fields(config):
        value, name = getattr(config, item.name), prefix + item.name.replace("_", "-")
        if is_dataclass(value):
            found += _options(value, f"{name}.")
        elif value not in (None, (), {}, AUTO):
            values = value if isinstance(value, tuple) else (value,)
            found.append([name, *(str(one).lower() if isinstance(one, bool) else str(one) for one in values)])
    return [option for option in found if option[0] not in ("--envs", "--max-envs")]
