"""Arguments of a command: what is wrong with them is a sentence, not a usage text."""

from __future__ import annotations

import argparse
import contextlib
import re
from typing import NoReturn

from pappus.errors import UserError

TRUST_HELP = "run code that the run directory names, even if somebody else wrote it (docs/guide/security.md)"

FACTORS = {"k": 1_000, "m": 1_000_000, "g": 1_000_000_000, "b": 1_000_000_000}


def number_of(word: str) -> int | float | None:
    """`64`, `1_000`, `1e6`, `2M`, `500k`: the number that a word means, whole where it can be; None for other words."""
    found = re.fullmatch(r"(.*[\d.])([kKmMgGbB])", word)
    digits, factor = (found[1], FACTORS[found[2].lower()]) if found else (word, 1)
    with contextlib.suppress(ValueError):
        return int(digits) * factor
    with contextlib.suppress(ValueError):
        number = float(digits) * factor
        return int(number) if factor > 1 and number % 1 == 0 else number
    return None


def whole(word: str) -> int:
    """A whole number, as argparse wants it converted."""
    number = number_of(word)
    if number is None or number % 1 != 0:
        raise argparse.ArgumentTypeError(f"{word!r} must be a whole number, such as 20, 1e6 or 2M")
    return int(number)


class Parser(argparse.ArgumentParser):
    """A parser that raises `UserError` where argparse would print and exit."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")
