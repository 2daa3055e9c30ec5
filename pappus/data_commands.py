"""`pappus data …`: what one does with data sets beside training. Wrong input: one sentence, exit code 2.

Each command imports what it needs when it runs: a refusal is quick.
"""

from __future__ import annotations

from pappus.arguments import Parser
from pappus.errors import UserError, closest

DATA_USAGE = """\
pappus data list [FOLDER]                 the data sets below a folder (default: Minari's root)
"""


def main(words: list[str]) -> int:
    """Run `pappus data WORDS`; the exit code."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(DATA_USAGE, end="")
        return 0
    commands = {"list": _list}
    if words[0] not in commands:
        near = closest(words[0], list(commands))
        raise UserError(f"unknown command 'data {words[0]}'{near}; see pappus data --help")
    return commands[words[0]](words[1:])


def _list(words: list[str]) -> int:
    parser = Parser(prog="pappus data list", description="List the data sets below a folder.")
    parser.add_argument("folder", nargs="?", help="default: $MINARI_DATASETS_PATH, else ~/.minari/datasets")
    folder = parser.parse_args(words).folder
    from pappus.data.listing import list_datasets, listing_table

    print(listing_table(list_datasets(folder)))
    return 0
