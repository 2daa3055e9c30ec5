"""What is wrong with a command, as far as that can be known before torch is loaded: most refusals take no second.

Nothing is decided here: what passes is looked at again with everything loaded, and gets the same sentences.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pappus.config import AlgorithmConfig, RunConfig
from pappus.errors import UserError
from pappus.names import PAIRS, check_system, run_file
from pappus.settings import ALIASES, load_file, option_names, parse
from pappus.trace.log import FOLDER
from pappus.trust import RUN_FILE
from pappus.validation import NO_DATA, NO_ENV, validate_numbers

LIKE = 0.75
"""How much of a misspelt option must be right; otherwise one of a system's own may be nearer."""
PLAIN = RunConfig(AlgorithmConfig(), actors=0)
"""A run of no system: what all have in common."""


def check_options(words: Sequence[str], source: str) -> None:
    """Raise `UserError` for a wrong option, unless only the system's own config knows it."""
    options: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not options:
            options.append([word])
        else:
            options[-1].append(word)
    strays = [option for option in options if not option[0].startswith("--")]
    kept = [word for option in options if option in strays or _is_common(option[0]) for word in option]
    config = parse(PLAIN, kept, source)
    validate_numbers(replace(config, actors=max(0, config.actors)))  # auto is a negative number


def check_start(name: str, env: str, data: str, file: str) -> None:
    """Raise `UserError` for a system that there is not, or one that has nothing to learn from."""
    check_system(name)
    if file:
        load_file(Path(file))
    if env or data or file:
        return
    _, at, topology = PAIRS.get(name, name).rpartition("@")
    if at and ":" not in topology:
        raise UserError(NO_DATA.format(name) if topology == "offline" else NO_ENV)


def check_env_id(env: str, words: Sequence[str]) -> None:
    """Raise `UserError` for an id that Gymnasium does not know, where it is Gymnasium that must know it."""
    elsewhere = any(word.startswith(("--env-options.backend", "--env_options.backend", "--config")) for word in words)
    if env and env != "none" and ":" not in env and not env.startswith("ALE/") and not elsewhere:
        from pappus.envs.gym_backend import find_spec

        find_spec(env, env, [])


def check_run(run: str, resume: bool = False) -> None:
    """Raise `UserError` for a run directory that is none, or from which nothing can be resumed."""
    from pappus.telemetry.checkpoint import fallback_of, has_checkpoint, no_checkpoint
    from pappus.telemetry.files import locked

    directory, written = Path(run), load_file(run_file(Path(run)))
    if not resume or has_checkpoint(directory / "checkpoints"):
        return
    with locked(directory):  # a run that has just begun has no checkpoint yet
        fallback = fallback_of(directory, written)
    if fallback is None or not has_checkpoint(fallback / "checkpoints"):
        raise no_checkpoint(directory)


def check_trace(run: str) -> None:
    """Raise `UserError` for a run directory that is none, or has no trace."""
    run_file(Path(run))
    if not (Path(run) / FOLDER / RUN_FILE).is_file():
        raise UserError(f"run {run!r} has no trace; train with --trace to get one")


def _is_common(option: str) -> bool:
    """Whether an option is one that all systems have, or is so like one that nothing else can be meant."""
    name = option.removeprefix("--").partition("=")[0].replace("_", "-")
    name = ALIASES.get(name, name)
    if name.startswith(("algorithm.", "topology.")):
        return False
    known = option_names(PLAIN)
    return name.replace("no-", "") in known or bool(difflib.get_close_matches(name, known, cutoff=LIKE))
