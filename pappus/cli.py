"""Commands: train, eval, verify, serve, actor, chaos, replay-run, replay, data … Wrong input: a sentence, code 2."""

from __future__ import annotations

import atexit
import contextlib
import gc
import math
import os
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pappus import early
from pappus.arguments import TRUST_HELP, Parser, whole
from pappus.errors import INCOMPLETE, PappusError, UserError, closest, install_line
from pappus.telemetry.terminal import STYLES, Terminal, style_of, terminal
from pappus.trace.products import same_products

if TYPE_CHECKING:
    from pappus.config import RunConfig
    from pappus.system import System
    from pappus.tuning.command import Options as TuningOptions

USAGE = """\
pappus train SYSTEM --env ID [options]    train an agent (pappus train SYSTEM --help lists every option); SYSTEM is a
                                          name, ALGORITHM@TOPOLOGY, or your own module:name
pappus train SYSTEM … --seeds 1..5        several runs side by side (also --vary NAME=VALUE,VALUE and --jobs N)
pappus train SYSTEM … --quiet             nothing but errors and the result; --json: for programs, an object per line
pappus train --resume RUN [options]       continue from the newest checkpoint (--trust: whoever made it)
pappus train SYSTEM … --plan              print what memory the run would take, and end
pappus train SYSTEM … --tune              find out what is fast here for a minute, then train with that
pappus train SYSTEM … --resume-or-start   the same command starts a run in --run-dir, continues it, or finds it finished
pappus eval RUN [--episodes N]            play greedily (--video DIR records it, --checkpoint best|latest)
pappus verify RUN [--from step-…]         re-run from a checkpoint to the next one, and compare the hashes of all state
pappus serve SYSTEM --env-spec FILE       train from simulators that connect (--listen ADDRESS, default 127.0.0.1:0)
pappus actor --connect ADDRESS --env ID   step envs for a run elsewhere that listens
pappus chaos SYSTEM --env ID --minutes M  train, and hurt the run meanwhile: kills, hangs, full disks … and a report
pappus replay-run RUN                     repeat a run that was trained with --trace, in one thread
pappus replay serve --config FILE         tables of experience for whoever connects (docs/concepts/replay.md)
pappus export RUN [--format FORMAT]       the policy as a file for other programs: onnx or torch-export (--out DIR)
pappus push RUN DIR                       a run as a folder that a model hub takes, with a model card
pappus pull DIR RUN                       a run directory of such a folder
pappus data COMMAND                       data sets of recorded experience (pappus data lists the commands)
pappus sweep SYSTEM --env ID --space FILE  search settings by many short runs (--resume DIR goes on with a sweep)
pappus doctor RUN                         what limits a run, and the one change that would help (--json)
pappus page RUN                           a run in a browser, also while it goes on; or all runs below a folder
pappus tune SYSTEM --env ID [options]     what is fast here: measures, predicts, tries, and writes a config
pappus compare RUNS…                      what finished runs say together: means, intervals, probabilities, curves
pappus presets [SYSTEM] [--env ID]        settings per env, and the runs that show that they work
pappus systems [SYSTEM]                   every system in a table, or the figure of one
pappus check-env ID                       what an env is, how fast it steps, what is wrong with it
pappus completion bash|zsh|fish           what completes commands and options in a shell
"""

HELP = ("-h", "--help")
RESUME_OR_START = "--resume-or-start"
WITHOUT_PAGE = ("--no-page", "--page-listen=")
"""Members of a population are shown together, by one page."""
TUNE, PLAN = "--tune", "--plan"
ACTIONS = {"--vary": "append", "--trust": "store_true"}
"""Options that are not one value."""

