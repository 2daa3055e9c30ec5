"""Arguments of a command: what is wrong with them is a sentence, not a usage text."""

from __future__ import annotations

import argparse
from typing import NoReturn

from pappus.errors import UserError

TRUST_HELP = "run the code that the run directory names, whoever wrote it (docs/guide/security.md)"


class Parser(argparse.ArgumentParser):
    """A parser that raises `UserError` where argparse would print and exit."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see {self.prog} --help")
