"""`pappus sweep`: its options, what is checked before it begins, and what it prints."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pappus.arguments import TRUST_HELP, Parser
from pappus.config import RunConfig
from pappus.errors import UserError
from pappus.members import seeds_of
from pappus.sweeping.objective import Objective
from pappus.sweeping.page import head, line_of, text_page, write_pages
from pappus.sweeping.plan import FILE, Plan, saved_plan
from pappus.sweeping.result import Verdict, judge, write_preset
from pappus.sweeping.space import Parameter, checked, read_space, refuse_repeated
from pappus.sweeping.study import PRUNERS, SAMPLERS, Study, Trial, check_sampler, imported_optuna
from pappus.sweeping.sweep import Sweep
from pappus.telemetry.files import locked
from pappus.trust import RUN_FILE, check_trust, remember

NOT_TAKEN = {
    "--seed": "give the seeds of every trial with --seeds", "--vary": "name the option in the space",
    "--config": "give its settings as options", "--trace": "trace a run with the settings that it finds",
    "--record": "record a run with the settings that it finds",
    **dict.fromkeys(
        ("--page", "--page-listen", "--page-server.listen"), "look at its trials with pappus page and its directory"
    ),
}


@dataclass(frozen=True)
class Options:
    """What the command adds to those of `pappus train`."""

    space: Path
    trials: int
    jobs: int
    kind: str
    target: float | None
    seeds: tuple[int, ...]
    held_out: tuple[int, ...]
    sampler: str
    pruner: str
    rungs: int
    seed: int
    run_dir: str


def parse(words: Sequence[str]) -> tuple[Options | str, bool, list[str]]:
    """The options of a new sweep or the directory of a resumed one, whether that is trusted, and the remaining
    words, for the runs."""
    parser = Parser(
        prog="pappus sweep", description="Search settings by many short runs; other options are those of pappus train.",
        allow_abbrev=False,
    )
    parser.add_argument("--space", metavar="FILE", help="YAML file with the options to vary and their ranges")
    parser.add_argument("--trials", type=int, default=30, help="number of trials (default: 30)")
    parser.add_argument("--jobs", type=int, default=1, help="parallel runs (default: 1)")
    parser.add_argument(
        "--objective", choices=["auto", "steps", "return"], default="auto",
        help="fewest steps to --target-return, or highest greedy return at the end (default: steps with a target)",
    )
    parser.add_argument("--target-return", type=float, metavar="R", help="return at which a run has solved its task")
    parser.add_argument("--seeds", default="1", help="seeds of each trial, such as 1..3 (default: 1)")
    parser.add_argument("--held-out", default="101..105", help="seeds that evaluate the best trial (default: 101..105)")
    parser.add_argument("--sampler", choices=SAMPLERS, default="tpe", help="Optuna sampler (default: tpe)")
    parser.add_argument("--pruner", choices=PRUNERS, default="median", help="Optuna pruner (default: median)")
    parser.add_argument("--rungs", type=int, default=20, help="points at which trials are compared (default: 20)")
    parser.add_argument("--sampler-seed", type=int, default=1, help="seed of the sampler (default: 1)")
    parser.add_argument("--run-dir", default="", help="the sweep's directory (default: runs/SYSTEM-ENV-sweep-TIME)")
    parser.add_argument("--resume", metavar="DIR", help="resume the sweep in this directory")
    parser.add_argument("--trust", action="store_true", help=TRUST_HELP)
    given, rest = parser.parse_known_args(words)
    if given.resume:
        if rest or given.space:
            raise UserError(f"sweep {given.resume!r} is resumed as it was started; leave the other options out")
        return given.resume, given.trust, []
    return _options(given), given.trust, rest


def _options(given: Any) -> Options:
    if not given.space:
        raise UserError("--space is missing; give a YAML file with the options that vary: docs/guide/sweeps.md")
    for name in ("trials", "jobs", "rungs"):
        if getattr(given, name) < 1:
            raise UserError(f"--{name} {getattr(given, name)} must be at least 1")
    kind = given.objective
    if kind == "auto":
        kind = "return" if given.target_return is None else "steps"
    if kind == "steps" and given.target_return is None:
        raise UserError("--objective steps needs --target-return R, the return to reach")
    if kind == "return" and given.target_return is not None:
        raise UserError("--objective return and --target-return exclude each other: a run would end at the target")
    seeds, held_out = (tuple(seeds_of(text)) for text in (given.seeds, given.held_out))
    if both := set(seeds) & set(held_out):
        raise UserError(f"--held-out {given.held_out} and --seeds share seed {min(both)}; trials must not use it")
    return Options(
        Path(given.space), given.trials, given.jobs, kind, given.target_return, seeds, held_out, given.sampler,
        given.pruner, given.rungs, given.sampler_seed, given.run_dir,
    )


def check_early(options: Options, words: Sequence[str]) -> None:
    """Raise `UserError` for what can be known without the system."""
    for option, instead in NOT_TAKEN.items():
        if any(word.partition("=")[0] == option for word in words):
            raise UserError(f"pappus sweep takes no {option}; {instead}")
    if "ray" in words and not any(word.partition("=")[0] in ("--address", "--cluster.address") for word in words):
        raise UserError("a sweep on ray needs --address, such as auto: its trials share one running cluster")
    read_space(options.space)
    imported_optuna()
    check_sampler(options.sampler)
    if options.run_dir:
        new_directory(options.run_dir, "", "")


def check_space(options: Options, words: Sequence[str], config: RunConfig) -> list[Parameter]:
    """The space as the system's options take it."""
    space = checked(read_space(options.space), options.space, config)
    refuse_repeated(space, words)
    return space