SERVE_USAGE = """\
pappus serve SYSTEM --env-spec FILE [--listen ADDRESS] [options of pappus train SYSTEM]

Train from whatever connects: docs/guide/external-simulators.md describes how. The file is YAML:

{spec}
"""


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    began = time.monotonic()
    atexit.register(gc.freeze)  # when all is over, nobody need look through what torch has made: it takes 0.3 s
    words = list(sys.argv[1:] if words is None else words)
    try:
        return _dispatch(words, began)
    except PappusError as error:
        print(f"pappus: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    except KeyboardInterrupt:
        print("pappus: stopped at once", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of our output has gone
        return 1


def _dispatch(words: list[str], began: float) -> int:
    if not words or words[0] in (*HELP, "help"):
        print(USAGE, end="")
        return 0
    if words[0] in ("--version", "version"):
        from pappus import __version__

        print(f"pappus {__version__}")
        return 0
    commands = {
        "train": _train, "serve": _serve, "actor": _actor, "eval": _eval, "verify": _verify, "chaos": _chaos,
        "replay": _replay, "replay-run": _replay_run, "data": _data, "systems": _systems, "check-env": _check_env,
        "completion": _completion, "compare": _compare, "sweep": _sweep, "presets": _presets, "export": _export,
        "push": _push, "pull": _pull, "doctor": _doctor, "page": _page, "tune": _tune,
    }
    if words[0] not in commands:
        raise UserError(f"unknown command {words[0]!r}{closest(words[0], list(commands))}; see pappus --help")
    return commands[words[0]](words[1:], began)


def _train(words: list[str], began: float) -> int:
    if RESUME_OR_START in words:
        return _resume_or_start([word for word in words if word != RESUME_OR_START], began)
    if TUNE in words:
        return _train_tuned([word for word in words if word != TUNE], began)
    style, words = style_of(words)
    with terminal(style) as shown:
        return _train_shown(_with_system(words), began, shown)


def _train_shown(words: list[str], began: float, shown: Terminal) -> int:
    planned, words = PLAN in words, [word for word in words if word != PLAN]
    given, rest = _taken(words, "--resume", "--seeds", "--vary", "--jobs", "--trust")
    run, trust = given.pop("--resume"), given.pop("--trust")
    if trust and run is None and not _value(words, "--config"):
        raise UserError("--trust is for what a run directory names; give it with --resume or --config")
    several, helps = any(value is not None for value in given.values()), any(word in HELP for word in words)
    begun = bool(run) and (Path(run) / "population.json").is_file()
    if not helps and not begun:
        _check_early(run, rest, trust, several)
        shown.title = run or " · ".join(one for one in (rest[0], _value(rest, "--env")) if one)
    if planned and (several or begun or run is not None):
        raise UserError("--plan is for one new run; leave --seeds, --vary and --resume out")
    if several or begun:
        return _train_population(run, given, rest, trust, shown)
    from pappus.runtimes.forkserver import ForkServer

    if "--trace" in words:
        same_products()
    if _value(words, "--runtime") not in ("inline", "ray") and not helps and not planned:
        ForkServer.prestart()
    if not helps:
        try:
            shown.say("loading")
            _check_feasible(rest, trust, run)
        except UserError:
            ForkServer.discard()  # a command that is refused leaves nothing that still starts
            raise
        shown.say("loading torch", stays=not planned)
    from pappus import api

    system, config = _config(words) if run is None else _resumed_config(run, rest, trust)
    if planned:
        plan = api.plan_memory(config, config.env, system)
        shown.clear()
        if shown.style == "json":
            shown.object("plan", **plan.to_dict())
        else:
            shown.print("\n".join(plan.lines()))
        plan.check()
        return 0
    directory = None if run is None else Path(run).resolve()
    shown.say("preparing the run")
    result = api.execute(config, config.env, directory, began, system, terminal=shown)
    if result.summary.exit_reason == "interrupted":
        return 130
    return 0 if result.complete and result.summary.exit_reason != "storage failed" else INCOMPLETE


def _with_system(words: list[str]) -> list[str]:
    """The words with the system that `--config` names, where they name none: a run's config.yaml is enough."""
    file = _value(words, "--config")
    if not file or _value(words, "--resume") or (words and not words[0].startswith("-")):
        return words
    from pappus.settings import load_file

    name = str(load_file(Path(file)).get("system", ""))
    if not early.is_ours(name):  # a stranger's file names no code
        return words
    return [name, *words]


def _resume_or_start(words: list[str], began: float) -> int:
    """Whatever became of a run, the same command leads to its end: schedulers repeat it after each preemption."""
    given, rest = _taken(words, "--run-dir", "--resume", "--config", "--trust")
    if any(word in HELP for word in words):
        return _train(words, began)
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
        return _train(["--resume", directory, *trust, *(word for word in words if word in STYLES)], began)
    if beginning is Beginning.NOTHING:
        started = [word for word in words if word != "--trust"]  # nothing of a stranger is there
        return _train([*started, *trust] if given["--config"] else started, began)
    plain = style_of(list(rest))[1]
    outcome = done(Path(directory), _resumed_config(directory, plain, bool(trust))[1])
    if outcome:
        file = sys.stdout if style_of(words)[0] == "shown" else sys.stderr
        print(f"pappus: {directory} is finished: {outcome}; nothing is left to do", file=file)
        return 0
    return _train([*rest, "--resume", directory, *trust], began)


def _check_early(run: str | None, words: list[str], trust: bool, several: bool) -> None:
    """Refuse what can be refused before torch is loaded."""
    if run is not None and _value(words, "--config"):
        raise UserError("--config and --resume exclude each other: a run continues with its own config.yaml")
    if run is not None:
        early.check_run(run, resume=True)
        options = [word for i, word in enumerate(words) if i or word.startswith("-")]
        early.check_options(options, "pappus train", early.resumed(run))
        return
    if not words or words[0].startswith("-"):
        raise UserError("which system? write pappus train SYSTEM --env ID; `pappus systems` lists them all")
    if _value(words, "--system"):
        raise UserError("--system is no option; write the system's name: pappus train SYSTEM --env ID")
    start = (words[0], _value(words, "--env"), _value(words, "--data"), _value(words, "--config"))
    early.check_start(*start)
    options = _taken(words[1:], "--config")[1]
    early.check_options(options, f"pappus train {words[0]}", early.started(*start, trust), always=bool(start[-1]))
    early.check_folders("" if several else _value(words, "--run-dir"), _value(words, "--init-from"))


def _check_feasible(words: list[str], trust: bool, run: str | None = None) -> None:
    """Refuse what cannot be trained, before torch is loaded here: a fork server may load it meanwhile."""
    if run is not None:
        early.check_resumable(run, trust, words)
        return
    start = (words[0], _value(words, "--env"), _value(words, "--data"), _value(words, "--config"))
    early.check_new(*start, trust, _taken(words[1:], "--config")[1])


def _resumed_config(run: str, words: list[str], trust: bool) -> tuple[System, RunConfig]:
    """The system and the config of a run that continues with other words."""
    from pappus.configured import same_system
    from pappus.settings import parse
    from pappus.systems import saved_config

    name = words.pop(0) if words and not words[0].startswith("-") else ""
    system, config = saved_config(Path(run), trust=trust, without=())
    if name and name != config.system:
        raise UserError(f"run {run!r} is of system {config.system!r}, not {name!r}; leave the name out")
    return system, same_system(parse(config, words), system)


def _config(words: Sequence[str]) -> tuple[System, RunConfig]:
    """The system and the config that the words of a command mean."""
    from pappus import api
    from pappus.settings import load_file, parse
    from pappus.systems import find_system

    given, rest = _taken(words, "--config", "--trust")
    if not rest or rest[0].startswith("-"):
        raise UserError("which system? write pappus train SYSTEM --env ID; `pappus systems` lists them all")
    name, *rest = rest
    file = Path(given["--config"]) if given["--config"] else None
    asked, plain = find_system(name), [word for word in rest if word not in HELP]

    def config_of(system: System, words: Sequence[str]) -> RunConfig:
        data = {"data": value} if (value := _value(words, "--data")) else {}
        called = name if system.found_as == asked.found_as else system.pair
        resolved = api.configure(system, _value(words, "--env"), data, file, given["--trust"])
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


def _train_population(
    run: str | None, given: dict[str, Any], words: list[str], trust: bool, shown: Terminal
) -> int:
    """Several runs; what is wrong with any of them is said before the first begins."""
    from pappus import members, population

    if run is not None:
        if words or any(value is not None for value in given.values()):
            raise UserError(f"population {run!r} goes on as it was begun; leave the other options out")
        return population.saved_population(Path(run), trust).run(shown)
    if _value(words, "--seed"):
        raise UserError("--seed and --seeds exclude each other; name all seeds with --seeds")
    shown.say("loading torch", stays=True)
    directory, words = _taken(words, "--run-dir")
    seeds = [1] if given["--seeds"] is None else members.seeds_of(given["--seeds"])
    varied = members.varied_by(given["--vary"] or [])
    jobs = population.jobs_of(given["--jobs"])
    if not varied:  # with --vary no run may have just these settings; each is looked at below
        _check_feasible(words, trust)
    from pappus.beginnings import with_data
    from pappus.machine import chosen_words, fit
    from pappus.telemetry.processes import usable_cores
    from pappus.validation import validate

    runs = members.members_of(words[0], [*words[1:], *(["--trust"] if trust else [])], seeds, varied)
    configs = []
    for i, (system, config) in enumerate([_config(member.words) for member in runs]):
        settled = with_data(config, config.env)[0]
        configs.append(fit(settled, settled.env, system)[0])
        validate(configs[-1])
        own = (*runs[i].words, *chosen_words(config, configs[-1]), *(WITHOUT_PAGE if config.has_page else ()))
        runs[i] = replace(runs[i], words=own)
    page = configs[0].page_server if configs[0].has_page else None
    return population.Population(
        population.new_directory(directory["--run-dir"], words[0], configs[0].env), runs,
        jobs or (usable_cores() if all(config.inline for config in configs) else 1), page=page,
    ).run(shown)


def _serve(words: list[str], began: float) -> int:
    if any(word in HELP for word in words):
        from pappus.envs import external

        print(SERVE_USAGE.format(spec=(external.__doc__ or "").strip()), end="")
        return 0
    given, words = _taken(words, "--env-spec")
    spec = given["--env-spec"]
    if _value(words, "--env") or _value(words, "--actors"):
        raise UserError("pappus serve has no envs and no actors of its own; use pappus train, which can --listen too")
    if spec is None and not _value(words, "--resume"):
        raise UserError("--env-spec is missing; give a file that says what envs show and accept: pappus serve --help")
    if spec is not None:
        from pappus.envs.external import external_spec

        words += ["--env", f"spec:{Path(spec).resolve()}", "--actors", "0"]
        external_spec(words[-3])
        listens = _value(words, "--listen") or _value(words, "--topology.wire.listen")
        words += [] if listens else ["--listen=127.0.0.1:0"]
    return _train(words, began)


def _actor(words: list[str], began: float) -> int:
    parser = Parser(prog="pappus actor", description="Step envs for a run that listens; leave with Ctrl-C.")
    parser.add_argument("--connect", required=True, metavar="ADDRESS", help="HOST:PORT or unix:PATH of the run")
    parser.add_argument("--env", required=True, help="Gymnasium id, module:id or module:function")
    parser.add_argument("--envs", type=whole, default=16, help="envs to step (default: 16)")
    parser.add_argument("--env-groups", type=whole, default=2, help="groups that take turns (default: 2)")
    parser.add_argument("--seed", type=whole, help="seed of the envs (default: a new one each time)")
    parser.add_argument("--steps", type=whole, default=0, help="leave after so many steps (default: never)")
    parser.add_argument("--name", default="", help="how the run calls this actor (default: host and process)")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds without a server before it gives up")
    parser.add_argument("--token-file", default="", help="file with the run's secret")
    parser.add_argument("--authority", default="", help="TLS: who signed the server's certificate (PEM)")
    parser.add_argument("--certificate", default="", help="mutual TLS: certificate of this actor (PEM)")
    parser.add_argument("--key", default="", help="mutual TLS: its private key (PEM)")
    parser.add_argument("--config", help="YAML file with env_options, as in a run's config.yaml")
    parser.add_argument("--trust", action="store_true", help=TRUST_HELP)
    arguments = parser.parse_args(words)
    try:
        from pappus.remote import RemoteActor
    except ModuleNotFoundError as error:
        text = f"pappus actor needs {error.name}, which is not installed; run {install_line('grpc')}"
        raise UserError(text) from None

    return RemoteActor.from_arguments(arguments).run()


def _eval(words: list[str], began: float) -> int:
    parser = Parser(prog="pappus eval", description="Play greedily with a trained policy.")
    parser.add_argument("run", help="run directory")
    parser.add_argument("--episodes", type=whole, default=20, help="episodes to play (default: 20)")
    parser.add_argument("--seed", type=whole, default=0, help="seed of the envs (default: 0)")
    parser.add_argument("--checkpoint", choices=["latest", "best"], default="latest", help="which (default: latest)")
    parser.add_argument("--video", metavar="DIR", nargs="?", const="", help="record the episodes (default: RUN/videos)")
    parser.add_argument("--trust", action="store_true", help=TRUST_HELP)
    parser.add_argument("--quiet", action="store_true", help="print nothing but the result")
    parser.add_argument("--json", action="store_true", help="print the result as a JSON object, and nothing else")
    arguments = parser.parse_args(words)
    early.check_weights(arguments.run, arguments.checkpoint, arguments.trust)
    with terminal(style_of([word for word in words if word in STYLES])[0]) as shown:
        return _eval_shown(arguments, shown)


def _eval_shown(arguments: Namespace, shown: Terminal) -> int:
    shown.title = arguments.run
    shown.say("loading torch")
    from pappus.api import evaluate

    shown.say(f"playing {arguments.episodes} episodes")
    video = None if arguments.video is None else Path(arguments.video or Path(arguments.run) / "videos")
    found = evaluate(
        arguments.run, arguments.episodes, arguments.seed, arguments.checkpoint, video, trust=arguments.trust
    )
    shown.clear()
    if shown.style == "json":
        shown.object("evaluation", run=arguments.run, **found.to_dict())
        return 0
    shown.print(str(found))
    if video is not None and shown.style == "shown":
        shown.print(f"  films           {video}/episode-0.mp4 … {video}/episode-{arguments.episodes - 1}.mp4")
    return 0


def _verify(words: list[str], began: float) -> int:
    parser = Parser(
        prog="pappus verify", description="Re-run a part of a run, from a checkpoint to the next one, and compare.",
        epilog="Exit code 0: all state is equal. 1: something differs, and the first difference is named. 2: it cannot "
        "be compared, and why.",
    )
    parser.add_argument("run", help="run directory")
    parser.add_argument(
        "--from", dest="start", default="", metavar="CHECKPOINT",
        help="name of the checkpoint to begin with, or `start` (default: the last but one, or the start)",
    )
    parser.add_argument("--trust", action="store_true", help=TRUST_HELP)
    arguments = parser.parse_args(words)
    early.check_run(arguments.run, resume=True)
    early.check_resumable(arguments.run, arguments.trust)
    from pappus.verifying import verify_run

    verdict = verify_run(Path(arguments.run).resolve(), arguments.start, arguments.trust, print)
    print(verdict.text)
    return verdict.exit_code


def _chaos(words: list[str], began: float) -> int:
    from pappus.chaos.command import Chaos, parse, training_words

    options, rest = parse(words)
    given, rest = _taken(training_words(rest, options.seed), "--run-dir")
    _check_early(None, rest, trust=False, several=False)
    _check_feasible(rest, trust=False)
    from pappus.chaos.subject import subject_of

    system, config = _config(rest)
    subject = subject_of(system, config, rest, given["--run-dir"])
    return Chaos(options, subject, system.name).run()


def _replay(words: list[str], began: float) -> int:
    if not words or words[0] != "serve":
        raise UserError(f"pappus replay {' '.join(words[:1]) or '(nothing)'} is no command; use pappus replay serve")
    from pappus.replay.serve.command import main as serve_replay

    return serve_replay(words[1:], Parser("pappus replay serve", description="Serve tables of experience."))


def _replay_run(words: list[str], began: float) -> int:
    parser = Parser(prog="pappus replay-run", description="Repeat a traced run in one thread, update by update.")
    parser.add_argument("run", help="directory of a run that was trained with --trace")
    parser.add_argument("--until-update", type=whole, metavar="N", help="stop after update N (default: the last)")
    parser.add_argument("--break-at", type=whole, metavar="N", help="open the debugger (pdb) before update N")
    parser.add_argument("--trust", action="store_true", help=TRUST_HELP)
    arguments = parser.parse_args(words)
    early.check_trace(arguments.run)
    same_products()
    from pappus.replay_run import Replay, Replaying

    Replay(Replaying(Path(arguments.run), arguments.until_update, arguments.break_at, arguments.trust)).run()
    return 0


def _data(words: list[str], began: float) -> int:
    from pappus.data_commands import main as data_main

    return data_main(words)


def _sweep(words: list[str], began: float) -> int:
    from pappus.sweeping import command

    options, trust, rest = command.parse(words)
    if isinstance(options, str):
        return command.go_on(options, trust)
    command.check_early(options, rest)
    _check_early(None, rest, trust=False, several=True)
    start = early.started(rest[0], _value(rest, "--env"), _value(rest, "--data"), "", trust=False)
    if start is not None:
        command.check_space(options, rest, start())
    early.check_env_id(_value(rest, "--env"), rest)
    from pappus.beginnings import with_data
    from pappus.machine import fit
    from pappus.validation import validate

    system, config = _config(rest)
    config = with_data(config, config.env)[0]
    validate(fit(config, config.env, system)[0])
    return command.begin(options, command.plan_of(options, rest, config))


def _tune(words: list[str], began: float) -> int:
    from pappus.tuning import command

    options, rest = command.parse(words)
    return _find_fast(options, rest, began)[1]


def _train_tuned(words: list[str], began: float) -> int:
    """Tune, and train with what that finds."""
    if any(word in HELP for word in words):
        return _train(words, began)
    if PLAN in words:
        raise UserError(f"{PLAN} is of what would run now, which {TUNE} is to find; leave one of them out")
    from pappus.tuning import command

    style, plain = style_of(words)
    with terminal(style), contextlib.ExitStack() as hidden:  # what tuning tells is no result of the training
        if style == "quiet":
            hidden.enter_context(contextlib.redirect_stdout(hidden.enter_context(open(os.devnull, "w"))))
        found, code = _find_fast(command.Options(writes=False), plain, began)
    return code or _train([*words, *found], began)


def _find_fast(options: TuningOptions, words: list[str], began: float) -> tuple[list[str], int]:
    """What `pappus tune` finds, as options of `pappus train`, and the exit code."""
    from pappus.runtimes.forkserver import ForkServer
    from pappus.tuning import command

    words = _with_system(words)
    given, rest = _taken(words, "--trust")
    command.check_early(options, rest)
    _check_early(None, rest, bool(given["--trust"]), several=False)
    with ForkServer.shared():
        ForkServer.prestart()
        _check_feasible(rest, bool(given["--trust"]))
        from pappus import api
        from pappus.tuning.report import find

        system, config = _config(words)
        return find(options, system, config, api.configure(system, config.env), command.given_names(rest), began)


def _presets(words: list[str], began: float) -> int:
    from pappus.preset_listing import main as presets_main

    return presets_main(words)


def _compare(words: list[str], began: float) -> int:
    from pappus.comparing.command import main as compare_main

    return compare_main(words)


def _doctor(words: list[str], began: float) -> int:
    from pappus.doctor import main as doctor_main

    return doctor_main(words)


def _page(words: list[str], began: float) -> int:
    from pappus.page.command import main as page_main

    return page_main(words)


def _export(words: list[str], began: float) -> int:
    from pappus.policy_commands import export

    return export(words)


def _push(words: list[str], began: float) -> int:
    from pappus.policy_commands import push

    return push(words)


def _pull(words: list[str], began: float) -> int:
    from pappus.policy_commands import pull

    return pull(words)


def _systems(words: list[str], began: float) -> int:
    parser = Parser(prog="pappus systems", description="List every system, or show one of them.")
    parser.add_argument("system", nargs="?", help="a name, ALGORITHM@TOPOLOGY, or module:name")
    name = parser.parse_args(words).system
    if name:
        early.check_name(name)
    from pappus import listing

    print(listing.one_system(name) if name else listing.all_systems())
    return 0


def _check_env(words: list[str], began: float) -> int:
    parser = Parser(prog="pappus check-env", description="Tell what an env is and what is wrong with it.")
    parser.add_argument("env", help="Gymnasium id, module:id or module:function")
    parser.add_argument("--backend", default="auto", help="as --env-options.backend of train")
    parser.add_argument("--seconds", type=float, default=2.0, help="time for the measurements (default: 2)")
    arguments = parser.parse_args(words)
    if not 0 < arguments.seconds < math.inf:
        raise UserError(f"--seconds {arguments.seconds:g} must be positive and finite")
    from pappus.config import EnvOptions
    from pappus.envs.check import check_env

    report = check_env(arguments.env, EnvOptions(backend=arguments.backend), arguments.seconds)
    print(report)
    return 1 if report.problems else 0


def _completion(words: list[str], began: float) -> int:
    parser = Parser(prog="pappus completion", description="Print what completes commands and options in a shell.")
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], help="the shell")
    shell = parser.parse_args(words).shell
    from pappus.completion import script

    print(script(shell), end="")
    return 0


def _taken(words: Sequence[str], *options: str) -> tuple[dict[str, Any], list[str]]:
    """The value of each option (None if it is not there, all values of --vary, whether --trust is there), and the words
    without them."""
    parser = Parser(prog="pappus train", add_help=False, allow_abbrev=False)
    for option in options:
        parser.add_argument(option, dest=option, action=ACTIONS.get(option, "store"))
    found, rest = parser.parse_known_args(words)
    return vars(found), rest


def _value(words: Sequence[str], option: str) -> str:
    """The value of an option, the last one where it is repeated; empty if it is not there."""
    return _taken(words, option)[0][option] or ""
