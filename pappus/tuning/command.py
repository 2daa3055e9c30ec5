"""`pappus tune`: its options, and what is wrong with them, as far as that needs no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from pappus.arguments import Parser
from pappus.errors import UserError, closest
from pappus.names import PAIRS
from pappus.settings import ALIASES
from pappus.tuning.allowed import ALLOWED, Allowed

SECONDS = 60.0
FEWEST_SECONDS = 10.0
NOT_TAKEN = {
    "--resume": "tune the system first, and resume with what it finds", "--seeds": "give them to pappus train",
    "--vary": "give it to pappus train", "--listen": "the envs of a run that listens are elsewhere",
    "--data": "a system that learns from data has nothing to tune", "--trace": "give it to pappus train",
}
OF_A_RUN = ("--page", "--page-listen", "--budget", "--plan", "--run-dir", "--record", "--init-from")
"""Options that mean something to the run that is trained, and nothing to trials."""


@dataclass(frozen=True)
class Options:
    """What the command adds to those of `pappus train`."""

    seconds: float = SECONDS
    allowed: tuple[Allowed, ...] = ()
    as_json: bool = False
    out: str = ""
    writes: bool = True
    """Whether the config is written to a file."""


def parse(words: Sequence[str]) -> tuple[Options, list[str]]:
    """The options of tuning, and the words that are left for the run."""
    parser = Parser(
        prog="pappus tune", allow_abbrev=False,
        description="Measure what is fast here; other options are those of pappus train. What you give of --actors, "
        "--envs-per-actor, --envs, --runtime, --learners, --topology.env-groups and --env-options.threads stays; what "
        "--config FILE says of them is where it starts.",
    )
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"how long it may take in all (default: {SECONDS:g})"
    )
    several = "; ".join(f"{name}: {text}" for name, text in ALLOWED.items())
    parser.add_argument("--allow", metavar="WHAT,WHAT", default="", help=f"what may change in learning; {several}")
    parser.add_argument("--json", action="store_true", help="print all that was found as JSON")
    parser.add_argument("--out", metavar="FILE", default="", help="the config (default: SYSTEM-ENV-tuned.yaml)")
    given, rest = parser.parse_known_args(words)
    if not FEWEST_SECONDS <= given.seconds < math.inf:
        raise UserError(f"--seconds {given.seconds:g} must be at least {FEWEST_SECONDS:g}: each trial takes some")
    return Options(given.seconds, _allowed(given.allow), given.json, given.out), rest


def _allowed(text: str) -> tuple[Allowed, ...]:
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in ALLOWED:
            raise UserError(f"--allow {name!r} is unknown{closest(name, [*ALLOWED])}; use {', '.join(ALLOWED)}")
    return tuple(name for name in ALLOWED if name in names)


def check_early(options: Options, words: Sequence[str]) -> None:
    """Raise `UserError` for what can be known without the system."""
    for option, instead in NOT_TAKEN.items():
        if any(word.partition("=")[0] == option for word in words):
            raise UserError(f"pappus tune takes no {option}; {instead}")
    for option in OF_A_RUN if options.writes else ():
        if any(word.partition("=")[0] == option for word in words):
            raise UserError(f"pappus tune takes no {option}: its trials are short; give it to pappus train")
    if options.writes and "--quiet" in words:
        raise UserError("pappus tune takes no --quiet: what it prints is what it is for; --json says all in one object")
    if options.writes and (not words or words[0].startswith("-")):
        raise UserError("which system? write pappus tune SYSTEM --env ID; `pappus systems` lists them all")
    if _runtime(words) == "ray":
        raise UserError("--runtime ray: pappus tune measures this machine, and a cluster has others; use local")
    if words and PAIRS.get(words[0], words[0]).endswith("@offline"):
        raise UserError(f"{words[0]} steps no envs; pappus tune is for systems that do")
    if options.out:
        check_out(Path(options.out))


def _runtime(words: Sequence[str]) -> str:
    """What `--runtime` says last; empty where it is not given."""
    found = [word.partition("=")[2] for word in words if word.startswith("--runtime=")]
    found += [after for word, after in pairwise(words) if word == "--runtime"]
    return found[-1] if found else ""


def check_out(path: Path) -> None:
    """Raise `UserError` where no file of ours can be written."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UserError(f"--out {str(path)!r} cannot be written: give a file in a folder that there is")
    if path.exists() and not path.read_text(encoding="utf-8", errors="replace").startswith("# pappus tune"):
        raise UserError(f"--out {str(path)!r} is there, and not from pappus tune; give another file")


def given_names(words: Sequence[str]) -> frozenset[str]:
    """The settings that options name, as a config calls them."""
    names = (word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--"))
    return frozenset(ALIASES.get(name, name) for name in names)
