"""`pappus tune`: what is fast here. It measures, predicts and tries; `pappus train --tune` does so first."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

from pappus.commands.configs import check_early, check_feasible, config_of_words, with_system
from pappus.commands.words import taken, value_of
from pappus.telemetry.terminal import Terminal, style_of, terminal

if TYPE_CHECKING:
    from pappus.tuning.command import Options


def main(words: list[str], began: float) -> int:
    from pappus.tuning import command

    options, rest = command.parse(words)
    return _find_fast(options, rest, began)[1]


def found_for(words: list[str], began: float) -> tuple[list[str], int]:
    """What is fast for a training with these words, as further words, and the exit code: what tuning tells is no result
    of the training."""
    from pappus.tuning import command

    style, plain = style_of(words)
    with terminal(style), contextlib.ExitStack() as hidden:
        if style == "quiet":
            hidden.enter_context(contextlib.redirect_stdout(hidden.enter_context(open(os.devnull, "w"))))
        return _find_fast(command.Options(writes=False), plain, began)


def _find_fast(options: Options, words: list[str], began: float) -> tuple[list[str], int]:
    """What `pappus tune` finds, as options of `pappus train`, and the exit code."""
    from pappus.runtimes.forkserver import ForkServer
    from pappus.tuning import command

    words = with_system(words)
    given, rest = taken(words, "--trust")
    command.check_early(options, rest)
    check_early(None, rest, bool(given["--trust"]), several=False)
    shown = Terminal(file=sys.stderr if options.as_json else sys.stdout)
    shown.title = " · ".join(one for one in (rest[0], value_of(rest, "--env")) if one)
    shown.say("loading")
    with ForkServer.shared():
        ForkServer.prestart()
        check_feasible(rest, bool(given["--trust"]))
        shown.say("loading torch", stays=True)
        from pappus import api
        from pappus.tuning.report import find

        system, config = config_of_words(words)
        shown.clear()
        return find(options, system, config, api.configure(system, config.env), command.given_names(rest), began)
