"""`pappus chaos`: trains while injecting faults."""

from __future__ import annotations

from pappus.commands.configs import check_early, check_feasible, config_of_words
from pappus.commands.words import taken


def main(words: list[str], began: float) -> int:
    from pappus.chaos.command import Chaos, parse, training_words

    options, rest = parse(words)
    given, rest = taken(training_words(rest, options.seed), "--run-dir")
    check_early(None, rest, trust=False, several=False)
    check_feasible(rest, trust=False)
    from pappus.chaos.subject import subject_of

    system, config = config_of_words(rest)
    subject = subject_of(system, config, rest, given["--run-dir"])
    return Chaos(options, subject, system.name).run()
