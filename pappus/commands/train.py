"""`pappus train`: a run, or several; anew, or on from a checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pappus.commands.configs import check_early, check_feasible, config_of_words, resumed_config, with_system
from pappus.commands.words import asks_for_help, taken, value_of
from pappus.errors import INCOMPLETE, UserError
from pappus.telemetry.terminal import STYLES, Terminal, style_of, terminal
from pappus.trace.products import same_products

if TYPE_CHECKING:
    from pappus.config import RunConfig
    from pappus.system import System

RESUME_OR_START = "--resume-or-start"
TUNE, PLAN = "--tune", "--plan"


def main(words: list[str], began: float) -> int:
    if RESUME_OR_START in words:
        return _resume_or_start([word for word in words if word != RESUME_OR_START], began)
    if TUNE in words:
        words, code = _tuned([word for word in words if word != TUNE], began)
        if code:
            return code
    style, words = style_of(words)
    with terminal(style) as shown:
        return _shown(with_system(words), began, shown)


def _tuned(words: list[str], began: float) -> tuple[list[str], int]:
    """The words with what is fast here, and the exit code of finding out."""
    if asks_for_help(words):
        return words, 0
    if PLAN in words:
        raise UserError(f"{PLAN} is of what would run now, which {TUNE} is to find; leave one of them out")
    from pappus.commands.tune import found_for

    found, code = found_for(words, began)
    return [*words, *found], code


def _shown(words: list[str], began: float, shown: Terminal) -> int:
    planned, words = PLAN in words, [word for word in words if word != PLAN]
    given, rest = taken(words, "--resume", "--seeds", "--vary", "--jobs", "--trust")
    run, trust = given.pop("--resume"), given.pop("--trust")
    if trust and run is None and not value_of(words, "--config"):
        raise UserError("--trust is for what a run directory names; give it with --resume or --config")
    several, helps = any(value is not None for value in given.values()), asks_for_help(words)
    begun = bool(run) and (Path(run) / "population.json").is_file()
    if not helps and not begun:
        check_early(run, rest, trust, several)
        shown.title = run or " · ".join(one for one in (rest[0], value_of(rest, "--env")) if one)
    if planned and (several or begun or run is not None):
        raise UserError("--plan is for one new run; leave --seeds, --vary and --resume out")
    if several or begun:
        from pappus.commands.population import train_population

        return train_population(run, given, rest, trust, shown)
    if not helps:
        _load(words, rest, run, trust, planned, shown)
    system, config = config_of_words(words) if run is None else resumed_config(run, rest, trust)
    if planned:
        return _plan(system, config, shown)
    from pappus import api

    shown.say("preparing the run")
    directory = None if run is None else Path(run).resolve()
    result = api.execute(config, config.env, directory, began, system, terminal=shown)
    if result.summary.exit_reason == "interrupted":
        return 130
    return 0 if result.complete and result.summary.exit_reason != "storage failed" else INCOMPLETE


def _load(words: list[str], rest: list[str], run: str | None, trust: bool, planned: bool, shown: Terminal) -> None:
    """Refuse what cannot be trained while a fork server loads what all roles need."""
    from pappus.runtimes.forkserver import ForkServer

    if "--trace" in words:
        same_products()
    if value_of(words, "--runtime") not in ("inline", "ray") and not planned:
        ForkServer.prestart()
    try:
        shown.say("loading")
        check_feasible(rest, trust, run)
    except UserError:
        ForkServer.discard()  # a command that is refused leaves nothing that still starts
        raise
    shown.say("loading torch", stays=not planned)


def _plan(system: System, config: RunConfig, shown: Terminal) -> int:
    """Print what memory the run would take; `UserError` where it does not fit."""
    from pappus.execution.description import plan_memory

    plan = plan_memory(config, config.env, system)
    shown.clear()
    if shown.style == "json":
        shown.object("plan", **plan.to_dict())
    else:
        shown.print("\n".join(plan.lines()))
    plan.check()
    return 0


def _resume_or_start(words: list[str], began: float) -> int:
    """Whatever became of a run, the same command leads to its end: schedulers repeat it after each preemption."""
    given, rest = taken(words, "--run-dir", "--resume", "--config", "--trust")
    if asks_for_help(words):
        return main(words, began)
    if TUNE in words:
        raise UserError(f"{RESUME_OR_START} may continue a run, which {TUNE} cannot change; use pappus tune before it")
    if "--trace" in words:
        raise UserError(f"--trace records a run from its beginning, which {RESUME_OR_START} may continue; leave it out")
    if not given["--run-dir"] or given["--resume"]:
        raise UserError(f"{RESUME_OR_START} finds its run by --run-dir DIR alone; give that, and leave --resume out")
    from pappus.continuing import Beginning, done

    beginning, directory = Beginning.of(Path(given["--run-dir"])), given["--run-dir"]
    trust = ["--trust"] if given["--trust"] else []
    if beginning is Beginning.POPULATION:
        return main(["--resume", directory, *trust, *(word for word in words if word in STYLES)], began)
    if beginning is Beginning.NOTHING:
        started = [word for word in words if word != "--trust"]  # nothing of a stranger is there
        return main([*started, *trust] if given["--config"] else started, began)
    plain = style_of(list(rest))[1]
    outcome = done(Path(directory), resumed_config(directory, plain, bool(trust))[1])
    if outcome:
        file = sys.stdout if style_of(words)[0] == "shown" else sys.stderr
        print(f"pappus: {directory} is finished: {outcome}; nothing is left to do", file=file)
        return 0
    return main([*rest, "--resume", directory, *trust], began)
