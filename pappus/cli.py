"""The command line: `pappus NAME …` is `pappus/commands/NAME.py`. Wrong input: a sentence, code 2."""

from __future__ import annotations

import atexit
import gc
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module

from pappus.commands.words import HELP
from pappus.errors import PappusError, UserError, closest

USAGE = """\
pappus train SYSTEM --env ID [options]    train an agent (pappus train SYSTEM --help lists every option); SYSTEM is a
                                          name, ALGORITHM@TOPOLOGY, or your own module:name
pappus train SYSTEM … --seeds 1..5        several runs side by side (also --vary NAME=VALUE,VALUE and --jobs N)
pappus train SYSTEM … --quiet             nothing but errors and the result; --json: for programs, an object per line
pappus train --resume RUN [options]       continue from the newest checkpoint (--trust: whoever made it)
pappus train SYSTEM … --plan              print what memory the run would take, and end
pappus train SYSTEM … --tune              find out what is fast here for a minute, then train with that
pappus train SYSTEM … --resume-or-start   the same command starts a run in --run-dir, continues it, or finds it finished
pappus eval RUN [--episodes N]            play greedily (--video DIR records it, --checkpoint best|latest)
pappus verify RUN [--from step-…]         re-run from a checkpoint to the next one, and compare the hashes of all state
pappus serve SYSTEM --env-spec FILE       train from simulators that connect (--listen ADDRESS, default 127.0.0.1:0)
pappus actor --connect ADDRESS --env ID   step envs for a run elsewhere that listens
pappus chaos SYSTEM --env ID --minutes M  train, and hurt the run meanwhile: kills, hangs, full disks … and a report
pappus replay-run RUN                     repeat a run that was trained with --trace, in one thread
pappus replay serve --config FILE         tables of experience for whoever connects (docs/concepts/replay.md)
pappus export RUN [--format FORMAT]       the policy as a file for other programs: onnx or torch-export (--out DIR)
pappus push RUN DIR                       a run as a folder that a model hub takes, with a model card
pappus pull DIR RUN                       a run directory of such a folder
pappus data COMMAND                       data sets of recorded experience (pappus data lists the commands)
pappus sweep SYSTEM --env ID --space FILE  search settings by many short runs (--resume DIR goes on with a sweep)
pappus doctor RUN                         what limits a run, and the one change that would help (--json)
pappus page RUN                           a run in a browser, also while it goes on; or all runs below a folder
pappus tune SYSTEM --env ID [options]     what is fast here: measures, predicts, tries, and writes a config
pappus compare RUNS…                      what finished runs say together: means, intervals, probabilities, curves
pappus presets [SYSTEM] [--env ID]        settings per env, and the runs that show that they work
pappus systems [SYSTEM]                   every system in a table, or the figure of one
pappus check-env ID                       what an env is, how fast it steps, what is wrong with it
pappus completion bash|zsh|fish           what completes commands and options in a shell
"""

COMMANDS = (
    "train", "serve", "actor", "eval", "verify", "chaos", "replay", "replay-run", "data", "systems", "check-env",
    "completion", "compare", "sweep", "presets", "export", "push", "pull", "doctor", "page", "tune",
)


def main(words: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    began = time.monotonic()
    atexit.register(gc.freeze)  # when all is over, nobody need look through what torch has made: it takes 0.3 s
    words = list(sys.argv[1:] if words is None else words)
    try:
        return _dispatch(words, began)
    except PappusError as error:
        print(f"pappus: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    except KeyboardInterrupt:
        print("pappus: stopped at once", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of our output has gone
        return 1


def _dispatch(words: list[str], began: float) -> int:
    if not words or words[0] in (*HELP, "help"):
        print(USAGE, end="")
        return 0
    if words[0] in ("--version", "version"):
        from pappus import __version__

        print(f"pappus {__version__}")
        return 0
    name, *rest = words
    if name not in COMMANDS:
        raise UserError(f"unknown command {name!r}{closest(name, list(COMMANDS))}; see pappus --help")
    command: Callable[[list[str], float], int] = import_module(f"pappus.commands.{name.replace('-', '_')}").main
    return command(rest, began)
