"""`pappus sweep`: searches settings by many short runs."""

from __future__ import annotations

from pappus import early
from pappus.commands.configs import check_early, config_of_words
from pappus.commands.words import value_of


def main(words: list[str], began: float) -> int:
    from pappus.sweeping import command

    options, trust, rest = command.parse(words)
    if isinstance(options, str):
        return command.go_on(options, trust)
    command.check_early(options, rest)
    check_early(None, rest, trust=False, several=True)
    start = early.started(rest[0], value_of(rest, "--env"), value_of(rest, "--data"), "", trust=False)
    if start is not None:
        command.check_space(options, rest, start())
    early.check_env_id(value_of(rest, "--env"), rest)
    from pappus.beginnings import with_data
    from pappus.machine import fit
    from pappus.validation import validate

    system, config = config_of_words(rest)
    config = with_data(config, config.env)[0]
    validate(fit(config, config.env, system)[0])
    return command.begin(options, command.plan_of(options, rest, config))
