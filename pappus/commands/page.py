"""`pappus page`: a run in a browser, or all runs below a folder."""

from __future__ import annotations


def main(words: list[str], began: float) -> int:
    from pappus.page import command

    return command.main(words)
