"""Options among the words of a command, without knowing all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pappus.arguments import Parser

HELP = ("-h", "--help")
ACTIONS = {"--vary": "append", "--trust": "store_true"}
"""Options that are not one value."""


def taken(words: Sequence[str], *options: str) -> tuple[dict[str, Any], list[str]]:
    """The value of each option (None if it is not there, all values of --vary, whether --trust is there), and the words
    without them."""
    parser = Parser(prog="pappus train", add_help=False, allow_abbrev=False)
    for option in options:
        parser.add_argument(option, dest=option, action=ACTIONS.get(option, "store"))
    found, rest = parser.parse_known_args(words)
    return vars(found), rest


def value_of(words: Sequence[str], option: str) -> str:
    """The value of an option, the last one where it is repeated; empty if it is not there."""
    return taken(words, option)[0][option] or ""


def asks_for_help(words: Sequence[str]) -> bool:
    """Whether a command is only to say what it takes."""
    return any(word in HELP for word in words)
