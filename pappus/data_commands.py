"""`pappus data …`: what one does with data sets beside training. Wrong input: one sentence, exit code 2.

Each command imports what it needs when it runs: a refusal is quick.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

from pappus.arguments import Parser
from pappus.errors import UserError, closest

DATA_USAGE = """\
pappus data info DATA                     what is in a data set, and what is odd about it (--json for machines)
pappus data list [FOLDER]                 the data sets below a folder (default: Minari's root)
"""


def main(words: list[str]) -> int:
    """Run `pappus data WORDS`; the exit code."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(DATA_USAGE, end="")
        return 0
    commands = {"info": _info, "list": _list}
    if words[0] not in commands:
        near = closest(words[0], list(commands))
        raise UserError(f"unknown command 'data {words[0]}'{near}; see pappus data --help")
    return commands[words[0]](words[1:])


def _info(words: list[str]) -> int:
    parser = Parser(prog="pappus data info", description="Tell what is in a data set and what is odd about it.")
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


def _progress(episodes: int) -> Callable[[int], None]:
    """Says on a terminal how far a long command is, twice a second."""
    said = time.monotonic()

    def say(done: int) -> None:
        nonlocal said
        if time.monotonic() - said > 0.5 and sys.stderr.isatty():
            said = time.monotonic()
            print(f"\x1b[K{done:,} of {episodes:,} episodes", end="\r", file=sys.stderr, flush=True)

    return say


def _list(words: list[str]) -> int:
    parser = Parser(prog="pappus data list", description="List the data sets below a folder.")
    parser.add_argument("folder", nargs="?", help="default: $MINARI_DATASETS_PATH, else ~/.minari/datasets")
    folder = parser.parse_args(words).folder
    from pappus.data.listing import list_datasets, listing_table

    print(listing_table(list_datasets(folder)))
    return 0
