"""`pappus train --seeds … --vary …`: several runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pappus.commands.configs import check_feasible, config_of_words
from pappus.commands.words import taken, value_of
from pappus.errors import UserError
from pappus.telemetry.terminal import Terminal

if TYPE_CHECKING:
    from pappus.config import RunConfig
    from pappus.members import Member

BUDGET = "cost.budget"
WITHOUT_PAGE = ("--no-page", "--page-listen=")
"""Members are shown together, by one page."""


def train_population(
    run: str | None, given: dict[str, Any], words: list[str], trust: bool, shown: Terminal
) -> int:
    """Several runs; what is wrong with any of them is said before the first begins."""
    from pappus import members, population

    if run is not None:
        if words or any(value is not None for value in given.values()):
            raise UserError(f"population {run!r} is resumed as it was started; leave the other options out")
        return population.saved_population(Path(run), trust).run(shown)
    if value_of(words, "--seed"):
        raise UserError("--seed and --seeds exclude each other; name all seeds with --seeds")
    shown.say("loading torch", stays=True)
    directory, words = taken(words, "--run-dir")
    seeds = [1] if given["--seeds"] is None else members.seeds_of(given["--seeds"])
    varied = members.varied_by(given["--vary"] or [])
    jobs = population.jobs_of(given["--jobs"])
    if not varied:  # with --vary no run may have just these settings; each is looked at below
        check_feasible(words, trust)
    from pappus.telemetry.processes import usable_cores

    asked = members.members_of(words[0], [*words[1:], *(["--trust"] if trust else [])], seeds, varied)
    runs, configs = settled(asked, varied)
    page = configs[0].page_server if configs[0].has_page else None
    return population.Population(
        population.new_directory(directory["--run-dir"], words[0], configs[0].env), runs,
        jobs or (usable_cores() if all(config.inline for config in configs) else 1), page=page,
    ).run(shown)


def settled(runs: Sequence[Member], varied: Collection[str]) -> tuple[list[Member], list[RunConfig]]:
    """The members with what is chosen for this machine as further words, and the config of each. A budget is for all
    together, in equal parts: seeds that may spend more than others could not be compared."""
    from pappus.beginnings import with_data
    from pappus.machine import chosen_words, fit
    from pappus.validation import validate

    found, configs = [], []
    parts = 1 if {"budget", BUDGET} & set(varied) else len(runs)
    for member, (system, config) in zip(runs, [config_of_words(member.words) for member in runs], strict=True):
        with_all = with_data(config, config.env)[0]
        fitted = fit(with_all, with_all.env, system)[0]
        validate(fitted)
        part = ",".join(f"{name}={limit / parts!r}" for name, limit in config.cost.budget.items())
        own = (*chosen_words(config, fitted), *((f"--{BUDGET}", part) if part else ()))
        found.append(replace(member, words=(*member.words, *own, *(WITHOUT_PAGE if config.has_page else ()))))
        configs.append(fitted)
    return found, configs
