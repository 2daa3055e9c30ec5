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
pappus train SYSTEM … --quiet             print only errors and the result; --json: one JSON object per line
pappus train --resume RUN [options]       continue from the newest checkpoint (--trust: run code that it names)
pappus train SYSTEM … --plan              print how much memory the run would take, and exit
pappus train SYSTEM … --tune              tune for speed for a minute, then train with the result
pappus train SYSTEM … --resume-or-start   start the run in --run-dir, or continue it
pappus eval RUN [--episodes N]            play greedily (--video DIR records it, --checkpoint best|latest)
pappus verify RUN [--from step-…]         re-run from a checkpoint to the next one, and compare the hashes of all state
pappus serve SYSTEM --env-spec FILE       train on simulators that connect (--listen ADDRESS, default 127.0.0.1:0)
pappus actor --connect ADDRESS --env ID   step envs for a remote run that listens
pappus chaos SYSTEM --env ID --minutes M  train while injecting faults (kills, hangs, full disks …), and report recovery
pappus replay-run RUN                     repeat a run that was trained with --trace, in one thread
pappus replay serve --config FILE         a stand-alone replay server (docs/concepts/replay.md)
pappus export RUN [--format FORMAT]       export the policy for other programs: onnx or torch-export (--out DIR)
pappus push RUN DIR                       write a run in the layout of a model hub, with a model card
pappus pull DIR RUN                       make a run directory from such a folder
pappus data COMMAND                       data sets of recorded experience (pappus data lists the commands)
pappus sweep SYSTEM --env ID --space FILE  search settings by many short runs (--resume DIR resumes a sweep)
pappus doctor RUN                         what limits a run, and the one change that would help (--json)
pappus page RUN                           show a run in a browser, live or finished; or all runs below a folder
pappus tune SYSTEM --env ID [options]     find the fastest settings on this machine, and write them to a config
pappus compare RUNS…                      aggregate finished runs: means, intervals, probabilities, curves
pappus presets [SYSTEM] [--env ID]        list settings per env, and the runs that support them
pappus systems [SYSTEM]                   list all systems, or show the figure of one
pappus check-env ID                       describe an env, measure its speed, and report problems
pappus completion bash|zsh|fish           print a completion script for a shell
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