def plan_of(options: Options, words: Sequence[str], config: RunConfig) -> Plan:
    """The plan that the options and the resolved config mean."""
    space = check_space(options, words, config)
    target = [] if options.target is None else ["--target-return", f"{options.target:g}"]
    objective = Objective(
        "steps" if options.kind == "steps" else "return", config.steps, options.target, options.rungs,
        bool(config.evaluation.every_steps),
    )
    defaults = {one.name: value for one in space if (value := one.default(config)) is not None}
    return Plan(
        words[0], config.env, (*words, *target), tuple(space), defaults, objective, options.trials, options.jobs,
        options.seeds, options.held_out, options.sampler, options.pruner, options.seed,
    )


def begin(options: Options, plan: Plan) -> int:
    """Begin a sweep in a fresh directory; the exit code."""
    directory = new_directory(options.run_dir, plan.system, plan.env)
    directory.mkdir(parents=True, exist_ok=True)
    plan.save(directory)
    remember([plan.asked])
    with locked(directory):
        study = _study(directory, plan)
        if len(plan.defaults) == len(plan.space):
            study.begin_with(plan.defaults)
        return _run(directory, plan, study)


def go_on(run: str, trust: bool) -> int:
    """Resume a sweep; the exit code."""
    directory = Path(run).resolve()
    plan = saved_plan(directory)
    if not trust:
        check_trust(f"sweep {run!r}", [plan.asked])
    with locked(directory):
        return _run(directory, plan, _study(directory, plan), trust)


def new_directory(given: str, system: str, env: str) -> Path:
    """A fresh folder for a sweep; one that holds runs already is refused."""
    name = f"{system}-{re.sub('[/:]', '-', env)}-sweep-{time.strftime('%Y%m%d-%H%M%S')}"
    directory = Path(given or Path("runs") / name).resolve()
    if any((directory / file).exists() for file in (FILE, RUN_FILE, "population.json")):
        raise UserError(f"run_dir={str(directory)!r} holds runs already; give another, or --resume {directory}")
    return directory


def _study(directory: Path, plan: Plan) -> Study:
    return Study(
        directory, plan.space, plan.objective.minimises, plan.sampler, plan.pruner, plan.seed, plan.objective.rungs
    )


def _run(directory: Path, plan: Plan, study: Study, trust: bool = False) -> int:
    print(f"{head(plan, study.trials())} → {directory}", flush=True)

    def ended(study: Study, trial: Trial) -> None:
        best = study.best
        print(line_of(plan, trial, best), flush=True)
        write_pages(directory, plan, study.trials(), best, None)

    if not Sweep(directory, plan, study, ended, trust).run():
        print(f"resume with pappus sweep --resume {directory}")
        return 130
    best, verdict = study.best, None
    if best is not None and best.values != plan.defaults:
        print(f"best: trial {best.number}; evaluating it and the defaults on held-out seeds", flush=True)
        verdict, code = judge(directory, plan, best, trust)
        if verdict is None:
            print(f"resume with pappus sweep --resume {directory}")
            return code
    return _report(directory, plan, study, verdict)


def _report(directory: Path, plan: Plan, study: Study, verdict: Verdict | None) -> int:
    best, trials = study.best, study.trials()
    write_pages(directory, plan, trials, best, verdict)
    print("", text_page(plan, trials, best, verdict), "", sep="\n")
    if best is None:
        print("no trial was completed, so there is no result")
        return 1
    if verdict is None:
        print("the defaults are the best of these settings")
    else:
        path = write_preset(directory, plan, best, verdict)
        print(f"settings  {path}\n  use     pappus train {plan.system} --env {plan.env} --config {path}")
    print(f"page      {directory / 'study.html'}")
    return 0
