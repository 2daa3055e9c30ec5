"""What a shell completes are the names that there are."""

from __future__ import annotations

import subprocess

import pytest

from pappus.cli import COMMANDS, USAGE
from pappus.completion import commands, script, system_options
from pappus.field_names import OPTIONS, SYSTEMS
from pappus.names import PAIRS


@pytest.mark.parametrize(("words", "expected"), [
    ("pappus tr", "train"), ("pappus train imp", "impala"),
    ("pappus train impala --optimizer.lea", "--optimizer.learning-rate"),
    ("pappus eval --vid", "--video"), ("pappus chaos ppo --minu", "--minutes"), ("pappus push --che", "--checkpoint"),
    ("pappus tune impala --allo", "--allow"), ("pappus train impala --tun", "--tune"),
    ("pappus chaos ppo --algorithm.gae", "--algorithm.gae-lambda"),
])
def test_bash_completes(words: str, expected: str) -> None:
    ask = f"COMP_WORDS=({words}); COMP_CWORD={words.count(' ')}; _pappus; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", script("bash") + ask], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [expected]


def test_every_command_is_completed_and_in_the_usage() -> None:
    assert set(commands()) == set(COMMANDS)
    for name in COMMANDS:
        assert f"pappus {name}" in USAGE and f" {name}" in script("fish").splitlines()[0].replace("'", " ")
    assert script("zsh").startswith("#compdef pappus") and "--steps" in script("zsh")


def test_the_names_of_other_libraries_lead_to_names_of_ours() -> None:
    assert {f"--{name}" for name in OPTIONS.values()} - {"--env"} <= set(system_options())
    assert {system for system, _ in SYSTEMS.values()} <= set(PAIRS) and not set(SYSTEMS) & set(PAIRS)
