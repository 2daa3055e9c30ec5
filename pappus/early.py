"""What is wrong with a command, as far as that can be known before torch is loaded: most refusals take no second.

Nothing is decided here: what passes is looked at again with everything loaded, and gets the same sentences.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pappus.config import AlgorithmConfig, RunConfig
from pappus.errors import UserError
from pappus.hooks.find import check_hooks
from pappus.imports import check_there
from pappus.names import PAIRS, check_system, run_file
from pappus.settings import ALIASES, load_file, option_names, parse
from pappus.trace.log import FOLDER
from pappus.transports.addresses import check_page
from pappus.trust import RUN_FILE, is_name
from pappus.validation import NO_DATA, NO_ENV, validate_device_name, validate_numbers

LIKE = 0.75
"""How much of a misspelt option must be right; otherwise one of a system's own may be nearer."""
SOON_READ = 64 << 20
"""Bytes of checkpoints that are checked within a tenth of a second."""
PLAIN = RunConfig(AlgorithmConfig(), actors=0)
"""A run of no system: what all have in common."""


def check_options(
    words: Sequence[str], source: str, of_system: Callable[[], RunConfig] | None = None, always: bool = False
) -> None:
    """Raise `UserError` for a wrong option. Those that only the system's own config knows are looked at where that is
    known without torch; it is made when there are any, or `always`: a file may hold what is wrong."""
    options: list[list[str]] = []
    for word in words:
        if word.startswith("--") or not options:
            options.append([word])
        else:
            options[-1].append(word)
    common = [option for option in options if not option[0].startswith("--") or _is_common(option[0])]
    if of_system is not None and (always or common != options):
        config = parse(of_system(), words, source)
    else:
        config = parse(PLAIN, [word for option in common for word in option], source)
    validate_numbers(replace(config, actors=max(0, config.actors)))  # auto is a negative number
    validate_device_name(config.device)
    check_hooks(config)
    check_page(config.page_server)


def started(name: str, env: str, data: str, file: str, trust: bool) -> Callable[[], RunConfig] | None:
    """What a run of a system of ours starts with; None for others', which may need torch."""
    if not is_ours(name):
        return None

    def config() -> RunConfig:
        from pappus.configured import configured
        from pappus.light import light_system

        return configured(light_system(name), env, {"data": data} if data else {}, Path(file) if file else None, trust)

    return config


def resumed(run: str, trust: bool = True) -> Callable[[], RunConfig] | None:
    """What a run of a system of ours goes on with, if it is trusted; None for others'."""
    if not is_ours(str(load_file(run_file(Path(run))).get("system", ""))):
        return None

    def config() -> RunConfig:
        from pappus.light import light_config

        return light_config(Path(run), trust)

    return config


def check_start(name: str, env: str, data: str, file: str) -> None:
    """Raise `UserError` for a system that there is not, or one that has nothing to learn from."""
    check_name(name)
    if file:
        load_file(Path(file))
    if data:
        from pappus.data.dataset import open_dataset

        open_dataset(data)
    if env or data or file:
        return
    _, at, topology = PAIRS.get(name, name).rpartition("@")
    if at and ":" not in topology:
        raise UserError(NO_DATA.format(name) if topology == "offline" else NO_ENV)


def check_name(name: str) -> None:
    """Raise `UserError` for a system that there is not; in the modules of own ones it is looked up later."""
    for part in name.split("@"):
        if is_name(part):
            check_there(part, "system ")
    check_system(name)
    if is_ours(name) and name not in (*PAIRS, *PAIRS.values()):
        from pappus.light import light_system

        light_system(name)


def check_env_id(env: str, words: Sequence[str]) -> None:
    """Raise `UserError` for an id that Gymnasium does not know, where it is Gymnasium that must know it."""
    elsewhere = any(word.startswith(("--env-options.backend", "--env_options.backend", "--config")) for word in words)
    if env and env != "none" and ":" not in env and not env.startswith("ALE/") and not elsewhere:
        from pappus.envs.gym_backend import find_spec

        find_spec(env, env, [])


def check_folders(run_dir: str, init_from: str) -> None:
    """Raise `UserError` where a new run cannot begin, or for one to begin with that has no weights."""
    from pappus.telemetry.run_folders import check_free, find_checkpoint

    if run_dir:
        check_free(Path(run_dir))
    if init_from:
        find_checkpoint(Path(init_from), "latest")


def check_weights(run: str, checkpoint: str, trust: bool) -> None:
    """Raise `UserError` for a run directory that is none, asks for what is not trusted, or has no such checkpoint."""
    if not is_ours(str(load_file(run_file(Path(run))).get("system", ""))):
        return
    from pappus.light import light_config
    from pappus.telemetry.run_folders import find_checkpoint

    light_config(Path(run), trust)
    find_checkpoint(Path(run), checkpoint)


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


def check_resumable(run: str, trust: bool, words: Sequence[str] = ()) -> None:
    """Raise `UserError` for a run of a system of ours that is not trusted, or cannot go on with these options, and
    `RunError` for one whose checkpoints are all damaged."""
    from pappus.feasible import check_feasible
    from pappus.telemetry.checkpoint import CheckpointStore

    of_system, checkpoints = resumed(run, trust), Path(run) / "checkpoints"
    if of_system is None:
        return
    config = of_system()
    with suppress(OSError):  # a run that still writes removes old ones
        if sum(path.stat().st_size for path in checkpoints.rglob("*") if path.is_file()) <= SOON_READ:
            CheckpointStore(checkpoints).latest()
    check_feasible(parse(config, [word for i, word in enumerate(words) if i or word.startswith("-")]))


def check_new(name: str, env: str, data: str, file: str, trust: bool, words: Sequence[str]) -> None:
    """Raise `UserError` for a new run that cannot be with these options."""
    from pappus.feasible import check_feasible

    check_env_id(env, words)
    of_system = started(name, env, data, file, trust)
    if of_system is not None:
        check_feasible(parse(of_system(), words))


def check_trace(run: str) -> None:
    """Raise `UserError` for a run directory that is none, or has no trace."""
    run_file(Path(run))
    if not (Path(run) / FOLDER / RUN_FILE).is_file():
        raise UserError(f"run {run!r} has no trace; train with --trace to get one")


def is_ours(name: str) -> bool:
    """Whether a system is one of these files, by its name or as a pair."""
    return name in PAIRS or ("@" in name and ":" not in name)


def _is_common(option: str) -> bool:
    """Whether an option is one that all systems have, or is so like one that nothing else can be meant."""
    name = option.removeprefix("--").partition("=")[0].replace("_", "-")
    name = ALIASES.get(name, name)
    if name.startswith(("algorithm.", "topology.")):
        return False
    known = option_names(PLAIN)
    return name.replace("no-", "") in known or bool(difflib.get_close_matches(name, known, cutoff=LIKE))
