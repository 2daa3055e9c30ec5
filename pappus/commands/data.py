"""`pappus data …`: everything about data sets except training on them. Wrong input: one sentence, exit code 2.

Each command imports what it needs when it runs: a refusal is quick.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from pappus.arguments import TRUST_HELP, Parser, whole
from pappus.early import check_run
from pappus.errors import UserError, closest

FORMATS = ("hdf5", "arrow", "parquet")
DATA_USAGE = """\
pappus data record --policy RUN --out DIR play a policy (or `random`) for --episodes N, into a data set
pappus data info DATA                     describe a data set and report anomalies (--json for programs)
pappus data list [FOLDER]                 list the data sets below a folder (default: Minari's root)
pappus data convert DATA DIR              copy to another of Minari's formats (--format hdf5, arrow or parquet)
pappus data estimate RUN --data DATA      estimate the return of a run's policy, with intervals, without an env
pappus data import FILE… --out DIR        make a data set from NumPy, Parquet or D4RL columns
"""


def main(words: list[str], began: float) -> int:
    """Run `pappus data WORDS`; the exit code."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(DATA_USAGE, end="")
        return 0
    commands = {
        "record": _record, "info": _info, "list": _list, "convert": _convert, "estimate": _estimate, "import": _import,
    }
    if words[0] not in commands:
        near = closest(words[0], list(commands))
        raise UserError(f"unknown command 'data {words[0]}'{near}; see pappus data --help")
    return commands[words[0]](words[1:])


def _record(words: list[str]) -> int:
    parser = Parser(prog="pappus data record", description="Play a policy and record the episodes as a data set.")
    parser.add_argument("--policy", required=True, metavar="RUN", help="run directory, or `random`")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder; appends to a set of the same env")
    parser.add_argument("--env", default="", help="Gymnasium id, module:id or module:function (default: the run's)")
    parser.add_argument("--episodes", type=whole, default=100, help="episodes to play (default: 100)")
    parser.add_argument("--epsilon", type=float, default=0.0, help="share of random actions (default: 0, greedy)")
    parser.add_argument("--sample", action="store_true", help="sample from the policy, as its actors did")
    parser.add_argument(
        "--seed", type=whole, default=0, help="seed of envs and actions; continued sets count on from it (default: 0)"
    )
    parser.add_argument("--checkpoint", choices=["latest", "best"], default="latest", help="which (default: latest)")
    parser.add_argument("--trust", action="store_true", help=TRUST_HELP)
    given = vars(parser.parse_args(words))
    if given["policy"] != "random":
        check_run(given["policy"])
    from pappus.play import Playing, play

    print(play(Playing(**{**given, "out": Path(given["out"]).resolve()})))
    return 0


def _info(words: list[str]) -> int:
    parser = Parser(prog="pappus data info", description="Describe a data set and report anomalies.")
    parser.add_argument("data", help="folder of the set, or its Minari id")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(words)
    from pappus.data.dataset import open_dataset
    from pappus.data.report import as_values, report
    from pappus.data.summary import summarize

    dataset = open_dataset(arguments.data)
    found = summarize(dataset, _progress(dataset.num_episodes))
    print(json.dumps(as_values(found)) if arguments.json else report(found))
    return 1 if found.problems else 0


def _progress(episodes: int = 0) -> Callable[[int], None]:
    """Says on a terminal how far a long command is, twice a second."""
    of = f" of {episodes:,}" if episodes else ""
    said = time.monotonic()

    def say(done: int) -> None:
        nonlocal said
        if time.monotonic() - said > 0.5 and sys.stderr.isatty():
            said = time.monotonic()
            print(f"\x1b[K{done:,}{of} episodes", end="\r", file=sys.stderr, flush=True)

    return say


def _list(words: list[str]) -> int:
    parser = Parser(prog="pappus data list", description="List the data sets below a folder.")
    parser.add_argument("folder", nargs="?", help="default: $MINARI_DATASETS_PATH, else ~/.minari/datasets")
    folder = parser.parse_args(words).folder
    from pappus.data.listing import list_datasets, listing_table

    print(listing_table(list_datasets(folder)))
    return 0


def _convert(words: list[str]) -> int:
    parser = Parser(prog="pappus data convert", description="Copy a data set into another format.")
    parser.add_argument("data", help="folder of the set, or its Minari id")
    parser.add_argument("out", metavar="DIR", help="folder of the copy; nothing is overwritten")
    parser.add_argument("--format", choices=FORMATS, required=True, help="hdf5, arrow or parquet")
    arguments = parser.parse_args(words)
    from pappus.data.copying import convert

    found = convert(arguments.data, Path(arguments.out), arguments.format, _progress())
    print(f"{found.num_episodes:,} episodes, {found.num_steps:,} steps in {arguments.out} ({found.data_format})")
    return 0


def _estimate(words: list[str]) -> int:
    parser = Parser(prog="pappus data estimate", description="Estimate the return of a run's policy from data.")
    parser.add_argument("run", help="run directory")
    parser.add_argument("--data", required=True, help="folder of the set, or its Minari id")
    parser.add_argument("--methods", help="some of is,wis,dr,wdr,fqe (default: all that the policy allows)")
    parser.add_argument("--confidence", type=float, default=0.95, help="level of the intervals (default: 0.95)")
    parser.add_argument("--discount", type=float, default=0.99, help="γ of the returns (default: 0.99)")
    parser.add_argument("--greedy", action="store_true", help="evaluate the greedy policy")
    parser.add_argument("--epsilon", type=float, default=0.0, help="share of random actions of a greedy policy")
    parser.add_argument("--clip", type=float, default=1e6, help="largest importance weight (default: 1e6)")
    parser.add_argument("--checkpoint", choices=["latest", "best"], default="latest", help="which (default: latest)")
    parser.add_argument("--trust", action="store_true", help=TRUST_HELP)
    parser.add_argument("--seed", type=whole, default=0, help="seed of resampling and fits (default: 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(words)
    check_run(arguments.run)
    from pappus.judging.estimates import estimate

    found = estimate(
        arguments.run, arguments.data, arguments.methods.split(",") if arguments.methods else None,
        confidence=arguments.confidence, discount=arguments.discount, greedy=arguments.greedy,
        epsilon=arguments.epsilon, clip=arguments.clip, seed=arguments.seed, checkpoint=arguments.checkpoint,
        trust=arguments.trust,
    )
    print(json.dumps(found.as_json()) if arguments.json else found)
    return 0


def _import(words: list[str]) -> int:
    parser = Parser(prog="pappus data import", description="Make a data set from columns with one row per step.")
    parser.add_argument("files", nargs="+", metavar="FILE", help=".npz, a folder of .npy, .parquet, or flat .hdf5")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder of the new set; nothing is overwritten")
    parser.add_argument("--env", default="", help="Gymnasium id, module:id or module:function, for its spaces")
    parser.add_argument("--spaces", default="", metavar="FILE", help="spaces without an env (see pappus serve --help)")
    parser.add_argument("--format", choices=FORMATS, default="hdf5", help="format of the new set")
    parser.add_argument("--observation", metavar="NAME", help="column; NAME,NAME,… are the entries of a vector")
    parser.add_argument("--action", metavar="NAME", help="column or columns, in the env's units")
    parser.add_argument("--reward", metavar="NAME", help="column of rewards")
    parser.add_argument("--terminated", metavar="NAME", help="column: the step ended its episode in a terminal state")
    parser.add_argument("--truncated", metavar="NAME", help="column: the step ended its episode by a time limit")
    parser.add_argument("--next-observation", metavar="NAME", help="column or columns: the observation after the step")
    parser.add_argument("--episode", metavar="NAME", help="column that changes where a new episode begins")
    parser.add_argument("--log-prob", metavar="NAME", help="column: log-probability of the action")
    arguments = vars(parser.parse_args(words))
    from pappus.data.columns import USUAL
    from pappus.data.copying import NewSet
    from pappus.data.importing import import_columns, spaces_of
    from pappus.trust import env_asked, remember

    remember(env_asked(arguments["env"]))
    new = NewSet(*spaces_of(arguments["env"], arguments["spaces"]), arguments["format"], arguments["env"])
    names = {kind: arguments[kind] for kind in USUAL if arguments[kind]}
    files = [Path(file) for file in arguments["files"]]
    found, told = import_columns(files, Path(arguments["out"]), new, names, _progress())
    print(f"{found.num_episodes:,} episodes, {found.num_steps:,} steps in {arguments['out']} ({found.data_format})")
    for sentence in told.sentences():
        print(f"note: {sentence}")
    return 0
