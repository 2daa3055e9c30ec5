"""The system and the config that the words of a command mean, and what of them is refused before torch is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pappus import early
from pappus.commands.words import HELP, taken, value_of
from pappus.errors import UserError

if TYPE_CHECKING:
    from pappus.config import RunConfig
    from pappus.system import System


def with_system(words: list[str]) -> list[str]:
    """The words with the system that `--config` names, where they name none: a run's config.yaml is enough."""
    file = value_of(words, "--config")
    if not file or value_of(words, "--resume") or (words and not words[0].startswith("-")):
        return words
    from pappus.settings import load_file

    name = str(load_file(Path(file)).get("system", ""))
    if not early.is_ours(name):  # a stranger's file names no code
        return words
    return [name, *words]


def check_early(run: str | None, words: list[str], trust: bool, several: bool) -> None:
    """Refuse what can be refused before torch is loaded."""
    if run is not None and value_of(words, "--config"):
        raise UserError("--config and --resume exclude each other: a run continues with its own config.yaml")
    if run is not None:
        early.check_run(run, resume=True)
        options = [word for i, word in enumerate(words) if i or word.startswith("-")]
        early.check_options(options, "pappus train", early.resumed(run))
        return
    if not words or words[0].startswith("-"):
        raise UserError("which system? write pappus train SYSTEM --env ID; `pappus systems` lists them all")
    if value_of(words, "--system"):
        raise UserError("--system is no option; write the system's name: pappus train SYSTEM --env ID")
    start = (words[0], value_of(words, "--env"), value_of(words, "--data"), value_of(words, "--config"))
    early.check_start(*start)
    options = taken(words[1:], "--config")[1]
    early.check_options(options, f"pappus train {words[0]}", early.started(*start, trust), always=bool(start[-1]))
    early.check_folders("" if several else value_of(words, "--run-dir"), value_of(words, "--init-from"))


def check_feasible(words: list[str], trust: bool, run: str | None = None) -> None:
    """Refuse what cannot be trained, before torch is loaded here: a fork server may load it meanwhile."""
    if run is not None:
        early.check_resumable(run, trust, words)
        return
    start = (words[0], value_of(words, "--env"), value_of(words, "--data"), value_of(words, "--config"))
    early.check_new(*start, trust, taken(words[1:], "--config")[1])


def resumed_config(run: str, words: list[str], trust: bool) -> tuple[System, RunConfig]:
    """The system and the config of a run that continues with other words."""
    from pappus.configured import same_system
    from pappus.settings import parse
    from pappus.systems import saved_config

    name = words.pop(0) if words and not words[0].startswith("-") else ""
    system, config = saved_config(Path(run), trust=trust, without=())
    if name and name != config.system:
        raise UserError(f"run {run!r} is of system {config.system!r}, not {name!r}; leave the name out")
    return system, same_system(parse(config, words), system)


def config_of_words(words: Sequence[str]) -> tuple[System, RunConfig]:
    """The system and the config that the words of a command mean."""
    from pappus import api
    from pappus.settings import load_file, parse
    from pappus.systems import find_system

    given, rest = taken(words, "--config", "--trust")
    if not rest or rest[0].startswith("-"):
        raise UserError("which system? write pappus train SYSTEM --env ID; `pappus systems` lists them all")
    name, *rest = rest
    file = Path(given["--config"]) if given["--config"] else None
    asked, plain = find_system(name), [word for word in rest if word not in HELP]

    def config_of(system: System, words: Sequence[str]) -> RunConfig:
        data = {"data": value} if (value := value_of(words, "--data")) else {}
        called = name if system.found_as == asked.found_as else system.pair
        resolved = api.configure(system, value_of(words, "--env"), data, file, given["--trust"])
        return parse(resolved, words, f"pappus train {called}")

    words_given = [word[2:].partition("=")[0] for word in rest if word.startswith("--")]
    written = load_file(file) if file is not None else {}
    try:
        system = api.system_here(name, config_of(asked, plain), [*words_given, *written])
    except UserError:
        if plain == rest:
            raise
        system = asked  # help is given beside words that are wrong, too
    return system, config_of(system, rest)
