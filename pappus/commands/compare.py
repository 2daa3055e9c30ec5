"""`pappus compare`: aggregates finished runs."""

from __future__ import annotations


def main(words: list[str], began: float) -> int:
    from pappus.comparing import command

    return command.main(words)
